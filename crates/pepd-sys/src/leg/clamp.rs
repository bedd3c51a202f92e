//! MSS clamping by other programs' rules for forwarded SYNs.

use std::{
    io,
    sync::atomic::{AtomicU16, Ordering::Relaxed},
};

use socket2::Socket;

use super::Family;

/// The MSS to which other programs' rules lower forwarded SYNs, per family, as last seen.
///
/// Operators write such rules where a link's MTU is below its interface's (PPPoE, LTE). They match
/// the hosts' SYNs, which server legs replace, so server legs apply the same limit.
#[derive(Debug, Default)]
pub struct Clamps([AtomicU16; 2]);

impl Clamps {
    /// Sets the MSS in bytes, `None` if there is no such rule. Returns true if it changed.
    pub fn set(&self, family: Family, mss: Option<u16>) -> bool {
        let mss = mss.unwrap_or(0);
        self.for_family(family).swap(mss, Relaxed) != mss
    }

    /// Lowers the MSS of a socket before it connects; `own` is its present setting.
    ///
    /// # Errors
    /// When the kernel rejects the value, for example below 88 bytes.
    pub fn apply(&self, socket: &Socket, family: Family, own: Option<u16>) -> io::Result<()> {
        match self.for_family(family).load(Relaxed) {
            0 => Ok(()),
            mss if own.is_some_and(|own| own <= mss) => Ok(()),
            mss => socket.set_tcp_mss(mss.into()),
        }
    }

    fn for_family(&self, family: Family) -> &AtomicU16 {
        &self.0[usize::from(family == Family::V6)]
    }
}
