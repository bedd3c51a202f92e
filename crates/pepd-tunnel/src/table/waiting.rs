//! Received bytes that legs could take and have not, by host.
//!
//! Bytes that wait take from the credit of all flows of the peer. A host whose connections read
//! little would stop the tunnel for others. So a host may have half of what the other hosts leave
//! of the part for such bytes. Beyond it, its flows with more than a chunk are held: the peer is
//! asked to send no more of them until their legs have taken bytes.

use std::collections::BTreeMap;

use pep_core::hosts::Host;

/// Bytes that each flow may have waiting in any case: one chunk, which every flow begins with.
const EACH: u64 = 64 << 10;

/// Waiting bytes of a peer's flows. Flows whose host is not known yet count as one host's.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    all: u64,
    by_host: BTreeMap<Option<Host>, u64>,
    /// Bytes that may wait for all hosts together.
    part: u64,
}

impl Waiting {
    /// Returns the bytes of all hosts.
    pub(super) fn all(&self) -> u64 {
        self.all
    }

    /// Sets how many bytes may wait for all hosts together.
    pub(super) fn set_part(&mut self, part: u64) {
        self.part = part;
    }

    pub(super) fn add(&mut self, host: Option<Host>, bytes: u64) {
        if bytes > 0 {
            self.all += bytes;
            *self.by_host.entry(host).or_default() += bytes;
        }
    }

    /// Removes bytes that were added.
    pub(super) fn remove(&mut self, host: Option<Host>, bytes: u64) {
        self.all -= bytes;
        if let Some(left) = self.by_host.get_mut(&host) {
            *left -= bytes;
            if *left == 0 {
                self.by_host.remove(&host);
            }
        }
    }

    /// Returns whether a flow of the host that has `own` bytes waiting is to be held, or to stay
    /// so.
    pub(super) fn is_to_be_held(&self, host: Option<Host>, own: u64, is_held: bool) -> bool {
        // A held flow gets more a while before its leg has nothing left to take.
        let each = if is_held { EACH / 2 } else { EACH };
        let of_host = self.by_host.get(&host).copied().unwrap_or_default();
        let others = self.all - of_host;
        own > each && of_host > self.part.saturating_sub(others) / 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn host(number: u8) -> Option<Host> {
        Some(Host::from_address([10, 0, 0, number].into()))
    }

    #[test]
    fn each_host_has_half_of_what_others_leave() {
        let mut waiting = Waiting::default();
        waiting.set_part(64 * MIB);
        let mut held_at = |host| {
            let mut flows = [0; 100];
            for turn in 0.. {
                let own = &mut flows[turn % 100];
                if waiting.is_to_be_held(host, *own, false) {
                    break;
                }
                *own += MIB / 8;
                waiting.add(host, MIB / 8);
            }
            waiting.by_host[&host] / MIB
        };
        assert_eq!([1, 2, 3].map(|number| held_at(host(number))), [32, 16, 12]);
    }

    #[test]
    fn a_held_flow_goes_on_once_its_leg_has_taken_bytes_or_its_host_has_few() {
        let mut waiting = Waiting::default();
        waiting.set_part(2 * MIB);
        waiting.add(host(1), 2 * MIB);
        assert!(waiting.is_to_be_held(host(1), MIB, false));
        assert!(!waiting.is_to_be_held(host(1), EACH, false));
        assert!(waiting.is_to_be_held(host(1), EACH, true));
        assert!(!waiting.is_to_be_held(host(1), EACH / 2, true));
        assert!(!waiting.is_to_be_held(host(2), MIB, false));
        waiting.remove(host(1), MIB);
        assert!(!waiting.is_to_be_held(host(1), MIB, true));
        waiting.remove(host(1), MIB);
        assert!(waiting.by_host.is_empty() && waiting.all() == 0);
    }
}
