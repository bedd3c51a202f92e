//! Flows that a peer may not open.

use pep_core::{
    pace::Line,
    reach::{Forbidden, Request},
    stream_header::StreamHeader,
};

use super::{Core, Kind};

impl Core {
    /// Decides whether a peer may open a flow.
    ///
    /// # Errors
    /// The reason for which it may not.
    pub(crate) fn may_open(&self, index: usize, request: &Request) -> Result<(), Forbidden> {
        self.far.check(&self.peers.list[index].reach, request)
    }

    /// Handles a flow that the peer may not open.
    pub(super) fn on_forbidden(&mut self, index: usize, header: &StreamHeader, why: Forbidden) {
        let counters = &self.context.counters;
        counters.update(|stats| stats.tunnel_flows_forbidden += 1);
        if let Some(Line { left_out }) = self.line(index, Kind::Forbidden) {
            let (peer, client, destination) =
                (self.peer_name(index), header.client, header.destination);
            tracing::warn!(
                peer,
                %client,
                %destination,
                left_out,
                "flow of the peer refused: {why}"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use pep_core::{
        reach::{Reach, Target},
        stream_header::{Opening, Resume},
    };
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::TcpListener,
        task::yield_now,
    };
    use tunnel::class::Class;

    use super::*;
    use crate::rig::Rig;

    /// Opens a stream as a peer that keeps no rules.
    async fn open(rig: &Rig, header: StreamHeader) {
        while !rig.near.borrow_mut().has_session(0) {
            yield_now().await;
        }
        let mut near = rig.near.borrow_mut();
        let id = near.peers.list[0].id;
        let session = near.endpoint.session(id).unwrap();
        let opening = Opening::Flow(header).emit();
        session.open(Class::Normal, 0, &opening).unwrap();
        near.wake_driver();
    }

    fn header(token: u128, client: &str, destination: SocketAddr) -> StreamHeader {
        StreamHeader {
            token,
            resume: None,
            destination,
            client: SocketAddr::new(client.parse().unwrap(), 4444),
            as_client: false,
            compressed: false,
            dscp: 0,
            site: "a".to_owned(),
        }
    }

    /// Opens a flow by each source, new and as one that resumes. Waits until all were refused.
    async fn refused(rig: &Rig, client: &str, destination: SocketAddr) {
        let before = Rig::stats(&rig.far).tunnel_flows_forbidden;
        let perhaps_new = Resume {
            down: 0,
            down_until: 1000,
            up: 0,
            perhaps_new: true,
        };
        let ways = [(false, None), (true, None), (true, Some(perhaps_new))];
        for (as_client, resume) in ways {
            let token = u128::from(Rig::stats(&rig.far).tunnel_flows_forbidden) + 1;
            let flow = StreamHeader {
                as_client,
                resume,
                ..header(token, client, destination)
            };
            open(rig, flow).await;
        }
        Rig::wait(&rig.far, |stats| stats.tunnel_flows_forbidden == before + 3).await;
    }

    /// Checks that a flow to the server works, and that none came before it.
    async fn only_this_one_arrives(rig: &Rig, server: &TcpListener) {
        let port = server.local_addr().unwrap().port();
        let mut client = rig.client(([127, 0, 0, 1], port).into()).await;
        client.write_all(b"good").await.unwrap();
        let mut first = server.accept().await.unwrap().0;
        let mut received = [0; 4];
        first.read_exact(&mut received).await.unwrap();
        assert_eq!(&received, b"good");
    }

    #[test]
    fn forged_clients_and_forbidden_destinations_are_refused_in_new_and_resumed_flows() {
        Rig::run(|rig| async move {
            let server = TcpListener::bind("0.0.0.0:0").await.unwrap();
            let at = |host: [u8; 4]| (host, server.local_addr().unwrap().port()).into();
            for client in [
                "0.0.0.0",
                "169.254.0.1",
                "224.0.0.1",
                "255.255.255.255",
                "127.1.0.9",
            ] {
                refused(&rig, client, at([127, 0, 0, 1])).await;
            }
            for host in [[127, 1, 0, 1], [127, 2, 0, 1], [0; 4], [169, 254, 169, 254]] {
                refused(&rig, "127.0.0.9", at(host)).await;
            }
            only_this_one_arrives(&rig, &server).await;
        });
    }

    #[test]
    fn a_peer_speaks_for_its_hosts_and_reaches_its_destinations_only() {
        Rig::run(|rig| async move {
            let server = TcpListener::bind("0.0.0.0:0").await.unwrap();
            let at = |host: [u8; 4]| (host, server.local_addr().unwrap().port()).into();
            // Loopback addresses count as those of 10.0.0.0/8.
            let net = |text: &str| text.parse().unwrap();
            let to = Target::Net {
                net: net("10.0.0.1/32"),
                ports: Vec::new(),
            };
            let (from, others) = (vec![net("10.0.0.0/16")], vec![net("10.0.5.0/24")]);
            let reach = Reach::new(Some(from), Some(vec![to]), others);
            rig.far.borrow_mut().peers.list[0].reach = reach;
            for client in ["127.3.0.1", "127.0.5.1"] {
                refused(&rig, client, at([127, 0, 0, 1])).await;
            }
            refused(&rig, "127.0.0.9", at([127, 0, 0, 2])).await;
            only_this_one_arrives(&rig, &server).await;
        });
    }

    /// Openings beyond the maximum cost no question to the kernel.
    #[test]
    fn beyond_the_maximum_of_flows_no_opening_is_checked() {
        Rig::run(|rig| async move {
            rig.far.borrow_mut().peers.list[0].table.set_flows_max(0);
            let forbidden = header(1, "127.1.0.9", ([127, 0, 0, 1], 9).into());
            open(&rig, forbidden).await;
            Rig::wait(&rig.far, |stats| stats.tunnel_flows_refused == 1).await;
            assert_eq!(Rig::stats(&rig.far).tunnel_flows_forbidden, 0);
        });
    }
}
