//! Endpoint with one peer: handshakes, encryption, new sessions, other addresses.

use std::{
    net::{Ipv4Addr, SocketAddr},
    time::Duration,
};

use splitmix::mix;
use trace::Trace;
use tunnel::{
    crypto::public_key,
    ecn::Ecn,
    endpoint::{
        Carriers, Counters, DownReason, Endpoint, EndpointConfig, Limits, PeerConfig, PeerEvent,
        PeerId, Stores,
    },
    session::{Event, Session},
    store::Store,
    wire::CloseCode,
};

use crate::side::{Address, News, Setup, Side};

/// Endpoint with one configured peer.
#[derive(Debug)]
pub struct Sealed {
    endpoint: Endpoint,
    peer: PeerId,
}

/// Bytes of the single peer.
struct One<'a, S>(&'a mut S);

impl<S: Store> Stores for One<'_, S> {
    type Store = S;

    fn store_of(&mut self, _: PeerId) -> &mut S {
        self.0
    }
}

fn key(of: u64) -> [u8; 32] {
    let mut key = [0; 32];
    for (i, word) in key.chunks_mut(8).enumerate() {
        word.copy_from_slice(&mix(mix(of) ^ i as u64).to_be_bytes());
    }
    key
}

fn socket(address: Address) -> SocketAddr {
    (Ipv4Addr::new(192, 0, 2, 1), address).into()
}

impl Side for Sealed {
    type Streams = Session;

    fn new(setup: &Setup, _: Duration) -> Self {
        let private = |end| key(setup.seed ^ (1 + end as u64));
        let mut endpoint = Endpoint::new(&EndpointConfig {
            private_key: private(setup.end),
            seed: key(setup.seed ^ (77 + setup.incarnation * 2 + setup.end as u64)),
            limits: Limits::default(),
        });
        let peer = endpoint.add_peer(PeerConfig {
            public_key: public_key(&private(1 - setup.end)),
            psk: key(setup.seed ^ 3),
            addresses: setup.peer.map(socket).into_iter().collect(),
            last: None,
            carriers: Carriers::Udp,
            counters: Counters::default(),
            session: setup.session.clone(),
        });
        Self {
            endpoint,
            peer: peer.expect("single configured peer"),
        }
    }

    fn streams(&mut self) -> Option<&mut Session> {
        self.endpoint.session(self.peer)
    }

    fn handle_datagram(
        &mut self,
        now: Duration,
        from: Address,
        datagram: &mut [u8],
        store: &mut impl Store,
    ) -> Result<(), String> {
        let stores = &mut One(store);
        self.endpoint
            .handle_datagram(now, socket(from), Ecn::NotEct, datagram, stores);
        Ok(())
    }

    fn poll_datagram(
        &mut self,
        now: Duration,
        out: &mut Vec<u8>,
        store: &mut impl Store,
    ) -> Option<Option<Address>> {
        let transmit = self.endpoint.poll_transmit(now, out, &mut One(store))?;
        Some(Some(transmit.to.address.port()))
    }

    fn deadline(&mut self) -> Option<Duration> {
        self.endpoint.deadline()
    }

    fn poll_event(&mut self) -> Option<News> {
        loop {
            return Some(match self.endpoint.poll_event()?.1 {
                PeerEvent::Up => News::Fresh,
                PeerEvent::Down(DownReason::Protocol(reason)) => News::Session(Event::PeerClosed {
                    code: CloseCode::Protocol,
                    reason,
                }),
                PeerEvent::Down(_) => News::Gone,
                PeerEvent::Session(event) => News::Session(event),
                PeerEvent::Roamed(_) | PeerEvent::Failed(_) => continue,
            });
        }
    }

    fn trace(&mut self) -> Option<&mut Trace> {
        self.endpoint.trace(self.peer)
    }

    fn describe(datagram: &[u8]) -> String {
        format!("type {:?}, {} B", datagram.first(), datagram.len())
    }
}
