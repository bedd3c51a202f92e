//! Peers that are called by name: their addresses are asked for until they are there.

use std::time::Duration;

use pep_core::config::Endpoint;
use tokio::{net::lookup_host, time::sleep};
use tunnel::endpoint::PeerConfig;

use super::core::Shared;

/// Between two questions.
const AGAIN: Duration = Duration::from_secs(5);

/// Asks for the address of a peer, and again as long as there is no session with it.
pub(super) async fn resolve(core: Shared, peer: usize, endpoint: Endpoint, config: PeerConfig) {
    let mut config = config;
    let mut told = false;
    loop {
        if !core.borrow_mut().has_session(peer) {
            let answer = lookup_host((endpoint.host.as_str(), endpoint.port)).await;
            match answer.map(|mut addresses| addresses.next()) {
                Ok(Some(address)) if config.address != Some(address) => {
                    config.address = Some(address);
                    core.borrow_mut().replace_peer(peer, &config);
                    told = false;
                }
                Ok(Some(_)) => told = false,
                Ok(None) | Err(_) if told => {}
                answer => {
                    let error = answer.err();
                    tracing::warn!(%endpoint, ?error, "the name of a peer has no address; asking again");
                    told = true;
                }
            }
        }
        sleep(AGAIN).await;
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
    use crate::tunnel::rig::{Rig, listener, peer_config};

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
            let config = peer_config(2, None);
            spawn_local(resolve(Rc::clone(&rig.near), 0, endpoint, config));
            let (mut server, _) = listener.accept().await.unwrap();
            let mut bytes = [0; 5];
            server.read_exact(&mut bytes).await.unwrap();
            assert_eq!(&bytes, b"waits");
        });
    }
}
