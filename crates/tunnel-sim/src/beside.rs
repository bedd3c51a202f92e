//! Messages outside streams (unreliable datagrams), as both ends have sent and received them: the
//! model that they are checked against.

use std::collections::{BTreeMap, VecDeque};

use splitmix::{SplitMix64, mix};
use tunnel::{ecn::Ecn, session::PacketQueue, store::NextPacket};

use crate::{side::End, violation::Violation};

/// Minimum length of a message: it begins with its number.
pub const MESSAGE_MIN: usize = 8;

/// Message whose number is its index.
#[derive(Clone, Copy, Debug)]
struct Sent {
    by: End,
    channel: u8,
    len: usize,
    /// True if the session has taken it.
    left: bool,
    arrived: bool,
}

/// All messages of a run.
#[derive(Debug, Default)]
pub struct Beside {
    /// Per end, for its present session: numbers in the plan, and waiting messages.
    queues: [BTreeMap<PacketQueue, (usize, VecDeque<usize>)>; 2],
    sent: Vec<Sent>,
    /// Number of messages that have arrived.
    pub arrived: u64,
}

impl Beside {
    /// Returns the queue for that plan, if the session has one.
    pub fn queue(&self, end: End, plan: usize) -> Option<PacketQueue> {
        let mut queues = self.queues[end].iter();
        queues.find_map(|(queue, (of, _))| (*of == plan).then_some(*queue))
    }

    /// Notes that the session of an end has opened that queue.
    pub fn opened(&mut self, end: End, plan: usize, queue: PacketQueue) {
        self.queues[end].insert(queue, (plan, VecDeque::new()));
    }

    /// Forgets an ended session, with the messages that waited for it.
    pub fn forget(&mut self, end: End) {
        self.queues[end].clear();
    }

    /// Notes that an end sends a message.
    pub fn send(&mut self, end: End, queue: PacketQueue, channel: u8, len: usize) {
        let Some((_, waiting)) = self.queues[end].get_mut(&queue) else {
            return;
        };
        waiting.push_back(self.sent.len());
        self.sent.push(Sent {
            by: end,
            channel,
            len: len.max(MESSAGE_MIN),
            left: false,
            arrived: false,
        });
    }

    /// Returns the next message to the session.
    pub fn next(
        &mut self,
        end: End,
        queue: PacketQueue,
        room: usize,
        out: &mut Vec<u8>,
    ) -> Result<Option<NextPacket>, Violation> {
        let waiting = self.queues[end].get_mut(&queue);
        let Some((_, waiting)) = waiting.filter(|(_, waiting)| !waiting.is_empty()) else {
            return Err(Violation::AskedInVain { queue });
        };
        // Drop messages that do not fit any more.
        while let Some(number) = waiting.pop_front() {
            let sent = &mut self.sent[number];
            if sent.len > room {
                continue;
            }
            sent.left = true;
            out.push(sent.channel);
            out.extend(content(number, sent.len));
            let more = !waiting.is_empty();
            let ecn = [Ecn::NotEct, Ecn::Ect0, Ecn::Ect1, Ecn::Ce][number % 4];
            return Ok(Some(NextPacket { more, ecn }));
        }
        Ok(None)
    }

    /// Checks a message received at an end.
    pub fn take(&mut self, end: End, channel: u8, message: &[u8]) -> Result<(), Violation> {
        let number = message.first_chunk().copied().map(u64::from_be_bytes);
        let number = number.and_then(|number| usize::try_from(number).ok());
        let sent = number.and_then(|number| Some((number, self.sent.get_mut(number)?)));
        let fits = |(number, sent): &(usize, &mut Sent)| {
            sent.by != end
                && sent.left
                && sent.channel == channel
                && sent.len == message.len()
                && content(*number, sent.len).eq(message.iter().copied())
        };
        let Some((number, sent)) = sent.filter(fits) else {
            return Err(Violation::WrongMessage { channel });
        };
        if std::mem::replace(&mut sent.arrived, true) {
            return Err(Violation::MessageTwice { number });
        }
        self.arrived += 1;
        Ok(())
    }
}

/// Returns the bytes of the message of that number.
fn content(number: usize, len: usize) -> impl Iterator<Item = u8> {
    let number = number as u64;
    let mut draws = SplitMix64::new(mix(mix(number)));
    let rest = std::iter::repeat_with(move || draws.next_u64() as u8);
    number.to_be_bytes().into_iter().chain(rest).take(len)
}

#[cfg(test)]
mod tests {
    use tunnel::{class::Class, session::Session};

    use super::*;
    use crate::rig::config;

    #[test]
    fn what_is_wrong_or_comes_twice_is_found() {
        let rtt = std::time::Duration::from_millis(10);
        let mut session = Session::new(config(true, 1_000_000, rtt), rtt);
        let queue = session
            .open_packets(Class::Bulk, 0)
            .expect("below the limit");
        let mut beside = Beside::default();
        beside.opened(0, 5, queue);
        assert_eq!(beside.queue(0, 5), Some(queue));
        beside.send(0, queue, 3, 100);
        let mut out = Vec::new();
        let next = beside.next(0, queue, 1000, &mut out).expect("a message");
        assert!(next.is_some_and(|next| !next.more));
        let asked = beside.next(0, queue, 1000, &mut out);
        assert!(matches!(asked, Err(Violation::AskedInVain { .. })));
        let (channel, message) = (out[0], &out[1..]);
        let mut other = message.to_vec();
        other[50] ^= 1;
        assert!(beside.take(1, channel, &other).is_err());
        assert!(beside.take(0, channel, message).is_err());
        assert!(beside.take(1, channel + 1, message).is_err());
        assert!(beside.take(1, channel, &message[..99]).is_err());
        assert_eq!(beside.take(1, channel, message), Ok(()));
        let again = beside.take(1, channel, message);
        assert_eq!(again, Err(Violation::MessageTwice { number: 0 }));
    }
}
