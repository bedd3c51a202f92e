//! Keepalives of hosts and servers, passed on to the other end.
//!
//! pepd's kernel answers the keepalives that arrive at a leg. The other end would not see them: a
//! NAT or a load balancer before it would forget the connection, and no program would notice that
//! it is gone. So a segment that arrives at a leg while no byte moves or waits is answered by a
//! probe on the other leg. Once probes stay unanswered, pepd leaves keepalives unanswered, too: who
//! sends them decides when to give up, as without pepd.
//!
//! Answers to the probes are segments, too. They count against the probe, so that the two legs do
//! not set off each other for ever.

use std::time::Duration;

use super::Side;

/// Unanswered probes after which the other end's keepalives are not answered.
const PROBES: u8 = 2;

/// Segments that have arrived at both legs of an idle flow, and probes owed an answer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Keepalives {
    /// Segments received so far; wraps.
    heard: [u32; 2],
    unanswered: [u8; 2],
}

/// Result of a look at an idle flow.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Looked {
    /// Sides that are to be probed, as the other one has sent a keepalive, or is muted.
    pub probes: [bool; 2],
    /// Sides whose keepalives are to stay unanswered, as the other one does not answer.
    pub mute: [bool; 2],
    /// Keepalives that have arrived since the last look, at the busier side.
    pub keepalives: u32,
}

impl Keepalives {
    /// Shortest and longest interval between two looks at an idle flow.
    pub const LOOKS: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

    /// Begins with a flow that has just become idle. `heard` are the segments that each side has
    /// received, in the order of [`Side`].
    pub fn new(heard: [u32; 2]) -> Self {
        Self {
            heard,
            unanswered: [0; 2],
        }
    }

    /// Returns whether a side has received segments since the last look, given those until now.
    pub fn has_heard(&self, side: Side, heard: [u32; 2]) -> bool {
        self.heard[side as usize] != heard[side as usize]
    }

    /// Evaluates the segments received until now. The caller then sends the probes, and notes those
    /// that have left.
    pub fn look(&mut self, heard: [u32; 2]) -> Looked {
        let mut looked = Looked::default();
        for side in [0, 1] {
            let new = heard[side].wrapping_sub(self.heard[side]);
            // A probe whose answer was lost owes none any more once others arrive.
            let answers = u32::from(self.unanswered[side]);
            if new > 0 {
                self.unanswered[side] = 0;
            }
            let foreign = new.saturating_sub(answers);
            looked.probes[1 - side] = foreign > 0;
            looked.keepalives = looked.keepalives.max(foreign);
        }
        for side in [0, 1] {
            if self.unanswered[side] >= PROBES {
                // The muted side's keepalives are not seen any more.
                looked.mute[1 - side] = true;
                looked.probes[side] = true;
                looked.keepalives = looked.keepalives.max(1);
            }
        }
        self.heard = heard;
        looked
    }

    /// Notes that a probe has left.
    pub fn on_probed(&mut self, side: Side) {
        let unanswered = &mut self.unanswered[side as usize];
        *unanswered = unanswered.saturating_add(1);
    }

    /// Notes that a side cannot answer, as the link is known to be down.
    pub fn excuse(&mut self, side: Side) {
        self.unanswered[side as usize] = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Looks, and sends the probes.
    fn look(keepalives: &mut Keepalives, heard: [u32; 2]) -> Looked {
        let looked = keepalives.look(heard);
        for side in Side::ALL {
            if looked.probes[side as usize] {
                keepalives.on_probed(side);
            }
        }
        looked
    }

    #[test]
    fn a_keepalive_is_passed_on_once_and_its_answer_is_none() {
        let mut keepalives = Keepalives::new([5, 7]);
        assert_eq!(look(&mut keepalives, [5, 7]), Looked::default());
        let passed = look(&mut keepalives, [6, 7]);
        assert_eq!((passed.probes, passed.keepalives), ([false, true], 1));
        // The answer to the probe, and nothing of the host.
        assert_eq!(look(&mut keepalives, [6, 8]), Looked::default());
        // Both ends at once.
        assert_eq!(look(&mut keepalives, [7, 9]).probes, [true, true]);
        assert_eq!(look(&mut keepalives, [8, 10]), Looked::default());
    }

    #[test]
    fn who_gets_no_answer_is_not_answered_until_there_is_one() {
        let mut keepalives = Keepalives::new([u32::MAX, 0]);
        let mut heard = u32::MAX;
        for _ in 0..2 {
            heard = heard.wrapping_add(1);
            let looked = look(&mut keepalives, [heard, 0]);
            assert_eq!((looked.probes, looked.mute), ([false, true], [false; 2]));
        }
        // Muted, it is not seen. The server is still asked.
        for _ in 0..300 {
            let looked = look(&mut keepalives, [heard, 0]);
            assert_eq!((looked.probes, looked.mute), ([false, true], [true, false]));
        }
        assert_eq!(look(&mut keepalives, [heard, 1]), Looked::default());
    }

    #[test]
    fn a_probe_that_did_not_leave_and_an_outage_mute_nobody() {
        let mut keepalives = Keepalives::new([0, 0]);
        assert!((1..20).all(|heard| keepalives.look([heard, 0]).mute == [false; 2]));
        for heard in 20..40 {
            keepalives.excuse(Side::Server);
            let looked = look(&mut keepalives, [heard, 0]);
            assert_eq!(looked.mute, [false; 2]);
        }
    }
}
