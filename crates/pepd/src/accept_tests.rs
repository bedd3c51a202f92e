use std::net::{TcpListener, TcpStream};

use pep_core::{budget::MemoryBudget, config::CongestionName, relay::RelayLimits};
use tokio::runtime;

use super::*;
use crate::{
    arena::{Arena, Geometry},
    gate::Gate,
    leg::{Congestion, tests::site},
    limits::Admission,
    stats::Counters,
};

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
        unanswered: Arc::default(),
    })
}

/// As when a module is removed, or a capability dropped, after the start.
#[test]
fn while_legs_are_refused_the_gate_is_closed_and_attempts_are_few() {
    let mut site = site();
    let nobody_has_it: CongestionName = "nobody_has_it".parse().unwrap();
    site.server.congestion = Congestion::Named(nobody_has_it);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let _waiting = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    listener.set_nonblocking(true).unwrap();
    let listener = Listener {
        site: Arc::new(site),
        family: Family::V4,
        sockets: vec![listener.into()],
    };
    let context = context();
    let runtime = runtime::Builder::new_current_thread().enable_all().build();
    runtime.unwrap().block_on(async {
        let acceptor = Acceptor::new(Arc::clone(&context), &listener, 0).unwrap();
        let accepting = tokio::spawn(acceptor.run());
        // An acceptor that does not pause never lets this one wait.
        sleep(Duration::from_millis(500)).await;
        accepting.abort();
    });
    let stats = context.counters.snapshot();
    assert!((1..=5).contains(&stats.legs_failed), "{stats:?}");
    assert_eq!(*context.admission.gate().borrow(), Gate::Closed);
    assert_eq!(stats.flows_accepted, 0);
    assert_eq!(context.budget.taken(), 0, "what was reserved is given back");
}
