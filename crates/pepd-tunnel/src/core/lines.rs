//! Log lines that a peer can cause at will, paced by peer and kind: a peer must not fill the disk,
//! or hide the lines on others.
//!
//! All kinds together stay below 10 kB/s for a peer: 20 ends of flows a second of 350 bytes, and
//! seldom another line.

use std::time::Duration;

use pep_core::pace::{Line, Lines, Pace};

/// Lines of a kind: after a burst, one per interval.
const SELDOM: Pace = Pace::new(Duration::from_secs(10), 5);
/// Ends of the flows that a peer has opened.
const FLOWS: Pace = Pace::new(Duration::from_millis(50), 20);

/// Kinds of lines that a peer can cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A session has begun.
    Up,
    /// Flows resume in a session.
    Resume,
    /// A session has ended: replaced, or for another reason than a close.
    Down,
    /// The peer has closed a session.
    Closed,
    /// The peer has another address, or another carrier, or pepd closes a TCP connection of it.
    Moved,
    /// A flow is refused: its token is known.
    Repeated,
    /// A flow is refused: its stream header is malformed, or the peer has its part of memory.
    Refused,
    /// A flow is refused: the peer may not open it.
    Forbidden,
    /// The peer probes the path.
    Probed,
    /// A flow cannot resume.
    Disagreed,
    /// A compressed stream is malformed.
    Malformed,
    /// The peer does not reach hosts of a family, or reaches them again.
    Unreached,
}

/// Number of kinds.
const KINDS: usize = Kind::Unreached as usize + 1;

/// Lines of one peer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PeerLines {
    kinds: [Lines; KINDS],
    flows: Lines,
}

impl Default for PeerLines {
    fn default() -> Self {
        Self {
            kinds: [Lines::new(SELDOM); KINDS],
            flows: Lines::new(FLOWS),
        }
    }
}

impl PeerLines {
    /// Permits a line of that kind, or counts it as left out.
    pub(crate) fn next(&mut self, kind: Kind, now: Duration) -> Option<Line> {
        self.kinds[kind as usize].next(now)
    }

    /// Returns whether the end of a flow that the peer has opened may be logged.
    pub(crate) fn tells_flow(&mut self, now: Duration) -> bool {
        self.flows.next(now).is_some()
    }

    /// Returns the number of ends of flows left out since the last call; `None` for 0.
    pub(crate) fn take_flows(&mut self) -> Option<u64> {
        self.flows.take_left_out()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The longest lines, with IPv6 addresses and a reason: more than any that pepd has logged.
    const LINE: u32 = 400;
    const END_OF_FLOW: u32 = 350;

    #[test]
    fn a_peer_that_causes_all_kinds_at_once_fills_less_than_ten_kilobytes_a_second() {
        let mut lines = PeerLines::default();
        let mut bytes = Vec::new();
        for second in 0..60 {
            let mut now_bytes = 0;
            for ms in 0..1000 {
                let now = Duration::from_millis(1000 * second + ms);
                for kind in 0..KINDS {
                    now_bytes += LINE * u32::from(lines.kinds[kind].next(now).is_some());
                }
                now_bytes += END_OF_FLOW * u32::from(lines.tells_flow(now));
            }
            now_bytes += LINE * u32::from(lines.take_flows().is_some());
            bytes.push(now_bytes);
        }
        let later = bytes[1..].iter().max().expect("59 seconds");
        assert!((5_000..=12_500).contains(later), "{bytes:?}");
        assert!(bytes.iter().sum::<u32>() < 60 * 10_000, "{bytes:?}");
    }

    #[test]
    fn a_flood_of_one_kind_hides_no_other() {
        let mut lines = PeerLines::default();
        let now = Duration::from_secs(9);
        while lines.next(Kind::Refused, now).is_some() {}
        assert!(!(0..100).all(|_| lines.tells_flow(now)));
        for kind in [Kind::Up, Kind::Down, Kind::Probed, Kind::Malformed] {
            let line = lines.next(kind, now).expect("the first of its kind");
            assert_eq!(line.left_out, None);
        }
        let later = lines.next(Kind::Refused, now + Duration::from_secs(10));
        assert_eq!(later.expect("a pause").left_out, Some(1));
    }
}
