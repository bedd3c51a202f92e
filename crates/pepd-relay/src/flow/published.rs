//! Records of a flow published for a successor of this process.

use std::{
    io,
    os::fd::BorrowedFd,
    time::{SystemTime, UNIX_EPOCH},
};

use pep_core::{
    arena::{DirectionRecord, Flags, Identity, Kind, name_hash},
    relay::{Direction, Side},
};
use pepd_sys::leg::{self, Family};
use socket2::SockRef;

use super::{Flow, FlowContext, FlowInfo, FlowMemory};
use crate::arena::{Slot, SlotState};

/// Returns the current time in milliseconds since 1970.
pub fn born() -> u64 {
    let born = SystemTime::now().duration_since(UNIX_EPOCH);
    let born = born.map_or(0, |since| since.as_millis());
    u64::try_from(born).unwrap_or(0)
}

/// Builds the identity of a flow that has both legs locally.
fn identity(ends: &FlowInfo) -> Identity {
    Identity {
        kind: Kind::Split,
        site: name_hash(&ends.site.name),
        peer: ends.peer.as_deref().map_or(0, name_hash),
        born: born(),
        token: 0,
        client: ends.client,
        destination: ends.destination,
        flags: flags(ends),
        class: 0,
    }
}

fn flags(ends: &FlowInfo) -> Flags {
    Flags {
        off_link: ends.site.is_beside,
        ..Flags::default()
    }
}

/// Publishes the socket of a leg. Publish the server's before connect(): a successor resets
/// unpublished connections.
pub fn publish_leg(slot: &Slot, side: Side, leg: BorrowedFd<'_>) {
    publish_cookie(slot, side, SockRef::from(&leg).cookie());
}

/// Publishes a cookie that was already read.
pub fn publish_cookie(slot: &Slot, side: Side, cookie: io::Result<u64>) {
    match cookie {
        Ok(cookie) => slot.publish_cookie(side, cookie),
        Err(err) => tracing::debug!(error = %err, "cannot read the socket cookie of a leg"),
    }
}

impl FlowMemory {
    /// Gives a flow the options for other interfaces than the link, if its server leg, which has
    /// just begun to connect, leaves by one.
    pub fn follow_leg(&self, context: &FlowContext, ends: &mut FlowInfo, leg: BorrowedFd<'_>) {
        let marks = context.other_marks.as_ref();
        let family = Family::from_address(&ends.destination);
        if marks.is_some_and(|marks| marks.is_off_link(leg, ends.destination))
            && let Some(beside) = leg::leave_link(leg, &ends.site, family)
        {
            ends.site = beside;
            self.slot.publish_flags(flags(ends));
        }
    }

    /// Publishes a flow whose client was accepted and which has no server leg yet.
    pub fn publish_accepted(&self, context: &FlowContext, ends: &FlowInfo, client: BorrowedFd<'_>) {
        let ring = DirectionRecord {
            size: context.limits.ring_initial,
            ..DirectionRecord::default()
        };
        self.slot.publish_identity(&identity(ends));
        for direction in Direction::ALL {
            self.slot.publish_direction(direction, &ring);
        }
        self.slot.publish_cookie(Side::Server, 0);
        publish_leg(&self.slot, Side::Client, client);
        self.slot.publish_state(SlotState::Accepted);
    }
}

impl Flow {
    pub(super) fn publish_direction(&self, direction: Direction) {
        let state = self.relay.direction(direction);
        self.slot.publish_direction(direction, &state.into());
    }
}
