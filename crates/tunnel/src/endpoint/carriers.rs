//! By which carrier a peer is reached: UDP, or TCP where UDP does not get through.
//!
//! ```text
//!            no answer by UDP, silence, or the peer does not hear us
//!   +-----+ ----------- a handshake by TCP succeeds -----------> +-----+
//!   | UDP |                                                      | TCP | --+ UDP is probed after 10 s,
//!   +-----+ <-- three probes in a row, each a handshake, are --- +-----+ <-+ and later and later if
//!                         answered by UDP                                    it does not last
//! ```
//!
//! Whoever calls decides. The other end answers where it was called from, as it follows a peer
//! whose address changes.

use std::{net::SocketAddr, time::Duration};

use super::{Limits, PeerEvent, local::Local, peer::Peer};

/// What carries datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Carrier {
    /// One in each datagram of UDP.
    Udp,
    /// One after the other in a connection.
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

/// Where a peer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Remote {
    /// Its address. By TCP that of its end of the connection, or the one at which it is called.
    pub address: SocketAddr,
    /// By what it is reached.
    pub carrier: Carrier,
}

impl Remote {
    /// There, by TCP.
    pub fn tcp(address: SocketAddr) -> Self {
        let carrier = Carrier::Tcp;
        Self { address, carrier }
    }
}

impl From<SocketAddr> for Remote {
    /// There, by UDP.
    fn from(address: SocketAddr) -> Self {
        let carrier = Carrier::Udp;
        Self { address, carrier }
    }
}

/// By what a peer may be reached.
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

/// Calls by UDP without an answer before TCP is tried, and as many round trips.
const PATIENCE: u32 = 3;
/// Probes of UDP that are answered in a row before it is used again.
const PROBES: u32 = 3;
/// Between two rows of probes, at first and at most.
const WAIT_MIN: Duration = Duration::from_secs(10);
const WAIT_MAX: Duration = Duration::from_secs(320);
/// UDP that lasts for so long is not held to be fickle.
const STEADY: Duration = Duration::from_secs(60);
/// A peer that initiates three times within so long does not hear our answers.
const DEAF: Duration = Duration::from_secs(5);

/// What is known of the two ways to a peer.
#[derive(Debug, Default)]
pub(super) struct CarrierStates {
    /// Calls in this silence.
    calls: u32,
    /// By what the last one went.
    called: Option<Carrier>,
    /// Since when the present carrier is used.
    since: Duration,
    /// When something last came the way that we send.
    heard: Duration,
    /// When to probe UDP.
    probe: Duration,
    wait: Duration,
    /// A probe is out.
    probing: bool,
    /// Probes answered in a row.
    answers: u32,
    /// Rows of probes that an answer was missing to, since the carrier changed.
    rows: usize,
    /// When it was last seen that the peer does not hear us.
    deaf: Option<Duration>,
    /// When the first answer by TCP came to somebody who would rather have one by UDP.
    doubt: Option<Duration>,
    /// The connection by which it was reached is gone.
    lost: bool,
    /// The peer is to be called at once.
    urgent: bool,
}

impl CarrierStates {
    /// The peer is called. How many calls went before, without an answer.
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

    /// Notes that UDP is probed. Returns how many rows of probes have ended without success.
    fn on_probe(&mut self, now: Duration) -> usize {
        if self.probing {
            self.answers = 0;
            self.rows += 1;
        }
        self.probing = true;
        self.probe = now + self.wait;
        self.rows
    }

    /// A probe is answered. Whether these are enough.
    fn on_answer(&mut self, now: Duration, limits: &Limits) -> bool {
        self.answers += 1;
        self.probing = false;
        self.probe = now + limits.retry;
        self.answers >= PROBES
    }

    /// By TCP an initiation is answered that was sent then. Whether UDP has had its chance: it is
    /// called at the first such answer, and that to a later call by TCP shows that there was none.
    fn on_tcp_answer(&mut self, now: Duration, sent: Duration, limits: &Limits) -> bool {
        let doubt = *self.doubt.get_or_insert(now);
        if doubt + limits.silence < sent {
            self.doubt = Some(now);
            return false;
        }
        doubt < sent
    }

    /// The peer has initiated at these times, and has not confirmed any.
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
    /// Places where it may be, by that carrier.
    fn by(&self, carrier: Carrier) -> impl Iterator<Item = Remote> {
        let includes = self.config.carriers.include(carrier);
        let addresses = self.addresses.in_order().filter(move |_| includes);
        addresses.map(move |address| Remote { address, carrier })
    }

    /// Where it should be, or may be.
    pub fn should_be(&self) -> Option<Remote> {
        self.by(Carrier::Udp).chain(self.by(Carrier::Tcp)).next()
    }

    /// Whether both ways are open to us.
    fn has_choice(&self) -> bool {
        self.config.carriers == Carriers::Both && !self.addresses.list().is_empty()
    }

    pub fn is_by(&self, carrier: Carrier) -> bool {
        self.remote.is_some_and(|remote| remote.carrier == carrier)
    }

    /// Whether the way that we send is one that the peer hears us by, and we it.
    pub fn is_well(&self, now: Duration, limits: &Limits) -> bool {
        let heard = self.live.as_ref().map(|live| live.heard);
        let heard = heard.is_some_and(|heard| heard + limits.silence > now);
        heard && !self.ways.lost && !self.ways.is_deaf(now)
    }

    /// Whether the peer is to be called though neither silence nor the age of keys asks for it.
    pub fn is_handshake_due(&self) -> bool {
        self.ways.urgent || self.ways.lost && self.live.is_some()
    }

    /// Whether it is time to try TCP, too.
    fn wants_tcp(&self, now: Duration, limits: &Limits) -> bool {
        if self.live.is_some() {
            return !self.is_well(now, limits);
        }
        let patience = limits.retry.max(self.config.session.rtt) * PATIENCE;
        let tries = patience.as_micros() / limits.retry.as_micros().max(1);
        u128::from(self.ways.calls) >= tries
    }

    /// Takes other addresses at which it may be called.
    pub fn set_addresses(&mut self, now: Duration, addresses: &[SocketAddr], limits: &Limits) {
        let is_news = self.addresses.replace(addresses);
        let is_well = self.is_well(now, &self.limits(limits));
        if is_news && !is_well && !self.initiations.is_resting() {
            // By UDP first: of a new address it is not known that UDP does not get there.
            self.ways.calls = 0;
            self.initiations.restart(now);
        }
    }

    /// Addresses at which to call the peer. A round of calls goes to where it was and to where it
    /// should be; if UDP does not do, by TCP every other time.
    pub fn number_to_call(&mut self, now: Duration, limits: &Limits) -> Option<Remote> {
        let number = self.next_number(now, limits);
        self.ways.called = number.map(|number| number.carrier);
        number
    }

    /// Whether we call by that way, so that the peer should answer rather than call.
    pub fn calls_by(&self, carrier: Carrier) -> bool {
        self.ways.called == Some(carrier)
    }

    fn next_number(&mut self, now: Duration, limits: &Limits) -> Option<Remote> {
        let is_well = self.is_well(now, limits);
        let last = self.initiations.last();
        // What is left of a round of long ago is not gone on with.
        let recent = limits.silence.max(limits.retry * 2);
        let goes_on = last.is_some_and(|sent| sent + recent > now);
        if !goes_on || is_well {
            self.initiations.round.clear();
        } else if let Some(next) = self.initiations.round.pop_front() {
            return Some(next);
        }
        let wants_tcp = self.has_choice() && self.wants_tcp(now, limits);
        let call = self.ways.on_call(is_well);
        let was = self.remote;
        if is_well {
            // New keys are wanted, and no other way.
            return was.or(self.should_be());
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

    /// When UDP is to be probed.
    pub fn probe_due(&self, local: &Local) -> Option<Duration> {
        let probes =
            !local.ending && self.has_choice() && self.live.is_some() && self.is_by(Carrier::Tcp);
        probes.then_some(self.ways.probe)
    }

    /// UDP is probed now: where. After a row of probes in vain it is another of the addresses.
    pub fn number_to_probe(&mut self, now: Duration) -> Option<Remote> {
        let rows = self.ways.on_probe(now);
        let count = self.addresses.list().len().max(1);
        self.by(Carrier::Udp).nth(rows % count)
    }

    /// The session would go on with keys that were agreed by that way. Whether it should: not by
    /// TCP while UDP does, and by UDP instead of TCP only if that is reliable.
    pub fn prefers(&mut self, now: Duration, from: Remote, limits: &Limits) -> bool {
        let changes = self.remote.is_some_and(|was| was.carrier != from.carrier);
        if !changes || !self.has_choice() || !self.is_well(now, limits) {
            return true;
        }
        from.carrier == Carrier::Udp && self.ways.on_answer(now, limits)
    }

    /// By `from` an initiation is answered that was sent then. Whether UDP may yet be answered,
    /// too, so that it is to be called at once.
    pub fn doubts(&mut self, now: Duration, from: Remote, sent: Duration, limits: &Limits) -> bool {
        let by_tcp = from.carrier == Carrier::Tcp && !self.is_by(Carrier::Tcp);
        by_tcp && self.has_choice() && !self.ways.on_tcp_answer(now, sent, limits)
    }

    /// The peer has initiated: perhaps because it does not hear us, unless it probes UDP.
    pub fn on_initiations(&mut self) {
        if self.live.is_some() {
            let by_tcp = self.is_by(Carrier::Tcp);
            let offered = self.pending.iter().rev();
            let offered = offered.filter(|offer| offer.by == Carrier::Tcp || !by_tcp);
            let times = offered.map(|pending| pending.generation.since);
            self.ways.on_initiations(times);
        }
    }

    /// What is newest of the peer's came from there.
    pub fn move_to(&mut self, now: Duration, from: Remote, limits: &Limits) {
        if self.remote == Some(from) {
            self.ways.heard = now;
            return;
        }
        if !self.config.carriers.include(from.carrier) || self.stays(now, from, limits) {
            return;
        }
        let was = self.remote.map(|was| was.carrier);
        self.ways.on_move(now, was, from.carrier);
        self.ways.lost = false;
        self.ways.deaf = None;
        self.held = false;
        self.remote = Some(from);
        self.addresses.on_answer(from.address);
        self.note_carrier();
        self.events.push_back(PeerEvent::Roamed(from));
    }

    /// The session is to know whether its packets may be lost.
    pub fn note_carrier(&mut self) {
        let reliable = self.is_by(Carrier::Tcp);
        if let Some(live) = &mut self.live {
            live.session.set_reliable(reliable);
        }
    }

    /// Of two connections, each called by one of the ends, that of the greater key is used by both.
    fn stays(&self, now: Duration, from: Remote, limits: &Limits) -> bool {
        let is = |remote: Remote| self.by(Carrier::Tcp).any(|called| called == remote);
        let ours = self.remote.is_some_and(is);
        let good = !self.ways.lost && self.ways.heard + limits.silence > now;
        self.greater && ours && from.carrier == Carrier::Tcp && good
    }

    /// Nothing is to be written for that place until it is [released](Self::release).
    pub fn hold(&mut self, remote: Remote) {
        self.held |= self.remote == Some(remote);
    }

    /// There is room again on the way to that place.
    pub fn release(&mut self, remote: Remote) {
        if self.remote == Some(remote) {
            self.held = false;
            self.ways.lost = false;
            self.stir();
        }
    }

    /// The connection to that place is gone.
    pub fn lose(&mut self, remote: Remote) {
        if self.remote == Some(remote) {
            self.held = true;
            self.ways.lost = true;
        }
    }
}
