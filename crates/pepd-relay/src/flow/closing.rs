//! Closing of a flow.

use pep_core::{
    relay::{Direction, DirectionState, End, Side},
    stats::EndReason,
};
use tokio::task::yield_now;

use super::{Flow, LegIo, tail};

impl Flow {
    /// Closes the flow after its legs have delivered all remaining bytes.
    pub(super) async fn close(&mut self, end: End) {
        // A slow reader may keep the legs for long, and their bytes are in the kernel by now.
        self.slot.trim();
        self.relay.handle_end();
        match end {
            End::Closed => {
                // If the task is dropped from here on, the kernel still delivers the rest.
                self.ending = EndReason::Closed;
                self.legs.iter().for_each(LegIo::close_with_fin);
                // No host waits for the rest: flows that have something to relay go first.
                yield_now().await;
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
        // Saves a system call: nothing follows the client's FIN.
        if side == Side::Server && self.is_confirmed {
            return false;
        }
        let direction = self.relay.direction(Direction::from(side.other()));
        self.leg(side)
            .has_tail(direction.state() == DirectionState::Shut)
    }
}
