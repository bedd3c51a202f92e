use std::{
    net::{TcpListener, TcpStream},
    time::Duration,
};

use futures_util::FutureExt as _;
use pep_core::{budget::MemoryBudget, config::CongestionName, relay::RelayLimits};
use pepd_relay::{
    arena::{Arena, Geometry},
    limits::Admission,
};
use pepd_sys::{
    gate::Gate,
    leg::{Congestion, testing::site},
    stats::Counters,
};
use tokio::runtime;

use super::*;

const RING: u64 = 1 << 14;

fn context() -> Arc<FlowContext> {
    let geometry = Geometry {
        slots: 2,
        extent: RING,
        initial: RING,
    };
    let counters = Arc::new(Counters::default());
    Arc::new(FlowContext {
        arena: Arena::new(geometry).unwrap(),
        budget: Arc::new(MemoryBudget::new(1 << 20)),
        limits: RelayLimits {
            ring_initial: RING,
            ring_max: RING,
            turn_bytes: RING,
        },
        busy_poll: Duration::ZERO,
        admission: Admission::new(2, Arc::clone(&counters)),
        counters,
        held: None,
        other_marks: None,
        end_lines: Default::default(),
        client_ports: Default::default(),
        unanswered: Arc::default(),
        silence: Default::default(),
        heartbeat: Default::default(),
        outage: pepd_relay::outage::unknown_link(),
        link: None,
        watchers: Arc::default(),
        recorders: Arc::default(),
    })
}

/// As when a module is removed, or a capability dropped, after the start.
#[test]
fn while_legs_are_refused_the_gate_is_closed_and_the_acceptor_waits() {
    let mut site = site();
    let nobody_has_it: CongestionName = "nobody_has_it".parse().unwrap();
    site.server.congestion = Congestion::Named(nobody_has_it);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let _waiting = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    listener.set_nonblocking(true).unwrap();
    let listener = Listener {
        site: Arc::new(site),
        family: Family::V4,
        socket: listener.into(),
        route: None,
    };
    let context = context();
    let runtime = runtime::Builder::new_current_thread().enable_all().build();
    runtime.unwrap().block_on(async {
        let mut acceptor = Acceptor::new(Arc::clone(&context), listener).unwrap();
        let err = acceptor.accept().await.unwrap_err();
        assert!(matches!(err, AcceptError::Reserve(_)), "{err:?}");
        // It does not return at once, only to fail again.
        assert_eq!(acceptor.on_error(&err).now_or_never(), None);
    });
    let stats = context.counters.snapshot();
    assert_eq!(stats.legs_failed, 1);
    assert_eq!(*context.admission.gate().borrow(), Gate::Closed);
    assert_eq!(stats.flows_accepted, 0);
    assert_eq!(context.budget.taken(), 0, "the reservation is released");
}
