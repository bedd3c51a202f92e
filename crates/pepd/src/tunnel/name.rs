//! Peers that are called by name: their addresses are asked for until they are there.

use std::{io, time::Duration};

use pep_core::config::Endpoint;
use tokio::{net::lookup_host, time::sleep};
use tunnel::endpoint::PeerConfig;

use super::core::Shared;

/// Between two questions.
const AGAIN: Duration = Duration::from_secs(5);

/// How often the log tells of it.
const TOLD: Duration = Duration::from_secs(60);

/// Asks for the address of a peer, and again as long as there is no session with it.
pub(super) async fn resolve(core: Shared, peer: usize, endpoint: Endpoint, config: PeerConfig) {
    let mut config = config;
    let mut complaint = Complaint::default();
    loop {
        if !core.borrow_mut().has_session(peer) {
            let answer = lookup_host((endpoint.host.as_str(), endpoint.port)).await;
            match answer.map(|mut addresses| addresses.next()) {
                Ok(Some(address)) if config.address != Some(address) => {
                    config.address = Some(address);
                    core.borrow_mut().replace_peer(peer, &config);
                    complaint.over();
                }
                Ok(Some(_)) => complaint.over(),
                Ok(None) => complaint.tell(&core, peer, &endpoint, None),
                Err(err) => complaint.tell(&core, peer, &endpoint, Some(&err)),
            }
        }
        sleep(AGAIN).await;
    }
}

/// Tells at most once a minute that a name has no address.
#[derive(Debug, Default)]
struct Complaint {
    /// Not before.
    again: Option<Duration>,
}

impl Complaint {
    fn over(&mut self) {
        self.again = None;
    }

    fn tell(&mut self, core: &Shared, peer: usize, endpoint: &Endpoint, err: Option<&io::Error>) {
        let core = core.borrow();
        if !self.is_due(core.now()) {
            return;
        }
        let peer = core.peer_name(peer);
        let error = err.map(tracing::field::display);
        tracing::warn!(peer, %endpoint, error, "the name of a peer's endpoint has no address; asking again");
    }

    fn is_due(&mut self, now: Duration) -> bool {
        let is_due = self.again.is_none_or(|again| now >= again);
        if is_due {
            self.again = Some(now + TOLD);
        }
        is_due
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
    fn a_name_without_an_address_is_told_of_once_a_minute_while_it_lasts() {
        let mut complaint = Complaint::default();
        let mut due = |seconds| complaint.is_due(Duration::from_secs(seconds));
        let told: Vec<_> = [0, 5, 59, 60, 65, 119, 121].map(&mut due).into();
        assert_eq!(told, [true, false, false, true, false, false, true]);
        complaint.over();
        assert!(complaint.is_due(Duration::from_secs(122)));
    }

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
