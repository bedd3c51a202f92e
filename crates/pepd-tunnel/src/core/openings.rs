//! Pace of the connections to servers that pepd begins for a peer (`openings` of `[peer.NAME]`).
//!
//! Openings beyond it wait, as flows without a leg: the limits on streams and flows bound their
//! number, and `timeouts.connect` their wait. The client's hosts take turns, so that one with many
//! openings delays another by one connection per turn. Those of one host wait in the order of their
//! arrival. A peer may invent clients, and delays its own hosts by that only.

use std::{cell::RefCell, net::IpAddr, rc::Rc, time::Duration};

use pep_core::{
    hosts::Host,
    pace::Pace,
    round_robin::{Place, RoundRobin},
};
use tokio::{sync::Notify, time::sleep};

use super::{Core, Shared};

/// Openings of one peer.
#[derive(Debug)]
pub(super) struct Openings {
    /// Never borrowed across an await.
    state: RefCell<State>,
}

/// Time for which the kernel remembers a connection that is over or unanswered
/// (`nf_conntrack_tcp_timeout_time_wait`, `nf_conntrack_tcp_timeout_syn_sent`).
const REMEMBERED: Duration = Duration::from_secs(120);

/// The part of remembered connections that a peer may have: a quarter.
const PART: u32 = 4;

#[derive(Debug)]
struct State {
    /// By the second, and by the connections that the kernel remembers.
    paces: [Pace; 2],
    /// Openings that wait, woken when they are next. The next one waits for the pace, and all
    /// others for it.
    waiting: RoundRobin<Host, Rc<Notify>>,
}

impl Openings {
    /// Creates the state for that many a second, 1 or more, where the kernel tracks at most that
    /// many connections (`nf_conntrack_max`): beyond them it drops those of everybody.
    pub(super) fn new(per_second: u32, tracked_max: Option<u32>) -> Rc<Self> {
        let part = tracked_max.map_or(u32::MAX, |max| (max / PART).max(1));
        Self::with([
            Pace::new(Duration::from_secs(1) / per_second, per_second),
            Pace::new(REMEMBERED / part, part),
        ])
    }

    fn with(paces: [Pace; 2]) -> Rc<Self> {
        let state = State {
            paces,
            waiting: RoundRobin::default(),
        };
        Rc::new(Self {
            state: RefCell::new(state),
        })
    }

    /// Returns whether an opening need not wait.
    fn take(&self, now: Duration) -> bool {
        let state = &mut *self.state.borrow_mut();
        state.waiting.is_empty() && state.pause(now).is_zero()
    }

    /// Waits until an opening of the host may connect. An opening that is given up leaves its
    /// queue.
    async fn wait(&self, host: Host, now: impl Fn() -> Duration) {
        let is_next = Rc::new(Notify::new());
        let place = {
            let waiting = &mut self.state.borrow_mut().waiting;
            waiting.push(host, Rc::clone(&is_next))
        };
        let waiter = Waiter {
            openings: self,
            place,
        };
        loop {
            match waiter.begin(now()) {
                Wait::Over => return,
                Wait::Pace(wait) => sleep(wait).await,
                Wait::Others => is_next.notified().await,
            }
        }
    }
}

impl State {
    /// Returns how long the next opening must wait. Records it if it need not.
    fn pause(&mut self, now: Duration) -> Duration {
        let [second, remembered] = &mut self.paces;
        let wait = second.wait(now).max(remembered.wait(now));
        if wait.is_zero() {
            second.take(now);
            remembered.take(now);
        }
        wait
    }
}

/// Reason for which an opening waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wait {
    Over,
    /// The pace, which has room after that time.
    Pace(Duration),
    /// Openings before it.
    Others,
}

/// An opening that waits.
#[derive(Debug)]
struct Waiter<'a> {
    openings: &'a Openings,
    place: Place<Host>,
}

impl Waiter<'_> {
    /// Begins the opening if it is next and within the pace.
    fn begin(&self, now: Duration) -> Wait {
        let state = &mut *self.openings.state.borrow_mut();
        let first = state.waiting.first().map(|(place, _)| place);
        if first != Some(self.place) {
            return Wait::Others;
        }
        let wait = state.pause(now);
        if !wait.is_zero() {
            return Wait::Pace(wait);
        }
        state.waiting.pop();
        Wait::Over
    }
}

impl Drop for Waiter<'_> {
    /// Leaves the queue, and wakes whoever is next.
    fn drop(&mut self) {
        let waiting = &mut self.openings.state.borrow_mut().waiting;
        waiting.remove(self.place);
        if let Some((_, is_next)) = waiting.first() {
            is_next.notify_one();
        }
    }
}

impl Core {
    /// Waits until a flow of the peer's client may connect to its server.
    pub(crate) async fn admit_opening(shared: &Shared, index: usize, client: IpAddr) {
        let openings = {
            let core = &*shared.borrow();
            let openings = &core.peers.list[index].openings;
            if openings.take(core.now()) {
                return;
            }
            let counters = &core.context.counters;
            counters.update(|stats| stats.tunnel_openings_delayed += 1);
            Rc::clone(openings)
        };
        let host = Host::from_address(client);
        openings.wait(host, || shared.borrow().now()).await;
    }
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        task::{JoinHandle, LocalSet, spawn_local, yield_now},
        time::Instant,
    };

    use super::*;
    use crate::rig::{Rig, listener};

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn openings_beyond_the_pace_wait_and_one_that_is_reset_costs_no_connection() {
        Rig::run(|rig| async move {
            let hour = Duration::from_secs(3600);
            let openings = Openings::with([Pace::new(hour, 1); 2]);
            rig.far.borrow_mut().peers.list[0].openings = Rc::clone(&openings);
            let listener = listener().await;
            let at = listener.local_addr().unwrap();
            let _first = rig.client(at).await;
            let _server = listener.accept().await.unwrap();
            let mut second = rig.client(at).await;
            second.write_all(b"2").await.unwrap();
            Rig::wait(&rig.far, |stats| stats.tunnel_openings_delayed == 1).await;
            let linger = Some(Duration::ZERO);
            socket2::SockRef::from(&second).set_linger(linger).unwrap();
            drop(second);
            Rig::wait(&rig.far, |stats| stats.ended_client_reset == 1).await;
            openings.state.borrow_mut().paces = [Pace::new(MS, 1000); 2];
            let mut third = rig.client(at).await;
            third.write_all(b"3").await.unwrap();
            let (mut server, _) = listener.accept().await.unwrap();
            let mut byte = [0];
            server.read_exact(&mut byte).await.unwrap();
            assert_eq!(byte, *b"3", "the second is not connected");
        });
    }

    #[test]
    fn a_peer_leaves_three_quarters_of_tracked_connections_to_others() {
        let begun = |tracked: Option<u32>| {
            let openings = Openings::new(1000, tracked);
            let times = (0..120_000).map(|step| MS * step);
            times.filter(|now| openings.take(*now)).count()
        };
        assert_eq!(begun(None), 120_000);
        // A quarter at once, and what the kernel forgets meanwhile.
        assert!((32_700..=32_768).contains(&begun(Some(65_536))));
    }

    #[test]
    fn openings_wait_by_the_host_of_their_client() {
        Rig::run(|rig| async move {
            let openings = Openings::with([Pace::new(MS * 3_600_000, 1); 2]);
            rig.far.borrow_mut().peers.list[0].openings = Rc::clone(&openings);
            let listener = listener().await;
            let at = listener.local_addr().unwrap();
            let _first = rig.client(at).await;
            let _server = listener.accept().await.unwrap();
            let _second = rig.client(at).await;
            Rig::wait(&rig.far, |stats| stats.tunnel_openings_delayed == 1).await;
            let waiting = &mut openings.state.borrow_mut().waiting;
            let (place, _) = waiting.first().unwrap();
            let client = Host::from_address([127, 0, 0, 1].into());
            let expected = RoundRobin::default().push(client, ());
            assert_eq!(place, expected, "the first of that host");
        });
    }

    /// Openings of one peer in virtual time, one a millisecond.
    struct Scene {
        openings: Rc<Openings>,
        start: Instant,
        /// Hosts whose openings were admitted, with the time.
        admitted: Rc<RefCell<Vec<(u8, Duration)>>>,
    }

    impl Scene {
        fn run<F: Future<Output = ()>>(test: impl FnOnce(Self) -> F) {
            let mut runtime = tokio::runtime::Builder::new_current_thread();
            let runtime = runtime.enable_time().start_paused(true).build().unwrap();
            LocalSet::new().block_on(&runtime, async {
                let scene = Self {
                    openings: Openings::with([Pace::new(MS, 1); 2]),
                    start: Instant::now(),
                    admitted: Rc::default(),
                };
                assert!(scene.openings.take(scene.start.elapsed()));
                test(scene).await;
            });
        }

        /// Begins an opening, which has to wait.
        async fn open(&self, host: u8) -> JoinHandle<()> {
            assert!(!self.openings.take(self.start.elapsed()));
            let (openings, admitted) = (Rc::clone(&self.openings), Rc::clone(&self.admitted));
            let start = self.start;
            let task = spawn_local(async move {
                let address = Host::from_address([10, 0, 0, host].into());
                openings.wait(address, || start.elapsed()).await;
                admitted.borrow_mut().push((host, start.elapsed()));
            });
            yield_now().await;
            task
        }

        fn hosts(&self) -> Vec<u8> {
            let admitted = self.admitted.borrow();
            admitted.iter().map(|(host, _)| *host).collect()
        }
    }

    #[test]
    fn a_host_with_many_openings_delays_another_by_one_per_turn() {
        Scene::run(|scene| async move {
            let mut tasks = Vec::new();
            for _ in 0..1500 {
                tasks.push(scene.open(1).await);
            }
            for host in [2, 3, 2] {
                tasks.push(scene.open(host).await);
            }
            for task in tasks {
                task.await.unwrap();
            }
            assert_eq!(scene.hosts()[..7], [1, 2, 3, 1, 2, 1, 1]);
            let admitted = scene.admitted.borrow();
            let (_, last) = admitted.last().unwrap();
            // The timer counts whole milliseconds.
            assert!(*last >= MS * 1502 && *last <= MS * 1510, "{last:?}");
            let state = scene.openings.state.borrow();
            assert!(state.waiting.is_empty());
        });
    }

    #[test]
    fn an_opening_that_is_given_up_leaves_its_queue() {
        Scene::run(|scene| async move {
            let mut tasks = Vec::new();
            for host in [1, 1, 2, 3] {
                tasks.push(scene.open(host).await);
            }
            // The next one, which waits for the pace, and one that waits for it.
            for given_up in [0, 2] {
                tasks[given_up].abort();
            }
            for (number, task) in tasks.into_iter().enumerate() {
                assert_eq!(task.await.is_err(), [0, 2].contains(&number));
            }
            assert_eq!(scene.hosts(), [1, 3]);
            assert!(scene.openings.state.borrow().waiting.is_empty());
        });
    }

    #[test]
    fn openings_of_one_host_begin_in_the_order_of_their_arrival() {
        Scene::run(|scene| async move {
            let (order, mut tasks) = (Rc::new(RefCell::new(Vec::new())), Vec::new());
            for number in 0..10_u8 {
                let (openings, order) = (Rc::clone(&scene.openings), Rc::clone(&order));
                let start = scene.start;
                tasks.push(spawn_local(async move {
                    // Addresses of one /64.
                    let address = std::net::Ipv6Addr::from(u128::from(number) + (0xfd << 120));
                    let host = Host::from_address(address.into());
                    openings.wait(host, || start.elapsed()).await;
                    order.borrow_mut().push(number);
                }));
            }
            for task in tasks {
                task.await.unwrap();
            }
            assert_eq!(*order.borrow(), Vec::from_iter(0..10));
        });
    }
}
