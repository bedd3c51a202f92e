//! Resolution of peers' host names: at start until the peer answers, and again when it is silent.

use std::{collections::BTreeSet, io, net::SocketAddr, time::Duration};

use pep_core::{config::Endpoint, lookups::Lookups};
use tokio::{net::lookup_host, time::sleep};

use super::{
    core::{Core, Shared},
    peers::listed,
};

/// Interval between checks whether the peer is heard.
const LOOK: Duration = Duration::from_millis(500);

/// Resolves a peer's addresses at start, and whenever the peer is silent. A running session keeps
/// its address.
pub(super) async fn resolve(core: Shared, peer: usize, endpoint: Endpoint) {
    let mut name = Name {
        peer,
        endpoint,
        lookups: Lookups::default(),
        known: BTreeSet::new(),
    };
    loop {
        let (now, is_settled) = {
            let core = core.borrow();
            (core.now(), core.is_settled(peer))
        };
        if name.lookups.is_due(now, is_settled) {
            let asked = (name.endpoint.host.as_str(), name.endpoint.port);
            let answer = lookup_host(asked).await.map(Vec::from_iter);
            name.take(&mut core.borrow_mut(), &answer);
        }
        sleep(LOOK).await;
    }
}

/// A peer's host name and its addresses.
struct Name {
    peer: usize,
    endpoint: Endpoint,
    lookups: Lookups,
    /// The last non-empty answer.
    known: BTreeSet<SocketAddr>,
}

impl Name {
    /// Handles an answer. After an empty one the previous addresses stay valid.
    fn take(&mut self, core: &mut Core, answer: &io::Result<Vec<SocketAddr>>) {
        let endpoint = &self.endpoint;
        let addresses = match answer {
            Ok(addresses) if !addresses.is_empty() => addresses,
            _ => {
                if self.lookups.on_failure(core.now()) {
                    let error = answer.as_ref().err().map(tracing::field::display);
                    let name = core.peer_name(self.peer);
                    tracing::warn!(
                        peer = name, %endpoint, error,
                        "peer endpoint does not resolve: pepd retries; fix `peer.{name}.endpoint` or \
                         the host's resolver"
                    );
                }
                return;
            }
        };
        if self.lookups.on_answer() {
            let peer = core.peer_name(self.peer);
            tracing::info!(peer, %endpoint, "peer endpoint resolves again");
        }
        // Many resolvers rotate the addresses in each answer: order is no change.
        let now: BTreeSet<_> = addresses.iter().copied().collect();
        if now == self.known {
            return;
        }
        let is_first = std::mem::replace(&mut self.known, now).is_empty();
        let before = listed(core.addresses(self.peer));
        core.set_addresses(self.peer, addresses);
        let addresses = listed(core.addresses(self.peer));
        let peer = core.peer_name(self.peer);
        if is_first {
            tracing::info!(peer, %endpoint, addresses, "peer endpoint resolved: pepd calls these addresses");
        } else {
            tracing::info!(
                peer, %endpoint, addresses, before,
                "peer endpoint resolves to other addresses: pepd calls the silent peer there, too"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        task::spawn_local,
    };

    use super::*;
    use crate::rig::{Rig, listener};

    #[test]
    fn a_peer_is_called_at_its_resolved_address_and_waiting_flows_start() {
        Rig::run_with(None, |rig| async move {
            let listener = listener().await;
            let mut client = rig.client(listener.local_addr().unwrap()).await;
            client.write_all(b"waits").await.unwrap();
            assert!(!rig.near.borrow_mut().has_session(0));
            let endpoint = Endpoint {
                host: "localhost".to_owned(),
                port: 2,
            };
            spawn_local(resolve(Rc::clone(&rig.near), 0, endpoint));
            let (mut server, _) = listener.accept().await.unwrap();
            let mut bytes = [0; 5];
            server.read_exact(&mut bytes).await.unwrap();
            assert_eq!(&bytes, b"waits");
        });
    }
}
