//! Hosts that one end does not reach, so that flows to them are opened to another address.
//!
//! Each end tells its peers in handshakes for which families it has no route, and refuses new flows
//! to hosts that its peers do not reach.

use std::time::Duration;

use pep_core::{pace::Line, reach::Extent};
use pepd_sys::leg::Family;

use super::{Core, Kind};
use crate::{far::Sites, peers::families};

/// Pause between two looks: each change costs a handshake here, and a change of rules there.
const PAUSE: Duration = Duration::from_secs(5);

/// State of the looks.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Looks {
    /// Time of the next one.
    next: Duration,
    /// Extent of routes of IPv4 and of IPv6.
    routes: Option<[Extent; 2]>,
}

impl Core {
    /// Tells peers of changed routes, and follows what they tell, every few seconds.
    pub(super) fn look_at_unreached(&mut self) {
        let now = self.now();
        if now < self.looks.next {
            return;
        }
        self.looks.next = now + PAUSE;
        self.tell_unreached();
        for index in 0..self.peers.list.len() {
            self.follow_unreached(index);
        }
    }

    /// Tells each peer which hosts its flows do not reach by this machine.
    pub(crate) fn tell_unreached(&mut self) {
        let routes = self.far.routes();
        for peer in &self.peers.list {
            let unreached = Sites::unreached(&peer.reach, routes);
            self.endpoint.set_unreached(peer.id, unreached);
        }
        let before = self.looks.routes.replace(routes);
        let Some(before) = before.filter(|before| *before != routes) else {
            return;
        };
        self.wake_driver();
        let changes = before.into_iter().zip(routes);
        for (family, (was, is)) in Family::ALL.into_iter().zip(changes) {
            if is < was {
                tracing::info!(
                    "fewer routes to {family} hosts than before: pepd notifies peers that reach none by it"
                );
            } else if is > was {
                tracing::info!(
                    "more routes to {family} hosts than before: pepd notifies its peers"
                );
            }
        }
    }

    /// Refuses new flows to hosts that the peer does not reach, by the last handshake with it. A
    /// peer that changes its mind at each handshake changes the rules once per pause.
    pub(super) fn follow_unreached(&mut self, index: usize) {
        let time = self.now();
        if time < self.peers.list[index].follows_from {
            return;
        }
        let state = self.endpoint.peer_state(self.peers.list[index].id);
        let Some(now) = state.map(|state| state.unreached) else {
            return;
        };
        let Some(before) = self.statuses.set_unreached(index, now) else {
            return;
        };
        self.peers.list[index].follows_from = time + PAUSE;
        let (before, now) = (families(before), families(now));
        if !self.statuses.status(index).has_tunnels() {
            return;
        }
        let Some(Line { left_out }) = self.line(index, Kind::Unreached) else {
            return;
        };
        let peer = self.peer_name(index);
        for family in now.iter().filter(|family| !before.contains(family)) {
            tracing::warn!(
                peer,
                left_out,
                "peer reaches no {family} hosts: new {family} connections of its sites are refused, so that hosts \
                 try another address; give the peer an {family} route"
            );
        }
        for family in before.iter().filter(|family| !now.contains(family)) {
            tracing::info!(peer, left_out, "peer reaches {family} hosts again");
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::task::yield_now;
    use tunnel::session::Unreached;

    use super::*;
    use crate::rig::Rig;

    #[test]
    fn an_end_follows_at_once_what_a_new_session_tells_and_later_what_routes_do() {
        Rig::run(|rig| async move {
            let unreached = Unreached {
                v4: false,
                v6: true,
            };
            while !rig.near.borrow_mut().has_session(0) {
                yield_now().await;
            }
            {
                let mut far = rig.far.borrow_mut();
                let id = far.peers.list[0].id;
                far.endpoint.set_unreached(id, unreached);
                far.wake_driver();
            }
            let known = || {
                let mut near = rig.near.borrow_mut();
                let state = near.endpoint.peer_state(near.peers.list[0].id);
                near.looks.next = Duration::ZERO;
                (state.unwrap().unreached == unreached).then(|| near.look_at_unreached())
            };
            while known().is_none() {
                yield_now().await;
            }
            let mut near = rig.near.borrow_mut();
            let none = Unreached::default();
            let known = |near: &Core| near.statuses.set_unreached(0, none).unwrap_or(none);
            assert_eq!(known(&near), unreached);
            // Another change waits.
            near.follow_unreached(0);
            assert_eq!(known(&near), none);
            near.peers.list[0].follows_from = Duration::ZERO;
            near.follow_unreached(0);
            assert_eq!(known(&near), unreached);
            drop(near);
            // The far end has found a route, as every end of this test has.
            let mut far = rig.far.borrow_mut();
            far.looks.next = Duration::ZERO;
            far.look_at_unreached();
            let id = far.peers.list[0].id;
            assert_eq!(
                far.endpoint.peer_state(id).unwrap().unreached,
                Unreached::default()
            );
        });
    }
}
