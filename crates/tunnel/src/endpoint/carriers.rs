//! Selection of the carrier to a peer: UDP, or TCP where UDP does not get through.
//!
//! ```text
//!         no answer by UDP, silence, or the peer does not hear this end
//!   +-----+ ---------- a handshake by TCP succeeds ----------> +-----+
//!   | UDP |                                                    | TCP | --+ UDP is probed after
//!   +-----+ <-- three probes in a row, each a handshake, ----- +-----+ <-+ 10 s, then less often
//!               are answered by UDP                                        if it does not last
//! ```
//!
//! The calling end decides. The other end answers by the carrier of the call, as it follows a peer
//! whose address changes.

use std::{net::SocketAddr, time::Duration};

use super::{Limits, PeerEvent, datagram::INITIATION_LEN, local::Local, peer::Peer};

/// Carrier of datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Carrier {
    /// UDP: one per UDP datagram.
    Udp,
    /// TCP: consecutive datagrams in a connection.
    Tcp,
}

impl std::fmt::Display for Carrier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Udp => "udp",
            Self::Tcp => "tcp",
        })
    }
}

/// Address and carrier of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Remote {
    /// Address of the peer. For TCP, that of its end of the connection, or the one at which it is
    /// called.
    pub address: SocketAddr,
    /// Carrier to the peer.
    pub carrier: Carrier,
}

impl Remote {
    /// Creates a remote reached by TCP.
    pub fn tcp(address: SocketAddr) -> Self {
        let carrier = Carrier::Tcp;
        Self { address, carrier }
    }
}

impl From<SocketAddr> for Remote {
    /// Creates a remote reached by UDP.
    fn from(address: SocketAddr) -> Self {
        let carrier = Carrier::Udp;
        Self { address, carrier }
    }
}

/// Carriers permitted for a peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Carriers {
    /// UDP, and TCP where UDP does not get through.
    #[default]
    Both,
    /// UDP only.
    Udp,
    /// TCP only.
    Tcp,
}

impl Carriers {
    pub(super) fn include(self, carrier: Carrier) -> bool {
        match self {
            Self::Both => true,
            Self::Udp => carrier == Carrier::Udp,
            Self::Tcp => carrier == Carrier::Tcp,
        }
    }
}

/// Unanswered calls by UDP before TCP is tried, and as many round trips.
const PATIENCE: u32 = 3;
/// Consecutive answered probes of UDP before it is used again.
const PROBES: u32 = 3;
/// Interval between rows of probes: first and maximum.
const WAIT_MIN: Duration = Duration::from_secs(10);
const WAIT_MAX: Duration = Duration::from_secs(320);
/// Time for which UDP must last to count as reliable.
const STEADY: Duration = Duration::from_secs(60);
/// Time within which three initiations of a peer show that it does not receive the answers.
const DEAF: Duration = Duration::from_secs(5);

/// State of both carriers to a peer.
#[derive(Debug, Default)]
pub(super) struct CarrierStates {
    /// Calls during this silence.
    calls: u32,
    /// Carrier of the last call.
    called: Option<Carrier>,
    /// Time since which the present carrier is used.
    since: Duration,
    /// Time when a packet last arrived by the present carrier.
    heard: Duration,
    /// Time of the next probe of UDP.
    probe: Duration,
    wait: Duration,
    /// True if a probe is outstanding.
    probing: bool,
    /// Consecutive answered probes.
    answers: u32,
    /// Incomplete rows of probes since the carrier changed.
    rows: usize,
    /// Time when the peer was last found not to receive.
    deaf: Option<Duration>,
    /// Time of the first answer by TCP while UDP was preferred.
    doubt: Option<Duration>,
    /// The peer's TCP connection has failed.
    lost: bool,
    /// The peer must be called at once.
    urgent: bool,
}

impl CarrierStates {
    /// Records a call. Returns the number of unanswered calls before it.
    fn on_call(&mut self, well: bool) -> u32 {
        let before = if well { 0 } else { self.calls };
        self.calls = before.saturating_add(1);
        self.urgent = false;
        before
    }

    fn on_move(&mut self, now: Duration, was: Option<Carrier>, to: Carrier) {
        (self.heard, self.doubt) = (now, None);
        if was == Some(to) {
            return;
        }
        if to == Carrier::Tcp {
            let fickle = was.is_some() && self.since + STEADY > now;
            let wait = if fickle { self.wait * 2 } else { WAIT_MIN };
            self.wait = wait.clamp(WAIT_MIN, WAIT_MAX);
        }
        (self.since, self.probe) = (now, now + self.wait);
        (self.probing, self.answers, self.rows) = (false, 0, 0);
    }

    /// Records a probe of UDP. Returns the number of rows of probes that have failed.
    fn on_probe(&mut self, now: Duration) -> usize {
        if self.probing {
            self.answers = 0;
            self.rows += 1;
        }
        self.probing = true;
        self.probe = now + self.wait;
        self.rows
    }

    /// Records an answered probe. Returns true if enough probes were answered in a row.
    fn on_answer(&mut self, now: Duration, limits: &Limits) -> bool {
        self.answers += 1;
        self.probing = false;
        self.probe = now + limits.retry;
        self.answers >= PROBES
    }

    /// Records a TCP answer to an initiation sent at `sent`. Returns true if UDP has had its
    /// chance: it is called at the first such answer, and the answer to a later TCP call shows that
    /// UDP failed.
    fn on_tcp_answer(&mut self, now: Duration, sent: Duration, limits: &Limits) -> bool {
        let doubt = *self.doubt.get_or_insert(now);
        if doubt + limits.silence < sent {
            self.doubt = Some(now);
            return false;
        }
        doubt < sent
    }

    /// Records the times of the peer's unconfirmed initiations.
    fn on_initiations(&mut self, mut last: impl Iterator<Item = Duration>) {
        let (Some(now), Some(before)) = (last.next(), last.nth(1)) else {
            return;
        };
        if before + DEAF > now {
            self.deaf = Some(now);
            self.urgent = true;
        }
    }

    fn is_deaf(&self, now: Duration) -> bool {
        self.deaf.is_some_and(|at| at + DEAF > now)
    }
}

impl Peer {
    /// Returns the possible remotes by a carrier.
    fn by(&self, carrier: Carrier) -> impl Iterator<Item = Remote> {
        let includes = self.config.carriers.include(carrier);
        let addresses = self.addresses.in_order().filter(move |_| includes);
        addresses.map(move |address| Remote { address, carrier })
    }

    /// Returns the configured remote, if there is one.
    pub fn should_be(&self) -> Option<Remote> {
        self.by(Carrier::Udp).chain(self.by(Carrier::Tcp)).next()
    }

    /// Returns true if both carriers can be used for calls.
    fn has_choice(&self) -> bool {
        self.config.carriers == Carriers::Both && !self.addresses.list().is_empty()
    }

    pub fn is_by(&self, carrier: Carrier) -> bool {
        self.remote.is_some_and(|remote| remote.carrier == carrier)
    }

    /// Returns true if both ends hear each other by the present carrier.
    pub fn is_well(&self, now: Duration, limits: &Limits) -> bool {
        let heard = self.live.as_ref().map(|live| live.heard);
        let heard = heard.is_some_and(|heard| heard + limits.silence > now);
        heard && !self.carriers.lost && !self.carriers.is_deaf(now)
    }

    /// Returns true if the peer must be called for reasons other than silence or the age of keys.
    pub fn is_handshake_due(&self) -> bool {
        self.carriers.urgent || self.carriers.lost && self.live.is_some()
    }

    /// Returns true if TCP must be tried, too.
    fn wants_tcp(&self, now: Duration, limits: &Limits) -> bool {
        if self.live.is_some() {
            return !self.is_well(now, limits);
        }
        let patience = limits.retry.max(self.config.session.rtt) * PATIENCE;
        let tries = patience.as_micros() / limits.retry.as_micros().max(1);
        u128::from(self.carriers.calls) >= tries
    }

    /// Replaces the addresses at which the peer is called.
    pub fn set_addresses(&mut self, now: Duration, addresses: &[SocketAddr], limits: &Limits) {
        let is_news = self.addresses.replace(addresses);
        let is_well = self.is_well(now, &self.limits(limits));
        if is_news && !is_well && !self.initiations.is_resting() {
            // By UDP first: it may work at a new address.
            self.carriers.calls = 0;
            self.initiations.restart(now);
        }
    }

    /// Returns the remote for the next call. A round of calls covers the last known address and the
    /// configured ones; if UDP fails, every other round uses TCP.
    pub fn number_to_call(&mut self, now: Duration, limits: &Limits) -> Option<Remote> {
        let number = self.next_number(now, limits);
        self.carriers.called = number.map(|number| number.carrier);
        number
    }

    /// Returns true if the local end calls by this carrier, so that the peer should answer rather
    /// than call.
    pub fn calls_by(&self, carrier: Carrier) -> bool {
        self.carriers.called == Some(carrier)
    }

    fn next_number(&mut self, now: Duration, limits: &Limits) -> Option<Remote> {
        let is_well = self.is_well(now, limits);
        let last = self.initiations.last();
        // The rest of an old round is discarded.
        let recent = limits.silence.max(limits.retry * 2);
        let goes_on = last.is_some_and(|sent| sent + recent > now);
        if !goes_on || is_well {
            self.initiations.round.clear();
        } else if let Some(next) = self.initiations.round.pop_front() {
            return Some(next);
        }
        let wants_tcp = self.has_choice() && self.wants_tcp(now, limits);
        let call = self.carriers.on_call(is_well);
        let was = self.callable();
        if is_well {
            // Only new keys are needed, on the same carrier.
            return was.or_else(|| self.should_be());
        }
        let round: Vec<_> = if wants_tcp && call % 2 == 1 {
            self.by(Carrier::Tcp).collect()
        } else {
            let should = self.should_be().map(|remote| remote.carrier);
            let should = should.into_iter().flat_map(|carrier| self.by(carrier));
            let was = was.filter(|was| !wants_tcp || was.carrier == Carrier::Udp);
            let others = should.filter(|remote| Some(*remote) != was);
            was.into_iter().chain(others).collect()
        };
        self.initiations.round = round.into();
        self.initiations.round.pop_front()
    }

    /// Returns when UDP is to be probed.
    pub fn probe_due(&self, local: &Local) -> Option<Duration> {
        let probes =
            !local.ending && self.has_choice() && self.live.is_some() && self.is_by(Carrier::Tcp);
        probes.then_some(self.carriers.probe)
    }

    /// Returns the remote of the next UDP probe. After a failed row of probes it is another
    /// address.
    pub fn number_to_probe(&mut self, now: Duration) -> Option<Remote> {
        let rows = self.carriers.on_probe(now);
        let count = self.addresses.list().len().max(1);
        self.by(Carrier::Udp).nth(rows % count)
    }

    /// Returns true if the session should continue with keys agreed by way of `from`: not by TCP
    /// while UDP works, and by UDP instead of TCP only if it is reliable.
    pub fn prefers(&mut self, now: Duration, from: Remote, limits: &Limits) -> bool {
        let changes = self.remote.is_some_and(|was| was.carrier != from.carrier);
        if !changes || !self.has_choice() || !self.is_well(now, limits) {
            return true;
        }
        from.carrier == Carrier::Udp && self.carriers.on_answer(now, limits)
    }

    /// Handles an answer from `from` to an initiation sent at `sent`. Returns true if UDP may still
    /// be answered, too, and is to be called at once.
    pub fn doubts(&mut self, now: Duration, from: Remote, sent: Duration, limits: &Limits) -> bool {
        let by_tcp = from.carrier == Carrier::Tcp && !self.is_by(Carrier::Tcp);
        by_tcp && self.has_choice() && !self.carriers.on_tcp_answer(now, sent, limits)
    }

    /// Handles an initiation of the peer. The peer may not hear the local end, unless it
    /// probes UDP.
    pub fn on_initiations(&mut self) {
        if self.live.is_some() {
            let by_tcp = self.is_by(Carrier::Tcp);
            let offered = self.pending.iter().rev();
            let offered = offered.filter(|offer| offer.by == Carrier::Tcp || !by_tcp);
            let times = offered.map(|pending| pending.generation.since);
            self.carriers.on_initiations(times);
        }
    }

    /// Records that the newest packet of the peer came from there. `limits` are the general ones.
    pub fn move_to(&mut self, now: Duration, from: Remote, limits: &Limits) {
        if self.remote == Some(from) {
            self.paths.move_to(from);
            self.carriers.heard = now;
            return;
        }
        let stays = || self.stays(now, from, &self.limits(limits));
        if !self.config.carriers.include(from.carrier) || stays() {
            return;
        }
        let was = self.remote.map(|was| was.carrier);
        self.carriers.on_move(now, was, from.carrier);
        self.carriers.lost = false;
        self.carriers.deaf = None;
        self.held = false;
        self.remote = Some(from);
        self.paths.move_to(from);
        self.addresses.on_answer(from.address);
        self.note_carrier();
        self.events.push_back(PeerEvent::Roamed(from));
    }

    /// Notifies the session whether its carrier is reliable.
    pub fn note_carrier(&mut self) {
        let reliable = self.is_by(Carrier::Tcp);
        if let Some(live) = &mut self.live {
            live.session.set_reliable(reliable);
        }
    }

    /// Returns the longest datagram that may be sent to the present remote.
    pub fn room(&self) -> usize {
        self.remote.map_or(0, |remote| self.paths.room(remote))
    }

    /// Returns where the peer can be called, apart from its configured addresses: at its present
    /// remote, or at the last proved one if that has no room.
    pub fn callable(&self) -> Option<Remote> {
        let remote = self.remote.filter(|_| self.room() >= INITIATION_LEN);
        remote.or_else(|| self.paths.last_proved())
    }

    /// Returns true if the connection to `from` is kept. Of two connections, each called by one
    /// end, both ends use the one of the larger key.
    fn stays(&self, now: Duration, from: Remote, limits: &Limits) -> bool {
        let is = |remote: Remote| self.by(Carrier::Tcp).any(|called| called == remote);
        let ours = self.remote.is_some_and(is);
        let good = !self.carriers.lost && self.carriers.heard + limits.silence > now;
        self.greater && ours && from.carrier == Carrier::Tcp && good
    }

    /// Holds packets for that remote until it is [released](Self::release).
    pub fn hold(&mut self, remote: Remote) {
        self.held |= self.remote == Some(remote);
    }

    /// Releases packets for that remote.
    pub fn release(&mut self, remote: Remote) {
        if self.remote == Some(remote) {
            self.held = false;
            self.carriers.lost = false;
            self.stir();
        }
    }

    /// Handles the loss of the connection to that remote.
    pub fn lose(&mut self, remote: Remote) {
        if self.remote == Some(remote) {
            self.held = true;
            self.carriers.lost = true;
        }
    }
}
