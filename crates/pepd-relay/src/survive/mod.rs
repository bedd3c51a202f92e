//! Flows that outlive the process that carries them, and what a successor of it makes of them.
//!
//! The sockets live on as another process shares the table of descriptors, the bytes as they are in the
//! [arena](crate::arena), and how far each half is follows from the kernel's own [counters]: see
//! [`pep_core::arena`].
//!
//! - [`claim`], which process takes hosts' connections; [`keeper`], the one that keeps the sockets;
//!   the supervisor, the one that starts the next
//! - [`handed`], by which configuration; [`stop`], whether a signal drains or ends at once
//! - [`pulse`], by which that one knows that it goes on
//! - [`discovery`], whose flows there are; [`inheritance`], their sockets; [`recovery`], which is which

pub mod claim;
pub mod counters;
pub mod discovery;
pub mod handed;
pub mod inheritance;
pub mod keeper;
pub mod pulse;
pub mod recovery;
pub mod stop;

use std::os::fd::OwnedFd;

use pep_core::arena::{Counters, Record};

use crate::arena::Slot;

/// A flow whose process has ended, with legs as they are or as others see them.
#[derive(Debug)]
pub struct Survivor<L = OwnedFd> {
    /// Its memory. The flow ends where this is dropped.
    pub slot: Slot,
    /// What was published of it.
    pub record: Record,
    /// The client's and the server's leg, where they are here: non-blocking, closed by RST when dropped.
    pub legs: [Option<L>; 2],
    /// What the kernel says of each leg.
    pub counters: [Option<Counters>; 2],
}

impl<L> Survivor<L> {
    /// The same with its legs seen in another way.
    ///
    /// # Errors
    /// The first one of `see`.
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
