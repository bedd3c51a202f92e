//! Pace of the connections to servers that pepd begins for a peer (`openings` of `[peer.NAME]`).
//!
//! Openings beyond it wait in the order of their arrival, as flows without a leg: the limits on
//! streams and flows bound their number, and `timeouts.connect` their wait.

use std::{rc::Rc, time::Duration};

use pep_core::pace::Pace;
use tokio::{sync::Mutex, time::sleep};

use super::{Core, Shared};

/// Openings of one peer. Whoever holds the lock is next.
#[derive(Debug)]
pub(super) struct Openings {
    pace: Mutex<Pace>,
}

impl Openings {
    /// Creates the state for that many a second, 1 or more.
    pub(super) fn new(per_second: u32) -> Rc<Self> {
        let pace = Pace::new(Duration::from_secs(1) / per_second, per_second);
        Rc::new(Self {
            pace: Mutex::new(pace),
        })
    }

    /// Returns whether an opening need not wait.
    fn take(&self, now: Duration) -> bool {
        let pace = self.pace.try_lock();
        pace.is_ok_and(|mut pace| pace.take(now))
    }
}

impl Core {
    /// Waits until a flow of the peer may connect to its server.
    pub(crate) async fn admit_opening(shared: &Shared, index: usize) {
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
        // First come, first served; an opening that is given up leaves the queue.
        let mut pace = openings.pace.lock().await;
        loop {
            let now = shared.borrow().now();
            if pace.take(now) {
                return;
            }
            sleep(pace.wait(now)).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;
    use crate::rig::{Rig, listener};

    #[test]
    fn openings_beyond_the_pace_wait_and_one_that_is_reset_costs_no_connection() {
        Rig::run(|rig| async move {
            let hour = Duration::from_secs(3600);
            let openings = Rc::new(Openings {
                pace: Mutex::new(Pace::new(hour, 1)),
            });
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
            *openings.pace.lock().await = Pace::new(Duration::from_millis(1), 1000);
            let mut third = rig.client(at).await;
            third.write_all(b"3").await.unwrap();
            let (mut server, _) = listener.accept().await.unwrap();
            let mut byte = [0];
            server.read_exact(&mut byte).await.unwrap();
            assert_eq!(byte, *b"3", "the second is not connected");
        });
    }
}
