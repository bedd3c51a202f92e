//! The MSS that rules of other programs give to forwarded SYNs.

use std::{
    io,
    sync::atomic::{AtomicU16, Ordering::Relaxed},
};

use socket2::Socket;

use super::Family;

/// MSS of each family to which rules of other programs lower that of forwarded SYNs, as last seen.
///
/// Operators write such rules where a link takes less than its interface says (PPPoE, LTE). Those
/// SYNs would be hosts' own, which server legs replace: these have no more than that either.
#[derive(Debug, Default)]
pub struct Clamps([AtomicU16; 2]);

impl Clamps {
    /// Sets it, in bytes; `None` where there is no such rule. Returns true where that is a change.
    pub fn set(&self, family: Family, mss: Option<u16>) -> bool {
        let mss = mss.unwrap_or(0);
        self.of(family).swap(mss, Relaxed) != mss
    }

    /// Lowers the MSS of a socket that is to connect; `own` is what it has already.
    ///
    /// # Errors
    /// What the kernel has against it; less than 88 bytes, for one.
    pub fn apply(&self, socket: &Socket, family: Family, own: Option<u16>) -> io::Result<()> {
        match self.of(family).load(Relaxed) {
            0 => Ok(()),
            mss if own.is_some_and(|own| own <= mss) => Ok(()),
            mss => socket.set_tcp_mss(mss.into()),
        }
    }

    fn of(&self, family: Family) -> &AtomicU16 {
        &self.0[usize::from(family == Family::V6)]
    }
}
