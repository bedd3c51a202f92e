//! One peer: its session, and handshakes to begin or renew one.

mod pending;

use std::{collections::VecDeque, time::Duration};

use trace::{Event as TraceEvent, Trace};

use super::{
    Carrier, Counters, DownReason, HandshakeError, Limits, PeerConfig, PeerEvent, PeerId,
    PeerState, Remote, Session,
    addresses::Addresses,
    carriers::CarrierStates,
    datagram::{CHALLENGE_LEN, CONFIRMATION_LEN, INITIATION_LEN},
    distrust::Distrust,
    initiations::Initiations,
    live::{Live, Opened, Refused, open},
    local::Local,
    paths::Paths,
    terms::Terms,
};
use crate::{
    crypto::{CookieKey, MacKey, Window},
    ecn::Ecn,
    rate::time_of,
    session::{Event, PacketError, SessionConfig, Unreached},
    store::Store,
    wire::{CloseCode, DATAGRAM_OVERHEAD},
};
pub(super) use pending::{Answered, Pending};

/// Calls to the last known address of a previous endpoint: about as many seconds. Afterwards the
/// peer has moved, or calls itself.
const LAST_CALLS: u32 = 60;
/// Time, and round trips, for a peer to show that it is still at its address.
const STILL_THERE: (Duration, u32) = (Duration::from_millis(500), 2);
/// Divisor of a stated rate for initiations: they are less frequent below 21 kbit/s.
const HANDSHAKES: u64 = 10;

pub(super) struct Peer {
    pub id: PeerId,
    pub config: PeerConfig,
    /// Addresses at which the peer is called.
    pub addresses: Addresses,
    /// True if the local public key is the larger one.
    pub greater: bool,
    /// MAC key of messages to the peer.
    pub mac: MacKey,
    /// Opens cookies from the peer.
    pub cookie: CookieKey,
    /// Current remote, from authenticated packets.
    pub remote: Option<Remote>,
    /// Known addresses, and whether the peer receives there.
    pub paths: Paths,
    /// True if only handshakes may be sent there for now.
    pub held: bool,
    pub carriers: CarrierStates,
    pub live: Option<Live>,
    pub initiations: Initiations,
    pub pending: VecDeque<Pending>,
    pub counters: Counters,
    /// No session with it begins before.
    pub distrust: Distrust,
    pub events: VecDeque<PeerEvent>,
    /// Reason for which the last handshake failed, if none has succeeded since.
    failed: Option<HandshakeError>,
    /// Initiations that were answered without resulting in keys.
    answers_rejected: u32,
    /// Minimum pause between two calls: handshakes take little of a slow link's rate.
    pause_min: Duration,
    /// Time to poll the session for packets.
    wake: Duration,
    /// Time to poll it for a report alone.
    report: Duration,
    /// True if the session may have events.
    has_events: bool,
    /// Time at which the peer was last asked whether it is still at its address, as another host
    /// with its key has called.
    doubted: Option<Duration>,
    /// True if a session has begun, and the store has not been notified.
    began: bool,
    /// Hosts that the local end does not reach, as the peer knows it.
    said: Unreached,
    /// Earliest time of the next initiation for a change of that.
    say_next: Duration,
    /// Hosts that the peer does not reach, by its latest terms.
    unreached: Unreached,
    /// Trace while there is no session.
    trace: Trace,
}

impl Peer {
    pub fn new(id: PeerId, config: PeerConfig, local: &Local) -> Self {
        let last = last(&config);
        let mut paths = Paths::default();
        last.into_iter().for_each(|remote| paths.prove(remote));
        Self {
            id,
            greater: local.identity.public > config.public_key,
            mac: MacKey::of_recipient(&config.public_key),
            cookie: CookieKey::of_responder(&config.public_key),
            remote: last,
            addresses: Addresses::new(&config.addresses),
            pause_min: pause_min(&config.session),
            counters: config.counters,
            distrust: Distrust::default(),
            config,
            paths,
            held: false,
            carriers: CarrierStates::default(),
            live: None,
            initiations: Initiations::default(),
            pending: VecDeque::new(),
            events: VecDeque::new(),
            failed: None,
            answers_rejected: 0,
            wake: Duration::ZERO,
            report: Duration::MAX,
            has_events: false,
            doubted: None,
            began: false,
            said: Unreached::default(),
            say_next: Duration::ZERO,
            unreached: Unreached::default(),
            trace: Trace::default(),
        }
    }

    /// Notifies the store of a new session, before anything of that session reaches it.
    pub fn renew(&mut self, store: &mut impl Store) {
        if std::mem::take(&mut self.began) {
            store.renew();
        }
    }

    pub fn state(&self) -> PeerState {
        PeerState {
            remote: self.remote.or(self.should_be()),
            proved: self.paths.last_proved().map(|remote| remote.address),
            rtt: self.config.session.rtt,
            up: self.live.is_some(),
            heard: self.live.as_ref().map(|live| live.heard),
            silence_limit: self.live.as_ref().map(|live| live.session.silence_limit()),
            keys_since: self.live.as_ref().map(|live| live.current().since),
            unanswered: self.initiations.tries,
            answers_rejected: self.answers_rejected,
            failed: self.failed,
            counters: self.counters,
            unreached: self.unreached,
        }
    }

    /// Returns the session for use by the caller.
    pub fn session(&mut self) -> Option<&mut Session> {
        self.stir();
        Some(&mut self.live.as_mut()?.session)
    }

    pub fn trace(&mut self) -> &mut Trace {
        match &mut self.live {
            Some(live) => live.session.trace(),
            None => &mut self.trace,
        }
    }

    pub fn stir(&mut self) {
        self.wake = Duration::ZERO;
        self.has_events = true;
    }

    /// Creates an unused index by which the peer may address the local end.
    pub fn new_index(&self, local: &mut Local) -> u32 {
        loop {
            let random = u16::from_be_bytes(local.random());
            let index = local.shard.index(self.id.slot(), random);
            if !self.is_used(index) {
                return index;
            }
        }
    }

    fn is_used(&self, index: u32) -> bool {
        self.live.as_ref().is_some_and(|live| live.has(index))
            || self
                .pending
                .iter()
                .any(|pending| pending.generation.index == index)
            || self.initiations.has(index)
    }

    /// Returns true if the peer can continue that session: an existing one, or one offered. A peer
    /// that names an offered session has received the offer, though its proof has not arrived yet.
    pub fn knows(&self, session: u64) -> bool {
        self.has(session) || self.pending.iter().any(|offer| offer.begins(session))
    }

    fn has(&self, session: u64) -> bool {
        self.live.as_ref().is_some_and(|live| live.id == session)
    }

    /// Returns true if the local end takes precedence when both initiate at the same time: it waits
    /// for the answer, or has just received it. Limited in time, as the local end may not be heard,
    /// or the peer may have restarted.
    pub fn takes_precedence(&self, now: Duration, limits: &Limits) -> bool {
        let limits = self.limits(limits);
        let recent = |at: Duration| at + limits.retry * 2 > now;
        let keys = self.live.as_ref().map(Live::current);
        let agreed = keys.is_some_and(|keys| keys.ours && !keys.confirmed && recent(keys.since));
        let waits = self.initiations.are_new() && self.initiations.last().is_some_and(recent);
        self.greater && (agreed || waits)
    }

    /// Returns true if a call for a new session comes from another host than the peer's, and the
    /// peer is heard. Else two hosts with one key, both reachable, would replace each other's
    /// sessions for ever. The first such call makes the local end ask the peer; if it stays silent,
    /// a later call of the host is answered, as the peer has moved.
    pub fn is_elsewhere(&mut self, now: Duration, from: Remote, continues: Option<u64>) -> bool {
        let remote = self.remote.map(|remote| remote.address.ip());
        let Some(live) = &mut self.live else {
            return false;
        };
        let is_same = remote.is_none_or(|ip| ip == from.address.ip());
        if is_same || continues == Some(live.id) {
            return false;
        }
        let (time, round_trips) = STILL_THERE;
        let patience = time + live.session.smoothed_rtt() * round_trips;
        let asked = self.doubted.filter(|asked| live.heard <= *asked);
        if let Some(asked) = asked {
            return now < asked + patience;
        }
        self.doubted = Some(now);
        live.session.ask();
        self.stir();
        true
    }

    /// Returns the general limits, adapted to the session: on a slow link handshakes take little of
    /// the rate, and the silence limit is the session's.
    pub fn limits(&self, limits: &Limits) -> Limits {
        let live = self.live.as_ref();
        let silence = live.map_or(limits.silence, |live| live.silence_limit(limits));
        let (rtt, pause_min) = (self.config.session.rtt, self.pause_min);
        Limits {
            retry: limits.retry.max(pause_min),
            stagger: limits.stagger.max(rtt).min(limits.retry).max(pause_min),
            silence,
            ..*limits
        }
    }

    // --- receiving ---

    /// Handles the peer's answer to an initiation.
    pub fn agreed(&mut self, from: Remote, agreed: Pending, rtt: Duration, limits: &Limits) {
        let adapted = &self.limits(limits);
        let now = agreed.generation.since;
        let goes_on = agreed.continues.is_some_and(|session| self.knows(session));
        if goes_on && !self.prefers(now, from, adapted) {
            self.initiations.succeeded(now);
            return;
        }
        if self.doubts(now, from, now.saturating_sub(rtt), adapted) {
            self.initiations.restart(now);
            return;
        }
        let called = agreed.at;
        if self.install(agreed, rtt, true) {
            called.into_iter().for_each(|at| self.paths.prove(at));
            self.move_to(now, from, limits);
            self.release(from);
        }
    }

    /// Handles a sealed packet for one of the local indices. Returns a packet to send at once, if
    /// the session ends.
    pub fn on_data(
        &mut self,
        arrival: &Arrival,
        number: u32,
        datagram: &mut [u8],
        limits: &Limits,
        store: &mut impl Store,
    ) -> Result<Vec<u8>, Refused> {
        let length = datagram.len();
        let opened = self.open(arrival, number, datagram);
        self.renew(store);
        let opened = opened?;
        if opened.newest && self.says_where(arrival) {
            self.move_to(arrival.now, arrival.from, limits);
        }
        self.paths.on_received(arrival.from, length);
        self.stir();
        let Some(live) = &mut self.live else {
            return Ok(Vec::new());
        };
        let Opened { number, packet, .. } = opened;
        let (now, session) = (arrival.now, &mut live.session);
        let handled = session.handle_packet(now, number, packet, length, arrival.ecn, store);
        let Err(error) = handled else {
            let answer = session.take_path_answer();
            answer
                .into_iter()
                .for_each(|token| self.paths.on_answer(token));
            return Ok(Vec::new());
        };
        let (mut farewell, reason) = (Vec::new(), error.to_string());
        let room = self.paths.room(arrival.from);
        if room >= CHALLENGE_LEN {
            session.set_room(room - DATAGRAM_OVERHEAD);
            session.close(CloseCode::Protocol, &reason);
            live.seal(now, &mut farewell, store);
            self.paths.on_sent(arrival.from, farewell.len());
        }
        if let PacketError::Report(report) = error
            && report.is_lie()
        {
            self.distrust.on_lie(now);
            // An offer that is not proven yet would begin a session.
            self.pending.clear();
        }
        self.end(DownReason::Protocol(reason));
        Ok(farewell)
    }

    fn open<'a>(
        &mut self,
        arrival: &Arrival,
        number: u32,
        datagram: &'a mut [u8],
    ) -> Result<Opened<'a>, Refused> {
        if let Some(live) = self.live.as_mut().filter(|live| live.has(arrival.index)) {
            return live.open(arrival.now, arrival.index, number, datagram);
        }
        let at = self.pending_at(arrival.index).ok_or(Refused::Forged)?;
        let pending = &self.pending[at];
        let offered_at = pending.at;
        let new = Window::default();
        let window = match &self.live {
            Some(live) if pending.continues == Some(live.id) => &live.window,
            _ => &new,
        };
        let (number, packet) = open(&pending.generation, window, number, datagram)?;
        self.promote(arrival.now, at)?;
        offered_at.into_iter().for_each(|at| self.paths.prove(at));
        let live = self.live.as_mut().ok_or(Refused::Forged)?;
        Ok(live.opened(arrival.now, number, packet))
    }

    /// Returns true if an arrival may update the peer's remote. A change of carrier comes with new
    /// keys: packets under older keys by another carrier were already in flight.
    fn says_where(&self, arrival: &Arrival) -> bool {
        let live = self.live.as_ref();
        live.is_some_and(|live| live.current().index == arrival.index)
            || self.is_by(arrival.from.carrier)
    }

    /// Installs keys in the same or a new session; fails if the session they continue is over.
    fn install(&mut self, agreed: Pending, rtt: Duration, initiator: bool) -> bool {
        let now = agreed.generation.since;
        let (said, heard) = (agreed.said, agreed.terms.unreached);
        match &mut self.live {
            Some(live) if agreed.continues == Some(live.id) => live.renew(agreed.generation),
            _ if agreed.continues.is_some() => return false,
            _ => self.begin(agreed, rtt, initiator),
        }
        (self.said, self.unreached) = (said, heard);
        self.failed = None;
        self.answers_rejected = 0;
        self.initiations.succeeded(now);
        self.stir();
        true
    }

    fn begin(&mut self, agreed: Pending, rtt: Duration, initiator: bool) {
        self.end(DownReason::Replaced);
        let mut config = agreed.terms.agree(&self.config.session);
        config.initiator = initiator;
        // Other places in each session, which the peer cannot know.
        let name = agreed.generation.keys.name.to_be_bytes();
        let seed = config.skips.seed.iter_mut().zip(name);
        seed.for_each(|(byte, name)| *byte ^= name);
        if !rtt.is_zero() {
            config.rtt = rtt;
        }
        let mut session = Session::new(config, agreed.generation.since);
        self.trace.at(agreed.generation.since);
        self.trace.push(|| TraceEvent::Session { begins: true });
        *session.trace() = std::mem::take(&mut self.trace);
        self.live = Some(Live::new(session, agreed.generation));
        self.note_carrier();
        self.began = true;
        self.events.push_back(PeerEvent::Up);
    }

    /// Ends the session, if there is one.
    fn end(&mut self, reason: DownReason) {
        if let Some(mut live) = self.live.take() {
            self.trace = std::mem::take(live.session.trace());
            self.trace.push(|| TraceEvent::Session { begins: false });
            self.config.session.memory = Some(live.session.memory(live.heard));
            self.events.push_back(PeerEvent::Down(reason));
        }
    }

    /// Records a failed handshake.
    pub fn failed(&mut self, error: HandshakeError) {
        if self.failed.replace(error) != Some(error) {
            self.events.push_back(PeerEvent::Failed(error));
        }
    }

    // --- sending ---

    /// Returns when there may be something to send: the same until the peer changes, or the
    /// endpoint shuts down.
    pub fn times(&self, local: &Local) -> Times {
        let (initiation, report) = (self.initiation_due(local), Duration::MAX);
        if self.live.is_none() {
            let work = initiation.unwrap_or(Duration::MAX);
            return Times { work, report };
        }
        let others = [self.probe_due(local), self.confirmation_due()];
        let times = others.into_iter().chain([initiation]).flatten();
        Times {
            work: times.fold(self.wake, Duration::min),
            report: self.report,
        }
    }

    fn initiation_due(&self, local: &Local) -> Option<Duration> {
        if local.ending || self.callable().is_none() && self.should_be().is_none() {
            return None;
        }
        let live = self.live.as_ref().filter(|_| !self.is_handshake_due());
        let wanted = live.map(|live| live.wants_keys(&local.limits).min(self.news_due()));
        let earliest = self.initiations.next.max(self.distrust.until());
        Some(wanted.unwrap_or_default().max(earliest))
    }

    /// Returns when to tell the peer of hosts that the local end does not reach, or reaches again.
    fn news_due(&self) -> Duration {
        match self.said == self.config.session.unreached {
            true => Duration::MAX,
            false => self.say_next,
        }
    }

    /// Returns when to confirm keys to the peer, if it has room for that.
    fn confirmation_due(&self) -> Option<Duration> {
        let live = self.live.as_ref()?;
        let due = live.wants_to_confirm();
        due.filter(|_| self.room() >= CONFIRMATION_LEN)
    }

    /// Writes one datagram, if one may be sent now; returns its destination and mark.
    pub fn poll(
        &mut self,
        now: Duration,
        local: &mut Local,
        out: &mut Vec<u8>,
        store: &mut impl Store,
    ) -> Option<(Remote, Ecn)> {
        let start = out.len();
        let (to, ecn) = self.write(now, local, out, store)?;
        self.paths.on_sent(to, out.len() - start);
        Some((to, ecn))
    }

    fn write(
        &mut self,
        now: Duration,
        local: &mut Local,
        out: &mut Vec<u8>,
        store: &mut impl Store,
    ) -> Option<(Remote, Ecn)> {
        if self.confirmation_due().is_some_and(|at| at <= now) {
            let again = now + local.limits.retry.max(self.pause_min);
            self.live.as_mut()?.confirm(again, out);
            return self.remote.map(plainly);
        }
        if self.initiation_due(local).is_some_and(|at| at <= now) {
            let to = self.number_to_call(now, &self.limits(&local.limits))?;
            self.initiate(now, to, local, out);
            self.doubt_last();
            return Some(plainly(to));
        }
        if self.probe_due(local).is_some_and(|at| at <= now) {
            let to = self.number_to_probe(now)?;
            self.initiate(now, to, local, out);
            return Some(plainly(to));
        }
        self.write_packet(now, local, out, store)
    }

    /// Writes a packet of the session, and with it a challenge if one is due.
    fn write_packet(
        &mut self,
        now: Duration,
        local: &mut Local,
        out: &mut Vec<u8>,
        store: &mut impl Store,
    ) -> Option<(Remote, Ecn)> {
        let remote = self.remote.filter(|_| !self.held);
        let challenge = remote.and_then(|remote| self.paths.challenge_due(remote));
        let is_due = challenge.is_some_and(|at| at <= now);
        let room = remote.map_or(0, |remote| self.paths.room_for_packet(remote, is_due));
        let live = self.live.as_mut()?;
        let Some(remote) = remote.filter(|_| room >= CHALLENGE_LEN) else {
            // Silence detection continues, or the loss of the peer would go unnoticed.
            let times = [live.session.wait(now), challenge];
            self.wake = times.into_iter().flatten().min().unwrap_or(Duration::MAX);
            self.report = Duration::MAX;
            self.has_events = true;
            return None;
        };
        live.session.set_room(room - DATAGRAM_OVERHEAD);
        let mut token = None;
        if is_due {
            let interval = live.session.smoothed_rtt() * 5 / 4;
            let random = || u64::from_be_bytes(local.random());
            token = self.paths.challenge(now, remote, interval, random);
        }
        live.session.challenge_path(token);
        let Some(ecn) = live.seal(now, out, store) else {
            let work = live.session.deadline_but_report();
            let times = [work, self.paths.challenge_due(remote)];
            self.wake = times.into_iter().flatten().min().unwrap_or(Duration::MAX);
            self.report = live.session.report_deadline();
            return None;
        };
        self.has_events = true;
        Some((remote, ecn))
    }

    /// Gives up an address at which the peer has not been heard.
    fn doubt_last(&mut self) {
        if self.live.is_some() || self.initiations.tries < LAST_CALLS {
            return;
        }
        let is_last = self.remote == self.config.last.map(Remote::from);
        let addresses = self.addresses.list();
        let is_one = |remote: Remote| addresses.contains(&remote.address);
        // The peer's name has pointed elsewhere for long: another host may have the address now.
        let has_left = !addresses.is_empty() && !self.remote.is_some_and(is_one);
        if is_last || has_left {
            self.remote = None;
            self.paths = Paths::default();
        }
    }

    fn initiate(&mut self, now: Duration, to: Remote, local: &mut Local, out: &mut Vec<u8>) {
        let index = self.new_index(local);
        let (continues, next) = match &self.live {
            Some(live) => (Some(live.id), live.next),
            None => (None, 0),
        };
        let counter = self.counters.next();
        let terms = Terms::from_config(&self.config.session, counter, continues, next);
        let limits = self.limits(&local.limits);
        self.say_next = now + limits.retry;
        self.initiations.write(
            now,
            to,
            index,
            &terms,
            &self.config,
            &self.mac,
            (local, &limits),
            out,
        );
    }

    /// Returns the next event. `retry` is the pause between two calls.
    pub fn poll_event(&mut self, retry: Duration) -> Option<PeerEvent> {
        if let Some(event) = self.events.pop_front() {
            return Some(event);
        }
        if !self.has_events {
            return None;
        }
        let event = self
            .live
            .as_mut()
            .and_then(|live| live.session.poll_event());
        self.has_events = event.is_some();
        if let Some(Event::PeerClosed { code, .. }) = &event {
            self.on_closed(*code, retry);
            self.end(match code {
                CloseCode::Elsewhere => DownReason::Elsewhere,
                CloseCode::Shutdown | CloseCode::Protocol | CloseCode::Limit => {
                    DownReason::PeerClosed
                }
            });
        }
        event.map(PeerEvent::Session)
    }
}

fn pause_min(session: &SessionConfig) -> Duration {
    let rate = session.rate.stated().unwrap_or(u64::MAX) / HANDSHAKES;
    time_of((INITIATION_LEN + session.overhead) as u64, rate)
}

/// Returns the address of the peer known from a previous endpoint.
fn last(config: &PeerConfig) -> Option<Remote> {
    let by_udp = config.carriers.include(Carrier::Udp);
    config.last.filter(|_| by_udp).map(Remote::from)
}

/// Returns the destination with the mark of all packets other than datagrams.
fn plainly(to: Remote) -> (Remote, Ecn) {
    (to, Ecn::Ect0)
}

/// Times at which a peer may have something to send; [`Duration::MAX`] for never.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Times {
    /// Time of everything but a report.
    work: Duration,
    /// Time of a report alone, unless the endpoint delays reports.
    report: Duration,
}

impl Times {
    pub fn due(&self, local: &Local) -> Option<Duration> {
        let due = self.work.min(self.report.max(local.reports_from));
        (due < Duration::MAX).then_some(due)
    }
}

/// Arrival time, source and receiver index of a datagram.
pub(super) struct Arrival {
    pub now: Duration,
    pub from: Remote,
    pub ecn: Ecn,
    pub index: u32,
}
