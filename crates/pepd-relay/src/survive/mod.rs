//! Flows that outlive the process that carries them, and their recovery by a successor.
//!
//! The sockets survive because another process shares the descriptor table. The bytes survive in
//! the [arena](crate::arena). The position of each direction follows from the kernel's own
//! [counters]: see [`pep_core::arena`].
//!
//! - [`claim`], the process that takes hosts' connections; [`keeper`], the process that keeps the
//!   sockets; the supervisor, the process that starts the next one
//! - [`inherited_text`], its configuration; [`stop`], whether a signal drains or ends at once
//! - [`heartbeat`], by which the supervisor monitors the process
//! - [`discovery`], the flows to take over; [`inheritance`], their sockets; [`recovery`], their
//!   state

pub mod claim;
pub mod counters;
pub mod discovery;
pub mod heartbeat;
pub mod inheritance;
pub mod inherited_text;
pub mod keeper;
pub mod recovery;
pub mod stop;

use std::os::fd::OwnedFd;

use pep_core::arena::{Counters, Record};

use crate::arena::Slot;

/// Flow whose process has ended, with its legs as sockets or in the form that a caller needs.
#[derive(Debug)]
pub struct Survivor<L = OwnedFd> {
    /// Memory of the flow. The flow ends where this is dropped.
    pub slot: Slot,
    /// Published record of the flow.
    pub record: Record,
    /// Legs of client and server, if present: non-blocking, closed by RST when dropped.
    pub legs: [Option<L>; 2],
    /// Kernel counters of each leg.
    pub counters: [Option<Counters>; 2],
}

impl<L> Survivor<L> {
    /// Converts its legs.
    ///
    /// # Errors
    /// Returns the first error of `see`.
    pub fn try_with<M, E>(self, mut see: impl FnMut(L) -> Result<M, E>) -> Result<Survivor<M>, E> {
        let [client, server] = self.legs.map(|leg| leg.map(&mut see).transpose());
        Ok(Survivor {
            slot: self.slot,
            record: self.record,
            legs: [client?, server?],
            counters: self.counters,
        })
    }
}
