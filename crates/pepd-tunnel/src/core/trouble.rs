//! Log lines and states for sessions that cannot be established, at both ends.

use std::{net::SocketAddr, time::Duration};

use tunnel::endpoint::{Carrier, HandshakeError, PeerState, Stranger, VERSION};

use super::Core;
use crate::peers::{NoSession, listed};

/// Failed handshakes beyond what lost packets explain.
const TRIES: u32 = 5;
/// Bounds of the pause between log lines on a lasting failure; it doubles each time.
const AGAIN_MIN: Duration = Duration::from_secs(60);
const AGAIN_MAX: Duration = Duration::from_secs(3600);

/// Pause between log lines on one subject.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Pause {
    until: Option<Duration>,
    length: Duration,
}

impl Pause {
    /// Returns whether a line may be logged now.
    pub(super) fn is_over(&mut self, now: Duration) -> bool {
        let is_over = self.until.is_none_or(|until| now >= until);
        if is_over {
            self.length = (2 * self.length).clamp(AGAIN_MIN, AGAIN_MAX);
            self.until = Some(now + self.length);
        }
        is_over
    }
}

/// Pauses of the log lines on a peer without a session.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Trouble {
    pauses: [Pause; NoSession::COUNT],
}

impl Trouble {
    /// Returns the reason for which there is no session, or none with a peer that is heard, if
    /// there is one. A peer that came back with another version leaves its session silent.
    fn find(state: &PeerState) -> Option<NoSession> {
        match state.failed {
            Some(HandshakeError::Keys) => Some(NoSession::Keys),
            Some(HandshakeError::Version(version)) => Some(NoSession::Version(version)),
            Some(HandshakeError::Counter) => Some(NoSession::Counter),
            None if state.up => None,
            None if state.answers_rejected >= TRIES => Some(NoSession::AnswersRejected),
            None if state.unanswered >= TRIES => Some(NoSession::Unanswered),
            None => None,
        }
    }
}

impl Core {
    /// Logs what prevents sessions, and publishes it for status requests.
    pub(super) fn log_trouble(&mut self) {
        let now = self.base.elapsed();
        while let Some((kind, from)) = self.endpoint.take_stranger() {
            if self.peers.strangers[kind as usize].is_over(now) {
                log_stranger(kind, &from.address.to_string(), from.carrier);
            }
        }
        for index in 0..self.peers.list.len() {
            let peer = &mut self.peers.list[index];
            let state = self.endpoint.peer_state(peer.id);
            let is_silent = peer.silent_since.is_some();
            let state = state.filter(|state| !state.up || is_silent);
            if state.is_none() {
                peer.trouble = Trouble::default();
            }
            // While the link is switched off no peer answers.
            let state = state.filter(|_| !self.off);
            let found = state.and_then(|state| Some((Trouble::find(&state)?, state)));
            self.statuses
                .status(index)
                .set_trouble(found.as_ref().map(|(found, _)| *found));
            let Some((found, state)) = found else {
                continue;
            };
            if peer.trouble.pauses[found.index()].is_over(now) {
                let address = endpoints_text(&state, self.endpoint.addresses(peer.id));
                log_trouble_of(&peer.config.name, found, &state, &address);
            }
        }
    }
}

/// Formats the addresses at which a peer is called.
fn endpoints_text(state: &PeerState, addresses: &[SocketAddr]) -> String {
    let was = state.remote.map(|remote| remote.address);
    let was = was.filter(|was| !addresses.contains(was));
    let all: Vec<_> = was.into_iter().chain(addresses.iter().copied()).collect();
    listed(&all)
}

fn log_trouble_of(name: &str, found: NoSession, state: &PeerState, address: &str) {
    let tries = state.unanswered;
    match found {
        NoSession::Unanswered => tracing::warn!(
            peer = name,
            address,
            tries,
            "peer does not answer handshakes: it is down, a firewall drops them, or \
             `peer.{name}.public_key` or `endpoint` is wrong"
        ),
        NoSession::AnswersRejected => tracing::warn!(
            peer = name,
            tries = state.answers_rejected,
            "peer rejects pepd's handshake responses: psk_file probably differs between the two \
             ends (`peer.{name}.psk_file`)"
        ),
        NoSession::Keys => tracing::warn!(
            peer = name,
            address,
            "peer's handshake response does not verify: psk_file differs between the two ends \
             (`peer.{name}.psk_file`)"
        ),
        NoSession::Version(version) => tracing::warn!(
            peer = name,
            version,
            here = VERSION,
            "peer speaks another version of the tunnel protocol: update the older of the two pepds"
        ),
        NoSession::Counter => tracing::warn!(
            peer = name,
            "peer claims that pepd's handshake counter is used up: give this end a new key \
             (`identity.key_file`)"
        ),
    }
}

fn log_stranger(kind: Stranger, address: &str, carrier: Carrier) {
    match kind {
        Stranger::NotForUs => tracing::warn!(
            address,
            %carrier,
            "handshake for a different public key: the sender has a wrong public_key for this pepd \
             (`pepd keygen --public`)"
        ),
        Stranger::UnknownKey => tracing::warn!(
            address,
            %carrier,
            "handshake from an unknown public key: if the sender is a peer, fix its \
             `peer.NAME.public_key`"
        ),
        Stranger::Version1 => tracing::warn!(
            address,
            %carrier,
            version = 1,
            here = VERSION,
            "handshake of another version of the tunnel protocol: update the pepd that sends it"
        ),
        Stranger::SecondHolder => tracing::warn!(
            address,
            %carrier,
            "handshake by the key of a peer that is heard at another address, ignored: if the sender \
             is not that peer, give it a key of its own"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lasting_failure_is_logged_at_once_then_after_a_minute_and_ever_more_rarely() {
        let mut pause = Pause::default();
        let logged: Vec<u64> = (0..4 * 3600)
            .filter(|second| pause.is_over(Duration::from_secs(*second)))
            .collect();
        assert_eq!(logged, [0, 60, 180, 420, 900, 1860, 3780, 7380, 10980]);
    }
}
