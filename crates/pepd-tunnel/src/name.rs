//! Peers that are called by name: pepd asks for their addresses until they are heard, and again
//! when they are silent.

use std::{collections::BTreeSet, io, net::SocketAddr, time::Duration};

use pep_core::{config::Endpoint, lookups::Lookups};
use tokio::{net::lookup_host, time::sleep};

use super::{
    core::{Core, Shared},
    peers::listed,
};

/// Time between two looks at whether the peer is heard.
const LOOK: Duration = Duration::from_millis(500);

/// Asks for the addresses of a peer at first, and whenever it is not heard. A session goes on where
/// it is.
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

/// A peer's name, and what it has led to.
struct Name {
    peer: usize,
    endpoint: Endpoint,
    lookups: Lookups,
    /// The last answer that had any.
    known: BTreeSet<SocketAddr>,
}

impl Name {
    /// Takes note of an answer. Without an address in it, those of before are good until there are
    /// others.
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
                        "the name of a peer's endpoint has no address now: pepd asks again, and ends no \
                         session meanwhile. Correct `peer.{name}.endpoint`, or this machine's resolver"
                    );
                }
                return;
            }
        };
        if self.lookups.on_answer() {
            let peer = core.peer_name(self.peer);
            tracing::info!(peer, %endpoint, "the name of a peer's endpoint has an address again");
        }
        // Many resolvers turn the order with each answer: that is no change.
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
            tracing::info!(peer, %endpoint, addresses, "pepd calls the peer at these addresses");
        } else {
            tracing::info!(
                peer, %endpoint, addresses, before,
                "the name of a peer's endpoint leads elsewhere: pepd calls the silent peer there, too"
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
    fn a_peer_is_called_where_its_name_leads_and_flows_that_waited_go_on() {
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
