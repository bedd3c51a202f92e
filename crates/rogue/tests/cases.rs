//! All cases and floods against an end of a tunnel, in virtual time.

use std::{net::SocketAddr, time::Duration};

use rogue::{
    Side, Step, cases, floods,
    peer::{Config, Rogue, generous},
};
use splitmix::SplitMix64;
use tunnel::{
    crypto::public_key,
    ecn::Ecn,
    endpoint::{
        Carriers, Counters, DownReason, Endpoint, EndpointConfig, Limits, PeerConfig, PeerEvent,
        PeerId, Stores,
    },
    session::SessionConfig,
    store::Store,
    wire::StreamId,
};

struct NoBytes;

impl Store for NoBytes {
    fn read(&self, _: StreamId, _: u64, into: &mut [u8]) {
        into.fill(0);
    }

    fn place(&mut self, _: StreamId, _: u64, _: &[u8]) {}
}

impl Stores for NoBytes {
    type Store = Self;

    fn store_of(&mut self, _: PeerId) -> &mut Self {
        self
    }
}

const ROGUE: [u8; 32] = [1; 32];
const HONEST: [u8; 32] = [2; 32];

fn address(of: u8) -> SocketAddr {
    ([192, 0, 2, of], 5001).into()
}

/// An honest end and a rogue one, which calls it or is called.
struct Bed {
    now: Duration,
    honest: Endpoint,
    peer: PeerId,
    rogue: Rogue,
    /// Last reason for which the honest end ended a session.
    down: Option<DownReason>,
}

impl Bed {
    fn new(rogue_calls: bool) -> Self {
        let mut honest = Endpoint::new(&EndpointConfig {
            private_key: HONEST,
            seed: [3; 32],
            limits: Limits {
                initiations_open: 1 << 20,
                ..Limits::default()
            },
        });
        let peer = honest.add_peer(PeerConfig {
            public_key: public_key(&ROGUE),
            psk: [5; 32],
            addresses: (!rogue_calls).then(|| address(1)).into_iter().collect(),
            last: None,
            carriers: Carriers::Udp,
            counters: Counters::default(),
            session: SessionConfig {
                packets: true,
                ..SessionConfig::default()
            },
        });
        let config = Config {
            private_key: ROGUE,
            public_key: public_key(&HONEST),
            psk: [5; 32],
            other: rogue_calls.then(|| address(2)),
            carriers: Carriers::Udp,
            session: generous(),
        };
        Self {
            now: Duration::from_secs(1),
            honest,
            peer: peer.expect("the first peer"),
            rogue: Rogue::new(config, 7),
            down: None,
        }
    }

    fn give(&mut self, mut datagram: Vec<u8>) {
        let (now, from) = (self.now, address(1));
        self.honest
            .handle_datagram(now, from, Ecn::NotEct, &mut datagram, &mut NoBytes);
    }

    /// Lets a millisecond pass.
    fn pass(&mut self) {
        self.now += Duration::from_millis(1);
        let mut out = Vec::new();
        while self.rogue.poll(self.now, &mut out).is_some() {
            self.give(std::mem::take(&mut out));
        }
        // A session may send without end, but not within a millisecond.
        for turn in 0.. {
            assert!(turn < 10_000, "it never stops sending");
            let mut out = Vec::new();
            let sent = self.honest.poll_transmit(self.now, &mut out, &mut NoBytes);
            if sent.is_none() {
                break;
            }
            self.rogue.handle(self.now, address(2).into(), &mut out);
        }
        while let Some((_, event)) = self.honest.poll_event() {
            if let PeerEvent::Down(reason) = event {
                self.down = Some(reason);
            }
        }
    }

    /// Waits for a session at both ends.
    fn connect(&mut self, what: &str) {
        self.rogue.renew();
        self.down = None;
        for _ in 0..20_000 {
            self.pass();
            let state = self.honest.peer_state(self.peer);
            if self.rogue.is_up() && state.is_some_and(|state| state.up) {
                self.down = None;
                return;
            }
        }
        panic!("no session after {what}");
    }

    fn take(&mut self, step: &Step) {
        if let Some(datagram) = self.rogue.step(self.now, step) {
            self.give(datagram);
        }
        self.pass();
    }
}

/// Plays each of so many cases. Messages of packet mode are not the tunnel's own.
fn play(side: Side, each: usize) {
    let mut bed = Bed::new(side == Side::Caller);
    let mut cases = cases::all(side);
    cases.retain(|case| !case.row.starts_with("message"));
    for case in cases.iter().step_by(each) {
        let name = format!("{}: {}", case.row, case.name);
        bed.connect(&name);
        for step in &case.steps {
            bed.take(step);
        }
        if case.ends {
            let ended = matches!(bed.down, Some(DownReason::Protocol(_)));
            assert!(ended, "{name}: {:?}", bed.down);
        }
    }
    bed.connect("all cases");
}

#[test]
fn nothing_panics_and_each_packet_that_is_cut_ends_the_session() {
    play(Side::Caller, 1);
}

/// A rogue hub does to a boat what a rogue boat does to a hub. The boat takes seconds to notice the
/// end of each session.
#[test]
fn a_rogue_that_is_called_harms_no_caller() {
    play(Side::Called, 20);
}

#[test]
fn floods_end_in_a_session_that_works() {
    let target = |side| floods::Target {
        side,
        server: address(10),
        source: address(13),
        refused: address(11),
        silent: address(0),
        client: address(12),
        packets: address(10),
        inner: address(12),
        inner6: (std::net::Ipv6Addr::LOCALHOST, 5001).into(),
        other: address(14),
    };
    for (flood, side) in floods::ALL
        .iter()
        .flat_map(|flood| [(flood, Side::Caller), (flood, Side::Called)])
    {
        let (mut bed, target) = (Bed::new(side == Side::Caller), target(side));
        let mut random = SplitMix64::new(1);
        let mut turn = 0;
        for _ in 0..200 {
            if !bed.rogue.is_up() {
                bed.connect(flood.name);
                turn = 0;
            }
            for step in (flood.turn)(turn, &target, &mut random) {
                bed.take(&step);
            }
            turn += 1;
        }
        bed.connect(flood.name);
    }
}
