//! Datagrams and connections that arrive at one tunnel thread and are for another.

use std::{net::IpAddr, rc::Rc, time::Duration};

use tunnel::{ecn::Ecn, endpoint::Remote};

use super::{Core, Shared};
use crate::{
    shards::{Datagram, Passed},
    tcp,
};

impl Core {
    /// Handles a datagram that arrived by UDP at this time, or passes it to the thread of its peer.
    pub(crate) fn take_datagram(
        &mut self,
        arrived: Duration,
        (from, to): (Remote, Option<IpAddr>),
        ecn: Ecn,
        datagram: &mut [u8],
    ) {
        let copy = |bytes: &[u8]| Datagram {
            at: arrived,
            from,
            to,
            ecn,
            bytes: bytes.into(),
        };
        if let Some(owner) = self.member.owner(datagram) {
            self.pass(owner, Passed::Datagram(copy(datagram)));
            return;
        }
        self.handle_datagram(arrived, from, to, ecn, datagram);
        if let Some(owner) = self.endpoint.take_elsewhere() {
            self.pass(owner, Passed::Initiation(copy(datagram)));
        }
    }

    /// Passes something to another thread. Returns false if that thread is full or has ended: the
    /// thing is lost, and counts as a datagram that the kernel dropped.
    pub(crate) fn pass(&self, to: u16, passed: Passed) -> bool {
        let has_room = self.member.pass(to, passed);
        if !has_room {
            let counters = &self.context.counters;
            counters.update(|stats| stats.tunnel_datagrams_dropped += 1);
        }
        has_room
    }

    /// Handles what another thread has passed.
    pub(crate) fn on_passed(shared: &Shared, passed: Passed) {
        let core = &mut *shared.borrow_mut();
        match passed {
            Passed::Datagram(Datagram {
                at,
                from,
                to,
                ecn,
                mut bytes,
            }) => core.receive(at, (from, to), ecn, &mut bytes),
            Passed::Initiation(initiation) => core.handle_admitted(&initiation),
            Passed::Connection {
                stream,
                received,
                unsent,
                mut first,
                admitted,
            } => {
                let at = first.from.address;
                match core.take_connection(at, stream, unsent) {
                    Ok((stream, id)) => {
                        let connection = tcp::run(Rc::clone(shared), stream, (at, id), received);
                        tokio::task::spawn_local(connection);
                        if admitted {
                            core.handle_admitted(&first);
                        } else {
                            core.take_from_tcp(at, id, &mut first.bytes);
                        }
                    }
                    Err(err) => {
                        tracing::debug!(%at, error = %err, "TCP connection to a peer closed");
                    }
                }
            }
        }
    }
}
