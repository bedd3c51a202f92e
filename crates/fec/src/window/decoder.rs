//! Receiving side of the sliding window code.

use std::collections::VecDeque;

use super::{
    ConfigError, DecoderConfig, DecoderStats, coefficients,
    restore::Restorer,
    slot::Slot,
    strays::{self, Strays},
    system::{Solved, System},
};
use crate::{
    kernel::Kernel,
    scheme::{Arrival, Decoder, Refused},
    serial,
    symbol::LENGTH_BYTES,
    wire::Header,
};

/// Window decoder: takes data and repair packets in any order, gives lost data packets.
///
/// It stores the data packets of a span of numbers up to the newest known one, and the repair
/// packets whose windows lie within. From these it restores every packet that can be restored, as
/// soon as possible.
///
/// Packets outside the span do not move it far at once. A packet ahead moves it by no more than
/// half of it. Data packets further ahead, or behind, are passed on ([`Arrival::Late`]) and set
/// aside. Only three of them in a row ahead, or eight behind, move the span to their place. Data
/// packets with the number of another one but different content are treated like those behind: an
/// encoder has restarted with the same numbers. So a wildly wrong number does no harm, a restarted
/// encoder is followed after eight packets, and none of those is lost to decoding.
///
/// # Memory and time
///
/// Nothing is allocated after construction. There are `span + repairs + 9` symbols, and `repairs +
/// 2` rows of `span + repairs + 1` bytes.
///
/// While there is nothing to solve, a data packet costs a copy, and a repair packet whose window is
/// complete costs a scan of the window. Otherwise, with n equations pending:
///
/// - a packet costs at most 2 n + 1 operations on rows (a multiplication and addition of a row);
/// - a restored packet costs up to n more, unless all are restored at once;
/// - its content costs a multiplication and addition of a symbol for each packet and repair symbol
///   in it, usually the window and n, at most `span + repairs`.
///
/// n is always at most `repairs`. So no packet costs more than 2 `repairs` operations on rows and,
/// for each packet that it restores, `repairs` on rows and `span + repairs` on symbols. With AVX2
/// and packets of 1,400 bytes, a repair packet over 128 of which 32 are missing takes 10 us. The
/// last of 32 restores them in 0.2 ms, 6 us each.
///
/// # Forged packets
///
/// Repair symbols are not checked before use. A repair packet that contradicts the others without
/// new information passes undetected; one with new information corrupts the packets that it
/// contributes to. Where a result has an invalid length or no zeros after its end, the decoder
/// drops all stored repair packets; otherwise it delivers the result. The caller authenticates
/// packets.
#[derive(Clone, Debug)]
pub struct WindowDecoder {
    window: u8,
    payload_max: usize,
    /// Last number of the span.
    newest: Option<u32>,
    /// Packets by which the span has moved since it was put in place; no more than `span`.
    moved: usize,
    /// Packets of the span, by number modulo `span`.
    packets: Vec<Slot>,
    /// Repair symbols of the equations, in the places assigned by `system`.
    repairs: Vec<Slot>,
    system: System,
    restorer: Restorer,
    solved: Vec<Solved>,
    /// Restored packets, in the order of their numbers, as they were restored.
    restored: VecDeque<u32>,
    strays: Strays,
    stats: DecoderStats,
}

/// Place of a number relative to the span.
enum Place {
    Inside,
    /// Ahead, and no further than the span may move at once.
    Ahead,
    /// Further ahead.
    Beyond,
    Behind,
}

impl WindowDecoder {
    /// Returns a decoder on the fastest kernel of this machine.
    ///
    /// # Errors
    ///
    /// If a field of the configuration is out of range.
    pub fn new(config: &DecoderConfig) -> Result<Self, ConfigError> {
        Self::with_kernel(config, Kernel::detect())
    }

    /// Returns a decoder on `kernel`.
    ///
    /// # Errors
    ///
    /// If a field of the configuration is out of range.
    pub fn with_kernel(config: &DecoderConfig, kernel: Kernel) -> Result<Self, ConfigError> {
        config.check()?;
        let (span, repairs) = (config.span.next_power_of_two(), config.repairs);
        let slot = Slot::new(config.payload_max);
        Ok(Self {
            window: config.window,
            payload_max: config.payload_max,
            newest: None,
            moved: 0,
            packets: vec![slot.clone(); span],
            repairs: vec![slot; repairs + 1],
            system: System::new(span, repairs, kernel),
            restorer: Restorer::new(kernel, span + repairs + 1),
            solved: Vec::with_capacity(repairs + 1),
            restored: VecDeque::with_capacity(span),
            strays: Strays::new(config.payload_max),
            stats: DecoderStats::default(),
        })
    }

    /// Counters since construction.
    #[must_use]
    pub fn stats(&self) -> DecoderStats {
        self.stats
    }

    /// Number of repair packets stored for later use.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.system.len()
    }

    fn handle_data(&mut self, id: u32, packet: &[u8]) -> Result<Arrival, Refused> {
        if packet.len() > self.payload_max {
            return Err(Refused::Length(packet.len()));
        }
        match self.place(id) {
            Place::Inside => {}
            Place::Ahead => self.advance(id),
            Place::Beyond => return Ok(self.handle_stray(id, packet, strays::AHEAD)),
            Place::Behind => return Ok(self.handle_stray(id, packet, strays::BEHIND)),
        }
        let column = self.column(id);
        if !self.system.is_missing(column) {
            return Ok(self.handle_again(id, packet));
        }
        self.strays.clear();
        self.packets[column].set_packet(packet);
        self.system.known(column);
        self.stats.data += 1;
        self.solve();
        Ok(Arrival::Data)
    }

    /// Handles a packet whose number is known: a duplicate, unless it has other content, which only
    /// another encoder can have sent.
    fn handle_again(&mut self, id: u32, packet: &[u8]) -> Arrival {
        if self.packets[self.column(id)].packet() != Some(packet) {
            return self.handle_stray(id, packet, strays::BEHIND);
        }
        self.strays.clear();
        self.stats.duplicates += 1;
        Arrival::Duplicate
    }

    fn handle_repair(
        &mut self,
        first: u32,
        count: u16,
        key: u16,
        symbol: &[u8],
    ) -> Result<Arrival, Refused> {
        self.check_repair(count, symbol)?;
        self.stats.repairs += 1;
        let last = first.wrapping_add(u32::from(count) - 1);
        match self.place(last) {
            Place::Inside => {}
            Place::Ahead => self.advance(last),
            Place::Beyond | Place::Behind => {
                self.stats.repairs_far += 1;
                return Ok(Arrival::Repair);
            }
        }
        if serial::before(first, self.oldest()) {
            self.stats.repairs_far += 1;
        } else if self.keep_repair(first, count.into(), key, symbol) {
            self.solve();
            self.stats.repairs_evicted += u64::from(self.system.make_room());
        } else {
            self.stats.repairs_spare += 1;
        }
        Ok(Arrival::Repair)
    }

    fn check_repair(&self, count: u16, symbol: &[u8]) -> Result<(), Refused> {
        let max = self.window.into();
        if count > max || count == 0 {
            let (field, value, max) = ("count", count.into(), max.into());
            return Err(Refused::TooMany { field, value, max });
        }
        let lengths = LENGTH_BYTES..=LENGTH_BYTES + self.payload_max;
        if !lengths.contains(&symbol.len()) {
            return Err(Refused::Length(symbol.len()));
        }
        Ok(())
    }

    /// Makes an equation of a repair packet; returns whether it has new information.
    fn keep_repair(&mut self, first: u32, count: usize, key: u16, symbol: &[u8]) -> bool {
        let from = self.column(first);
        let wrapped = (from + count).saturating_sub(self.packets.len());
        let to_end = from..from + count - wrapped;
        if !self.system.any_missing(to_end.clone()) && !self.system.any_missing(0..wrapped) {
            return false;
        }
        let mut coefficients = [0; u8::MAX as usize];
        coefficients::draw(key, &mut coefficients[..count]);
        let cells = to_end.chain(0..wrapped).zip(coefficients);
        let place = self.system.insert(first, cells);
        if let Some(place) = place {
            self.repairs[place].set_symbol(symbol);
        }
        place.is_some()
    }

    /// Restores all packets that can be restored.
    fn solve(&mut self) {
        if self.system.len() == 0 {
            return;
        }
        self.system.solved(&mut self.solved);
        if self.solved.is_empty() {
            return;
        }
        let oldest = self.column(self.oldest());
        let mask = self.packets.len() - 1;
        self.solved
            .sort_unstable_by_key(|solved| solved.column.wrapping_sub(oldest) & mask);
        let (packets, repairs) = (&mut self.packets, &self.repairs);
        if self
            .restorer
            .restore(&self.system, &self.solved, packets, repairs)
        {
            self.hand_out();
        } else {
            self.stats.corrupt += 1;
            self.system.clear();
        }
    }

    /// Queues the restored packets.
    fn hand_out(&mut self) {
        let oldest = self.oldest();
        let from = self.column(oldest);
        if self.solved.len() == self.system.len() {
            self.system.clear();
        }
        for Solved { column, .. } in &self.solved {
            self.system.known(*column);
            let ahead = column.wrapping_sub(from) & (self.packets.len() - 1);
            if self.restored.len() == self.packets.len() {
                self.restored.pop_front();
                self.stats.recovered_dropped += 1;
            }
            self.restored.push_back(oldest.wrapping_add(ahead as u32));
        }
        self.stats.recovered += self.solved.len() as u64;
    }

    fn place(&mut self, id: u32) -> Place {
        let newest = *self.newest.get_or_insert(id);
        match serial::distance(newest, id) {
            ahead if ahead > self.margin().cast_signed() => Place::Beyond,
            ahead if ahead > 0 => Place::Ahead,
            ahead if ahead.unsigned_abs() < self.packets.len() as u32 => Place::Inside,
            _ => Place::Behind,
        }
    }

    /// Moves the span on, so that it ends with `newest`.
    fn advance(&mut self, newest: u32) {
        let (span, mut oldest) = (self.packets.len(), self.oldest());
        let kept = newest.wrapping_add(1).wrapping_sub(span as u32);
        self.stats.repairs_expired += self.system.expire(kept);
        while oldest != kept {
            let column = self.column(oldest);
            if self.moved < span {
                self.moved += 1;
            } else if self.system.is_missing(column) {
                self.stats.lost += 1;
            }
            self.system.renew(column);
            oldest = oldest.wrapping_add(1);
        }
        self.newest = Some(newest);
    }

    fn handle_stray(&mut self, id: u32, packet: &[u8], believed: usize) -> Arrival {
        self.stats.late += 1;
        if self.strays.has(id) {
            self.stats.duplicates += 1;
            return Arrival::Duplicate;
        }
        let near = self.margin();
        if self.strays.keep(id, packet, near) >= believed {
            self.follow();
        }
        Arrival::Late
    }

    /// Moves the span to the strays.
    fn follow(&mut self) {
        let Some(newest) = self.strays.newest() else {
            return;
        };
        self.stats.resyncs += 1;
        self.newest = Some(newest);
        self.moved = 0;
        self.system.reset();
        self.stats.recovered_dropped += self.restored.len() as u64;
        self.restored.clear();
        let span = self.packets.len() as u32;
        while let Some((id, slot)) = self.strays.pop() {
            if newest.wrapping_sub(id) < span {
                let column = (id % span) as usize;
                std::mem::swap(slot, &mut self.packets[column]);
                self.system.known(column);
            }
        }
    }

    /// Maximum move of the span at once: half of it stays, which is one window or more.
    fn margin(&self) -> u32 {
        self.packets.len() as u32 / 2
    }

    /// First number of the span.
    fn oldest(&self) -> u32 {
        let after = self.newest.unwrap_or(0).wrapping_add(1);
        after.wrapping_sub(self.packets.len() as u32)
    }

    fn column(&self, id: u32) -> usize {
        // The span is a power of two.
        id as usize & (self.packets.len() - 1)
    }
}

impl Decoder for WindowDecoder {
    fn handle(&mut self, header: Header, payload: &[u8]) -> Result<Arrival, Refused> {
        let arrival = match header {
            Header::WindowData { id } => self.handle_data(id, payload),
            Header::WindowRepair { first, count, key } => {
                self.handle_repair(first, count, key, payload)
            }
            Header::BlockData { .. } | Header::BlockRepair { .. } => Err(Refused::Scheme),
        };
        arrival.inspect_err(|refused| self.stats.count(*refused))
    }

    fn poll_recovered(&mut self) -> Option<(Header, &[u8])> {
        let oldest = self.oldest();
        let id = loop {
            let id = self.restored.pop_front()?;
            if serial::within(id, oldest, self.packets.len() as u32) {
                break id;
            }
            self.stats.recovered_dropped += 1;
        };
        let packet = self.packets[self.column(id)].packet()?;
        Some((Header::WindowData { id }, packet))
    }
}
