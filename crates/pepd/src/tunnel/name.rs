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
