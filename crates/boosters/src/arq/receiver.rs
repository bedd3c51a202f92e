//! End that requests lost messages.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::Duration,
};

use super::{AGAIN, ORDER, PLACE, TAIL};
use crate::{
    booster::{Booster, Out},
    packet::Packet,
    wire::{ARQ, ARQ_AGAIN, Reader},
};

/// Maximum missing messages at a time; a larger jump means another sender.
const MISSING_MAX: u64 = 4096;
/// Numbers before a message that count as missing; earlier ones are given up.
const JUMP_MAX: u64 = 512;
/// Numbers that may count as missing for each message: with a loss of four in five none is given
/// up. Each costs work that a peer could cause by a message of some bytes.
const JUMP_EARNED: u64 = 4;
/// Messages released at once. Later boosters may make a thousand packets of each, and the pace of
/// the peer holds only between these.
const RELEASED_MAX: usize = 16;
/// Messages released with one that comes: itself, and one held before. Timers release the rest at
/// the pace of their caller.
const RELEASED_WITH: usize = 2;
/// Number of messages before the next one whose arrival is tracked.
const KNOWN: u64 = 1 << 17;
/// Messages before the first arrival that it may have overtaken: each is passed on once, but none
/// is requested.
const BEFORE: u64 = 64;
/// Maximum requests for a message; the sender decides how often it answers.
const ASKED_MAX: u8 = 3;
/// Maximum numbers in a reply.
const NUMBERS_MAX: usize = 60;
/// Maximum bytes held back behind missing messages, including the cost per packet.
const HELD_MAX: usize = 4 << 20;
/// Delay against others by which a message may be reordered without being lost.
const REORDERED: Duration = Duration::from_millis(2);
/// Later messages after which one counts as lost at once, unless FEC may still restore it.
const OVERTAKEN: u64 = 3;
/// Longer gaps do not count as the spacing of messages.
const APART_MAX: Duration = Duration::from_millis(200);

/// Requests missing messages.
#[derive(Debug, Default)]
pub struct Receiver {
    /// Number after the highest that came.
    next: u64,
    begun: bool,
    /// First number received of this sender, and which of the [`BEFORE`] numbers before it have
    /// come since: the lowest bit is the nearest.
    first: u64,
    before: u64,
    missing: BTreeMap<u64, Missing>,
    /// Numbers that do not count as missing before messages have earned them, up to [`JUMP_MAX`].
    jumped: u64,
    /// Times of the next action for each missing message.
    due: BTreeSet<(Duration, u64)>,
    /// Messages held behind missing ones, where order is kept.
    held: BTreeMap<u64, Packet>,
    /// Messages of earlier senders that were held, and wait for nothing.
    before_held: VecDeque<Packet>,
    /// Bytes of both.
    held_bytes: usize,
    rtt: Option<Duration>,
    /// Number of later messages until which FEC may restore one; 0 without FEC.
    restorable: u16,
    /// Time of the last message, and the mean spacing.
    last: Option<Duration>,
    apart: Duration,
    wait: Duration,
    repaired: u64,
    given_up: u64,
    asked: u64,
    duplicates: u64,
    unreadable: u64,
    sender_restarts: u64,
}

#[derive(Clone, Copy, Debug)]
struct Missing {
    since: Duration,
    asked: u8,
    asked_at: Duration,
    due: Duration,
}

impl Receiver {
    /// Creates a receiver without state.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the full number nearest to the next one.
    fn expand(&self, seq: u32) -> Option<u64> {
        let ahead = i64::from(seq.wrapping_sub(self.next as u32) as i32);
        self.next.checked_add_signed(ahead)
    }

    /// Starts with a new sender, or with one not heard for long: nothing is missing.
    fn begin(&mut self, seq: u32) {
        self.sender_restarts += u64::from(self.begun);
        self.begun = true;
        self.missing.clear();
        self.due.clear();
        let held = std::mem::take(&mut self.held);
        self.before_held.extend(held.into_values());
        self.next = (1 << 40) | u64::from(seq);
        (self.first, self.before) = (self.next, 0);
    }

    /// Notes the time of a message, and how long FEC may restore earlier ones.
    fn note_time(&mut self, now: Duration, restorable: u16) {
        self.restorable = restorable;
        if let Some(last) = self.last.replace(now) {
            let apart = now.saturating_sub(last).min(APART_MAX);
            self.apart = (self.apart * 7 + apart) / 8;
        }
    }

    /// Returns how late a message may be before it is requested. Packets may be reordered, and FEC
    /// may restore some, so that only the rest is retransmitted. The result is bounded so that the
    /// answer still comes in time.
    fn patience(&self) -> Duration {
        let reordered = self.rtt.map_or(REORDERED, |rtt| (rtt / 8).max(REORDERED));
        let answer = self.rtt.map_or(self.wait / 2, |rtt| rtt + rtt / 4);
        let restored = self.apart * self.restorable.into();
        let restored = restored.min(self.wait.saturating_sub(answer));
        reordered.max(restored)
    }

    /// Registers all numbers before this one as missing.
    fn expect(&mut self, now: Duration, number: u64) {
        let most = JUMP_MAX - self.jumped;
        let from = self.next.max(number.saturating_sub(most)).min(number);
        self.jumped += number - from;
        self.given_up += from.saturating_sub(self.next);
        for missing in from..number {
            let due = now + self.patience();
            let entry = Missing {
                since: now,
                asked: 0,
                asked_at: now,
                due,
            };
            self.missing.insert(missing, entry);
            self.due.insert((due, missing));
        }
        self.next = self.next.max(number);
        let most = self.missing.len().saturating_sub(MISSING_MAX as usize);
        for _ in 0..most {
            if let Some((number, missing)) = self.missing.pop_first() {
                self.due.remove(&(missing.due, number));
                self.given_up += 1;
            }
        }
    }

    /// Returns the full number of a message that is new and from the current sender.
    fn note(&mut self, now: Duration, seq: u32, again: bool) -> Option<u64> {
        let number = self.expand(seq).filter(|number| {
            self.begun && *number + KNOWN >= self.next && *number < self.next + MISSING_MAX
        });
        let Some(number) = number else {
            if again {
                return None; // Of long ago.
            }
            self.begin(seq);
            let number = self.next;
            self.next += 1;
            return Some(number);
        };
        if number >= self.next {
            self.expect(now, number);
            self.next = number + 1;
            self.overtake(now);
            return Some(number);
        }
        let Some(missing) = self.missing.remove(&number) else {
            let is_new = self.is_new_before(number);
            self.duplicates += u64::from(!is_new);
            return is_new.then_some(number);
        };
        self.due.remove(&(missing.due, number));
        if again && missing.asked == 1 {
            let sample = now.saturating_sub(missing.asked_at);
            let rtt = self.rtt.get_or_insert(sample);
            *rtt = (*rtt * 7 + sample) / 8;
        }
        self.repaired += u64::from(again);
        Some(number)
    }

    /// Returns whether it is from before the first number, and has not come yet.
    fn is_new_before(&mut self, number: u64) -> bool {
        let back = self.first.checked_sub(number).filter(|back| *back > 0);
        let Some(back) = back.filter(|back| *back <= BEFORE) else {
            return false;
        };
        let bit = 1 << (back - 1);
        let is_new = self.before & bit == 0;
        self.before |= bit;
        is_new
    }

    /// Requests messages overtaken by so many later ones that they must be lost.
    fn overtake(&mut self, now: Duration) {
        let before = self
            .next
            .saturating_sub(OVERTAKEN.max(self.restorable.into()));
        let late = self.missing.range_mut(..before).rev();
        for (number, missing) in
            late.take_while(|(_, missing)| missing.asked == 0 && missing.due > now)
        {
            self.due.remove(&(missing.due, *number));
            missing.due = now;
            self.due.insert((now, *number));
        }
    }

    /// Requests the messages that are due, and gives up those that are too late.
    fn ask(&mut self, now: Duration, out: &mut Out) {
        let mut numbers = Vec::new();
        while let Some(&(at, number)) = self.due.first()
            && at <= now
        {
            self.due.pop_first();
            let Some(missing) = self.missing.get_mut(&number) else {
                continue;
            };
            let end = missing.since + self.wait;
            if now >= end {
                self.missing.remove(&number);
                self.given_up += 1;
                continue;
            }
            missing.due = end;
            if missing.asked < ASKED_MAX {
                missing.asked += 1;
                missing.asked_at = now;
                numbers.push(number as u32);
                let patience = self.rtt.map_or(self.wait / 2, |rtt| rtt + rtt / 4);
                missing.due = end.min(now + patience.max(REORDERED));
            }
            self.due.insert((missing.due, number));
        }
        for numbers in numbers.chunks(NUMBERS_MAX) {
            self.asked += numbers.len() as u64;
            let mut bytes = vec![ARQ_AGAIN, numbers.len() as u8];
            bytes.extend(numbers.iter().flat_map(|number| number.to_be_bytes()));
            out.down.push(Packet {
                bytes,
                since: now,
                ..Packet::default()
            });
        }
    }

    /// Returns whether a message need not wait any more.
    fn is_ready(&self) -> bool {
        if !self.before_held.is_empty() {
            return true;
        }
        let first = self.missing.first_key_value().map(|(number, _)| *number);
        let held = self.held.first_key_value().map(|(number, _)| *number);
        held.is_some_and(|held| first.is_none_or(|first| held < first))
    }

    /// Releases some of the messages that need not wait any more.
    fn release(&mut self, most: usize, out: &mut Out) {
        for _ in 0..most {
            if !self.is_ready() {
                return;
            }
            let of_now = || self.held.pop_first().map(|(_, packet)| packet);
            if let Some(packet) = self.before_held.pop_front().or_else(of_now) {
                self.held_bytes -= packet.bytes.len() + PLACE;
                out.up.push(packet);
            }
        }
    }

    fn hold(&mut self, number: u64, packet: Packet, out: &mut Out) {
        self.held_bytes += packet.bytes.len() + PLACE;
        self.held.insert(number, packet);
        while self.held_bytes > HELD_MAX {
            if !self.is_ready()
                && let Some((number, missing)) = self.missing.pop_first()
            {
                self.due.remove(&(missing.due, number));
                self.given_up += 1;
            }
            self.release(RELEASED_MAX, out);
        }
    }
}

#[cfg(test)]
impl Receiver {
    pub(super) fn held_count(&self) -> usize {
        self.held.len()
    }

    pub(super) fn missing_count(&self) -> usize {
        self.missing.len()
    }

    /// Checks that all state is bounded and correctly counted.
    pub(super) fn check_bounds(&self) {
        let held = self.held.values().chain(&self.before_held);
        let bytes = held.map(|packet| packet.bytes.len() + PLACE);
        assert_eq!(bytes.sum::<usize>(), self.held_bytes);
        assert!(self.held_bytes <= HELD_MAX);
        assert!(self.missing.len() <= MISSING_MAX as usize);
        assert_eq!(self.due.len(), self.missing.len());
    }
}

impl Booster for Receiver {
    fn up(&mut self, now: Duration, packet: Packet, out: &mut Out) {
        if packet.bytes.first() != Some(&ARQ) {
            out.up.push(packet);
            return;
        }
        let mut reader = Reader(&packet.bytes[1..]);
        let header = (reader.u8(), reader.u32(), reader.u16());
        let (Some(flags), Some(seq), Some(wait)) = header else {
            self.unreadable += 1;
            return;
        };
        self.wait = Duration::from_millis(wait.max(1).into());
        self.jumped = self.jumped.saturating_sub(JUMP_EARNED);
        self.note_time(now, packet.restorable);
        if flags & TAIL != 0 {
            let number = self.expand(seq).filter(|number| {
                self.begun && *number > self.next && *number < self.next + MISSING_MAX
            });
            if let Some(number) = number {
                self.expect(now, number);
            }
        } else if reader.0.is_empty() {
            // No sender sends an empty message.
            self.unreadable += 1;
        } else if let Some(number) = self.note(now, seq, flags & AGAIN != 0) {
            let inner = packet.with_bytes(reader.0.to_vec());
            if flags & ORDER != 0 {
                self.hold(number, inner, out);
            } else {
                out.up.push(inner);
            }
        }
        self.ask(now, out);
        self.release(RELEASED_WITH, out);
    }

    fn on_time(&mut self, now: Duration, out: &mut Out) {
        self.ask(now, out);
        self.release(RELEASED_MAX, out);
    }

    fn deadline(&self) -> Option<Duration> {
        let due = self.due.first().map(|(at, _)| *at);
        let ready = self.last.filter(|_| self.is_ready());
        [due, ready].into_iter().flatten().min()
    }

    fn counters(&self, each: &mut dyn FnMut(&'static str, u64)) {
        each("repaired", self.repaired);
        each("given_up", self.given_up);
        each("requests", self.asked);
        each("duplicates", self.duplicates);
        each("unreadable", self.unreadable);
        each("sender_restarts", self.sender_restarts);
    }
}
