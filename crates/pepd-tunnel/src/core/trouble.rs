//! Sessions that do not begin, told at both ends: who is silent, and who does not understand whom.

use std::{net::SocketAddr, time::Duration};

use tunnel::endpoint::{Carrier, HandshakeError, PeerState, Stranger};

use super::Core;
use crate::peers::{NoSession, listed};

/// So many handshakes without success are no lost packets.
const TRIES: u32 = 5;
/// What lasts is told again after that, and more and more seldom.
const AGAIN_MIN: Duration = Duration::from_secs(60);
const AGAIN_MAX: Duration = Duration::from_secs(3600);

/// How long to be silent about something.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Pause {
    until: Option<Duration>,
    length: Duration,
}

impl Pause {
    /// Whether it is told now.
    fn is_over(&mut self, now: Duration) -> bool {
        let is_over = self.until.is_none_or(|until| now >= until);
        if is_over {
            self.length = (2 * self.length).clamp(AGAIN_MIN, AGAIN_MAX);
            self.until = Some(now + self.length);
        }
        is_over
    }
}

/// Why there is no session with a peer, and what of that was told.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Trouble {
    failed: Option<HandshakeError>,
    pauses: [Pause; 4],
}

impl Trouble {
    /// Its handshake has led to nothing; the next look tells.
    pub(super) fn fails(&mut self, error: HandshakeError) {
        self.failed = Some(error);
    }

    /// What is wrong, if anything is.
    fn find(&self, state: &PeerState) -> Option<NoSession> {
        if state.up {
            return None;
        }
        match self.failed {
            Some(HandshakeError::Keys) => Some(NoSession::Keys),
            Some(HandshakeError::Version(_)) => Some(NoSession::Version),
            None if state.answers_rejected >= TRIES => Some(NoSession::AnswersRejected),
            None if state.unanswered >= TRIES => Some(NoSession::Unanswered),
            None => None,
        }
    }
}

impl Core {
    /// Tells what keeps sessions from beginning, and remembers it for those who ask.
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
            if state.as_ref().is_some_and(|state| state.up) {
                peer.trouble = Trouble::default();
            }
            // While the link is off nobody answers.
            let found = state.filter(|_| !self.off).and_then(|state| {
                let found = peer.trouble.find(&state)?;
                Some((found, state))
            });
            self.statuses
                .status(index)
                .set_trouble(found.as_ref().map(|(found, _)| *found));
            let Some((found, state)) = found else {
                continue;
            };
            if peer.trouble.pauses[found as usize].is_over(now) {
                let address = endpoints_text(&state, self.endpoint.addresses(peer.id));
                log_trouble_of(
                    &peer.config.name,
                    found,
                    peer.trouble.failed,
                    &state,
                    &address,
                );
            }
        }
    }
}

/// Addresses at which a peer is called.
fn endpoints_text(state: &PeerState, addresses: &[SocketAddr]) -> String {
    let was = state.remote.map(|remote| remote.address);
    let was = was.filter(|was| !addresses.contains(was));
    let all: Vec<_> = was.into_iter().chain(addresses.iter().copied()).collect();
    listed(&all)
}

fn log_trouble_of(
    name: &str,
    found: NoSession,
    failed: Option<HandshakeError>,
    state: &PeerState,
    address: &str,
) {
    let tries = state.unanswered;
    match found {
        NoSession::Unanswered => tracing::warn!(
            peer = name,
            address,
            tries,
            "peer does not answer our handshakes: it is not there, or not reached (its `endpoint`, a firewall), or it does not know us: \
             `peer.{name}.public_key` has to be what `pepd keygen --public` prints there, and the `public_key` of us that it has what \
             that prints here; its log says which"
        ),
        NoSession::AnswersRejected => tracing::warn!(
            peer = name,
            tries = state.answers_rejected,
            "peer takes none of this pepd's answers: the psk_file for this tunnel differs between \
             the two pepds, or one of them has none, or the answers do not get there. Compare \
             both files (`peer.{name}.psk_file` here)"
        ),
        NoSession::Keys => tracing::warn!(
            peer = name,
            address,
            "peer's answer does not fit: the psk_file for this tunnel differs between the two \
             pepds, or one of them has none. Compare both files (`peer.{name}.psk_file` here)"
        ),
        NoSession::Version => {
            let error = failed.map_or(String::new(), |error| error.to_string());
            tracing::warn!(
                peer = name,
                error,
                "no session with a peer: update the older of the two pepds"
            );
        }
    }
}

fn log_stranger(kind: Stranger, address: &str, carrier: Carrier) {
    match kind {
        Stranger::NotForUs => tracing::warn!(
            address,
            %carrier,
            "a handshake is meant for another key. If it is your peer, correct this pepd's \
             `public_key` in the peer's configuration: `pepd keygen --public` prints it here"
        ),
        Stranger::UnknownKey => tracing::warn!(
            address,
            %carrier,
            "a handshake comes from a key that is no peer's. If it is your peer, correct its \
             `peer.NAME.public_key` here: `pepd keygen --public` prints it there"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lasts_is_told_at_once_then_after_a_minute_and_more_and_more_seldom() {
        let mut pause = Pause::default();
        let told: Vec<u64> = (0..4 * 3600)
            .filter(|second| pause.is_over(Duration::from_secs(*second)))
            .collect();
        assert_eq!(told, [0, 60, 180, 420, 900, 1860, 3780, 7380, 10980]);
    }
}
