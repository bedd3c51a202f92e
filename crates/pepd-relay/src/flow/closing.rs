//! The end of a flow.

use pep_core::{
    relay::{Direction, End, HalfState, Side},
    stats::EndReason,
};

use super::{Flow, LegIo, tail};

impl Flow {
    /// Ends the flow after what its legs still have to deliver.
    pub(super) async fn close(&mut self, end: End) {
        // A host that reads slowly may keep the legs for long; their bytes are the kernel's now.
        self.slot.trim();
        self.relay.handle_end();
        match end {
            End::Closed => {
                // Should the task be dropped from here on, the kernel goes on delivering.
                self.ending = EndReason::Closed;
                self.legs.iter().for_each(LegIo::close_with_fin);
                self.delivered_within_orphan(&Side::ALL).await;
            }
            End::Reset(by) => {
                self.delivered_within_orphan(&[by.other()]).await;
                self.ending = tail::broken(self.failure.as_ref(), by);
            }
        }
    }

    async fn delivered_within_orphan(&self, sides: &[Side]) {
        let limit = self.ends.site.timeouts.orphan;
        let has_tail = || sides.iter().any(|side| self.has_tail(*side));
        tail::delivered(limit, has_tail).await;
    }

    fn has_tail(&self, side: Side) -> bool {
        let half = self.relay.half(Direction::from(side.other()));
        self.leg(side).has_tail(half.state() == HalfState::Shut)
    }
}
