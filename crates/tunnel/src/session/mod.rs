//! One tunnel in plain text: streams, and the packets that carry them over the link.
//!
//! ```text
//!  open, written, finish        +--------+  segment  +----------+  new number  +--------+
//!  --------------> streams ---> |  pack  | --------> | delivery | -----------> | coding |-> packet
//!                  scheduler    +--------+           +----------+  or again    +--------+
//!                                                         ^ acknowledged, lost
//!                                                         |
//!  events, Store   +---------+   segment   +----------+   reports    +--------+
//!  <-------------- |  parts  | <---------- | arrivals | <----------- | decode | <--------- packet
//!                  +---------+             +----------+              +--------+
//! ```
//!
//! Every packet has a number, used once. Data that must arrive is in segments, which have their own
//! numbers and are retransmitted until acknowledged. A segment stores the positions of its bytes;
//! the bytes stay with the caller.
//!
//! Datagrams (`messages`) need not arrive: the session asks the caller for one on its turn, and
//! sends it once.

mod blocked;
mod config;
mod error;
mod event;
mod feedback;
mod held;
mod messages;
mod pack;
mod parts;
mod receive;
mod segment;
mod send;
mod skips;
mod stats;
mod steady;
#[cfg(test)]
mod tests;
mod trace;
mod validation;

use std::{
    collections::{BTreeMap, VecDeque},
    ops::Range,
    time::Duration,
};

pub use crate::{
    outage::{LinkHint, Outages},
    rate::Rate,
    store::PacketQueue,
};
use blocked::Blocked;
pub use config::{SessionConfig, SkipConfig, Unreached};
pub use error::{PacketError, TooManyQueues, TooManyStreams};
pub use event::Event;
use held::Held;
use messages::Messages;
pub use messages::QUEUES_MAX;
use segment::{Segment, Sent};
use send::Sending;
use skips::Skips;
pub use stats::{Measures, PathState, SessionStats};
use steady::LastSteady;
use validation::Validation;

use crate::{
    arrival::{Arrivals, Timing},
    cause::{CauseCounts, Classifier, LossEvent},
    class::Class,
    coding::{Decoding, Encoding},
    delivery::Delivery,
    ecn::Ecn,
    outage::{Expected, Silence},
    path::{Mtu, PathMemory},
    rate::{Batch, Calm, Controller, ControllerConfig, Pacer, time_of},
    schedule::{HostId, Scheduler, SiteId},
    stream::Streams,
    wire::{CloseCode, DATAGRAM_OVERHEAD, ResetCode, StreamId},
};

/// Control parts that wait to be sent, two more for each stream, and events that wait for the
/// caller, beyond which no segment is taken.
const CONTROL_MAX: usize = 1024;
const EVENTS_MAX: usize = 1 << 14;

/// Limits of [`Session::may_wait`].
const WAITS_PER_ROUND_TRIP: u32 = 16;
const WAIT_MAX: Duration = Duration::from_millis(20);
const DATAGRAM_WAIT_MAX: Duration = Duration::from_millis(1);
const STEADY_WAIT_MAX: Duration = Duration::from_millis(2);
/// Time for which an interactive stream that was used is expected to be used again.
const URGENT_FOR: Duration = Duration::from_secs(10);

/// One end of a tunnel.
#[derive(Debug)]
pub struct Session {
    config: SessionConfig,
    streams: Streams,
    scheduler: Scheduler,
    messages: Messages,
    /// Stream headers of openings that the peer has not acknowledged yet.
    openings: BTreeMap<StreamId, Box<[u8]>>,
    /// Queued streams, and the positions until which they are queued.
    queued: BTreeMap<StreamId, u64>,
    /// Streams that wait for credit of the session.
    blocked: Blocked,
    /// Control parts to send before streams' bytes.
    control: VecDeque<Sent>,
    delivery: Delivery<Segment>,
    skips: Skips,
    /// True if no packet of the peer is missing since its last report.
    is_gapless: bool,
    encoding: Encoding,
    pacer: Pacer,
    calm: Calm,
    controller: Controller,
    classifier: Classifier,
    losses: Vec<LossEvent>,
    /// Until then, there are no copies of retransmissions.
    uncopied_until: Duration,
    mtu: Mtu,
    silence: Silence,
    /// Time since which there has been no stream, and nothing unacknowledged.
    idle_since: Option<Duration>,
    /// The current outage affects both directions.
    unheard: bool,
    arrivals: Arrivals,
    /// `None` only while in use.
    decoding: Option<Decoding>,
    held: Held,
    /// MTU probe to acknowledge.
    mtu_arrived: Option<u16>,
    /// A report of the peer is to be requested.
    asks: bool,
    validation: Validation,
    closing: Option<(CloseCode, String)>,
    /// The peer has closed the session.
    peer_closed: bool,
    events: VecDeque<Event>,
    /// Spacing of the peer's reports.
    spacing: Duration,
    /// The carrier loses nothing.
    reliable: bool,
    /// Buffer for the segment being written.
    scratch: Vec<u8>,
    sending: Sending,
    /// Last time at which an interactive stream sent or received.
    urgent_at: Option<Duration>,
    /// The steady streams that sent and received last.
    steady: [LastSteady; 2],
    /// Arrival of the packet being handled.
    arrived_at: Duration,
    /// Time of the last link check, if only packets were sent since.
    looked: Option<Duration>,
    /// Segments acknowledged by the report being handled.
    acked: Vec<Segment>,
    stats: SessionStats,
    trace: ::trace::Trace,
}

/// A packet that has been written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    /// Packet number, never reused.
    pub number: u64,
    /// Mark for the datagram.
    pub ecn: Ecn,
}

impl Session {
    /// Creates a session that begins at `now`.
    pub fn new(config: SessionConfig, now: Duration) -> Self {
        let packet = (config.packet_max + config.overhead) as u64;
        let controller = Controller::new(
            &ControllerConfig {
                rate: config.rate,
                rtt: config.rtt,
                packet,
                overhead: (config.overhead as u64).saturating_sub(DATAGRAM_OVERHEAD as u64),
                remembered: config
                    .memory
                    .and_then(|memory| memory.first_rate(now, None)),
            },
            now,
        );
        let rate = controller.safe_rate();
        let mut mtu = Mtu::new(config.packet_start, config.packet_max);
        mtu.suit(config.longest_packet(rate));
        let [ours, back] = config.report_rates(rate, config.rtt);
        let stated = config.rate.stated().is_some() && config.return_rate.is_some();
        let timing = |rate| Timing {
            rtt: config.rtt,
            rate: Some(rate),
        };
        let expected = Expected {
            reports: timing(back),
            packet: time_of(packet, rate.min(back)),
            queue: Duration::ZERO,
        };
        Self {
            streams: Streams::new(
                config.initiator,
                config.stream_credit,
                config.streams_max,
                config.session_credit,
            ),
            scheduler: Scheduler::new(),
            messages: Messages::default(),
            openings: BTreeMap::new(),
            queued: BTreeMap::new(),
            blocked: Blocked::default(),
            control: VecDeque::new(),
            delivery: Delivery::new(config.rtt).with_kept_max(config.kept_max),
            skips: Skips::new(&config.skips),
            is_gapless: true,
            encoding: Encoding::new(config.packet_max, config.overhead_max),
            pacer: Pacer::new(controller.rate(), Batch::for_path(config.rtt, false)),
            calm: Calm::new(now),
            controller,
            classifier: Classifier::new(),
            losses: Vec::new(),
            uncopied_until: now,
            mtu,
            silence: Silence::new(config.outages, &expected, now),
            idle_since: None,
            unheard: false,
            // A hub answers the beacons of its peers.
            arrivals: Arrivals::new(timing(ours), now)
                .with_rates_stated(stated)
                .with_beacons_following(!config.initiator),
            decoding: Some(Decoding::new(config.packet_max)),
            held: Held::default(),
            mtu_arrived: None,
            asks: false,
            validation: Validation::default(),
            closing: None,
            peer_closed: false,
            events: VecDeque::new(),
            spacing: timing(config.return_rate.unwrap_or(rate)).spacing(),
            reliable: false,
            scratch: Vec::new(),
            sending: Sending::default(),
            urgent_at: None,
            steady: Default::default(),
            arrived_at: now,
            looked: None,
            acked: Vec::new(),
            stats: SessionStats::default(),
            trace: ::trace::Trace::default(),
            config,
        }
    }

    /// Returns the counters of the session.
    pub fn stats(&self) -> SessionStats {
        self.stats
    }

    /// Returns counts of the causes of packet loss.
    pub fn causes(&self) -> CauseCounts {
        self.classifier.counts()
    }

    /// Returns the state of the path.
    pub fn path(&self) -> PathState {
        let link_rate = self.controller.link_rate();
        PathState {
            // The first packets on a link of unknown rate leave unpaced; that is not a rate.
            rate: match self.controller.rate() {
                u64::MAX => link_rate,
                rate => rate,
            },
            link_rate,
            stated: self.config.rate.stated(),
            found: self.controller.found(),
            rtt: self.delivery.smoothed_rtt(),
            rtt_min: self.delivery.min_rtt(),
            loss: self.encoding.loss(),
            fec_overhead: self.encoding.share(),
            packet: self.mtu.size(),
            link: self.silence.state(),
        }
    }

    /// Returns the estimated time for which the peer continues to send without an acknowledgement
    /// of its first segment.
    pub fn peer_window(&self) -> Duration {
        self.delivery.window_time(self.arrivals.spacing())
    }

    /// Returns the share of sent packets that the link itself loses, 0 to 1: [`PathState::loss`]
    /// without congestion losses.
    pub fn link_loss(&self) -> f64 {
        self.encoding.link_loss()
    }

    /// Returns the rate at which the peer states it sends, in bits per second, if known.
    pub fn return_rate(&self) -> Option<u64> {
        self.config.return_rate
    }

    /// Returns how long packets from the peer may wait for others, so that they are handled
    /// together: a sixteenth of a round trip, 20 ms at most. Within 3 s of bytes of a steady stream
    /// it is 2 ms at most, while datagrams arrive 1 ms. Within 10 s of bytes of an interactive
    /// stream it is 0. Steady are streams of class `normal` that do not fill the link.
    pub fn may_wait(&self, now: Duration) -> Duration {
        self.longest_wait().min(self.suitable_wait(now))
    }

    /// Returns the longest time that suits what was sent and received lately.
    fn suitable_wait(&self, now: Duration) -> Duration {
        if self.urgent_at.is_some_and(|at| now < at + URGENT_FOR) {
            Duration::ZERO
        } else if self.messages.is_talking(now) {
            DATAGRAM_WAIT_MAX
        } else if self.steady.iter().any(|steady| steady.is_used(now)) {
            STEADY_WAIT_MAX
        } else {
            WAIT_MAX
        }
    }

    /// Returns the longest time that an end lets packets of streams wait for others.
    fn longest_wait(&self) -> Duration {
        (self.delivery.smoothed_rtt() / WAITS_PER_ROUND_TRIP).min(WAIT_MAX)
    }

    /// Returns the time without packets from the peer after which the link counts as silent.
    pub fn silence_limit(&self) -> Duration {
        self.silence.limit()
    }

    /// Returns when the peer was last expected to begin to send as often as with streams. The
    /// [limit](Self::silence_limit) counts from then or from its last packet, whichever is later.
    pub fn expected_since(&self) -> Duration {
        self.silence.expected_since()
    }

    /// Returns unsmoothed measurements of the path.
    pub fn measures(&self) -> Measures {
        Measures {
            rtt: self.delivery.latest_rtt(),
            sent: self.encoding.counted(),
            received: self.arrivals.counts(),
        }
    }

    /// Returns path parameters for a later session.
    pub fn memory(&self, now: Duration) -> PathMemory {
        let path = self.path();
        PathMemory {
            at: now,
            rate: path.link_rate,
            rtt: path.rtt_min,
            loss: path.loss,
            packet: path.packet,
        }
    }

    /// Returns the next event; call until it returns `None`.
    pub fn poll_event(&mut self) -> Option<Event> {
        let event = self.events.pop_front()?;
        self.trace_event(&event);
        Some(event)
    }

    /// Opens a stream. Streams of a site share the site's part of their class.
    ///
    /// # Errors
    /// The peer's stream limit is reached, or the stream header is too long.
    pub fn open(
        &mut self,
        class: Class,
        site: SiteId,
        stream_header: &[u8],
    ) -> Result<StreamId, TooManyStreams> {
        let stream = self.streams.open(class).ok_or(TooManyStreams)?;
        self.looked = None;
        self.openings.insert(stream, stream_header.into());
        self.scheduler.insert(stream, class, site);
        self.update_readiness(stream);
        self.trace_stream(stream, "open");
        Ok(stream)
    }

    /// Declares the stream's bytes below `until` readable from the store.
    pub fn written(&mut self, stream: StreamId, until: u64) {
        self.streams.written(stream, until);
        self.update_readiness(stream);
    }

    /// Returns bytes of a stream that the peer has beyond those of [`Acked`](Event::Acked), as runs
    /// in rising order. The session does not read them again either.
    pub fn acked_beyond(&self, stream: StreamId) -> impl Iterator<Item = Range<u64>> {
        self.streams.acked_beyond(stream)
    }

    /// Ends the stream after the written bytes.
    pub fn finish(&mut self, stream: StreamId) {
        self.streams.finish(stream);
        self.trace_stream(stream, "half_closed_local");
        self.update_readiness(stream);
    }

    /// Resets the stream in both directions.
    pub fn reset(&mut self, stream: StreamId, code: ResetCode) {
        self.looked = None;
        // The peer needs the opening to understand the reset.
        self.control.extend(self.opening(stream));
        if let Some(sent) = self.streams.reset(stream) {
            self.forget(stream);
            self.control.push_back(Sent::Reset(stream, code, sent));
            self.trace_stream(stream, "reset_sent");
        }
    }

    /// Allows the peer to send the stream's bytes below `until`.
    pub fn allow(&mut self, stream: StreamId, until: u64) {
        if self.streams.allow(stream, until) {
            self.queue_credit(stream);
        }
    }

    /// Asks the peer to send no further bytes of the stream until [`allow`](Self::allow) is called
    /// with a higher position. What is on its way, or lacks an answer, still comes. Returns false,
    /// and has no effect, if the stream is held already, or the end of its bytes is known.
    pub fn hold(&mut self, stream: StreamId) -> bool {
        let Some(is_news) = self.streams.hold(stream) else {
            return false;
        };
        if is_news {
            self.control.push_back(Sent::Hold(stream));
        }
        true
    }

    /// Returns true if the stream is [held](Self::hold).
    pub fn is_held(&self, stream: StreamId) -> bool {
        self.streams.held_at(stream).is_some()
    }

    /// Sets the initial send credit of the stream, instead of the default. Call before any bytes
    /// are sent; later credit from the peer adds to it.
    pub fn limit_send(&mut self, stream: StreamId, until: u64) {
        self.streams.limit_send(stream, until);
        self.update_readiness(stream);
    }

    /// Sets the initial receive credit of the stream. The peer must learn it by other means, or it
    /// would use the default. Call before any bytes have come and before [`allow`](Self::allow).
    pub fn limit_receive(&mut self, stream: StreamId, until: u64) {
        self.streams.limit_receive(stream, until);
    }

    /// Returns the bytes of all streams together that the peer has sent, including lost bytes of
    /// reset streams. Add the number of bytes it may still send for
    /// [`allow_session`](Self::allow_session).
    pub fn session_received(&self) -> u64 {
        self.streams.session_received()
    }

    /// Returns the bytes of all streams together that the peer may send, since the session began.
    pub fn session_allowed(&self) -> u64 {
        self.streams.session_allowed()
    }

    /// Allows the peer to send this many bytes of all streams together, since the session began.
    pub fn allow_session(&mut self, until: u64) {
        if self.streams.allow_session(until) && self.streams.queue_session_credit() {
            self.control.push_back(Sent::SessionCredit);
        }
    }

    /// Assigns the stream to a site, whose streams share its part of the class's capacity. Streams
    /// opened by the peer begin at site 0.
    pub fn set_site(&mut self, stream: StreamId, site: SiteId) {
        self.scheduler.set_site(stream, site);
    }

    /// Assigns the stream to a host, whose streams share its part of the site's capacity. Streams
    /// begin at host 0.
    pub fn set_host(&mut self, stream: StreamId, host: HostId) {
        self.scheduler.set_host(stream, host);
    }

    /// Gives the stream priority within its site and class until its bytes below `until` are sent.
    /// Queued streams with a lower `place`, e.g. their start time, go first. Ignored if the bytes
    /// are already sent.
    pub fn queue(&mut self, stream: StreamId, place: u64, until: u64) {
        if self.streams.sent(stream).is_some_and(|sent| sent < until) {
            self.scheduler.queue(stream, place);
            let queued = self.queued.entry(stream).or_default();
            *queued = (*queued).max(until);
        }
    }

    /// Sets the weight of a site; the default is 1.
    pub fn set_weight(&mut self, site: SiteId, weight: u32) {
        self.scheduler.set_weight(site, weight);
        self.messages.scheduler.set_weight(site, weight);
    }

    /// Changes the class of the stream, at both ends.
    pub fn set_class(&mut self, stream: StreamId, class: Class) {
        if self.streams.class(stream).is_some_and(|old| old != class) {
            self.reclass(stream, class);
            // A pending opening carries the class.
            if !self.streams.is_unannounced(stream) {
                self.control.push_back(Sent::Reclass(stream));
            }
        }
    }

    /// Takes an external hint about the link's state.
    pub fn hint(&mut self, now: Duration, link: LinkHint) {
        self.looked = None;
        let rtt = self.delivery.smoothed_rtt();
        let change = self.silence.hint(now, link, rtt);
        self.report_change(now, change);
    }

    /// Sets whether the carrier is reliable and keeps the order, as TCP does. A reliable carrier
    /// disables FEC, loss classification, MTU probes, and loss by age, as packets only wait.
    /// Packets overtaken by later ones are still retransmitted: they were sent on a connection that
    /// has failed. Loss statistics are kept for later.
    pub fn set_reliable(&mut self, reliable: bool) {
        self.reliable = reliable;
        self.delivery.set_reliable(reliable);
    }

    /// Requests a report with the next packet: the peer shows by it that it is there.
    pub fn ask(&mut self) {
        self.asks = true;
    }

    /// Closes the session, and notifies the peer once.
    pub fn close(&mut self, code: CloseCode, reason: &str) {
        self.closing = Some((code, reason.to_owned()));
    }

    fn reclass(&mut self, stream: StreamId, class: Class) {
        self.streams.set_class(stream, class);
        self.scheduler.set_class(stream, class);
    }

    /// Updates the readiness of a stream in the scheduler.
    fn update_readiness(&mut self, stream: StreamId) {
        if self.streams.has_unsent(stream) {
            self.blocked.remove(stream);
            self.scheduler.ready(stream);
            return;
        }
        self.scheduler.idle(stream);
        if let Some(class) = self.streams.blocked_class(stream) {
            self.blocked.insert(stream, class);
        }
    }

    /// Wakes some of the streams that wait for credit of the session, if there is some.
    fn wake_blocked(&mut self) {
        let (sent, credit) = self.streams.session_sent();
        for stream in self.blocked.wake(sent, credit) {
            self.stats.streams_woken += 1;
            self.update_readiness(stream);
        }
    }

    /// Announces the stream's credit to the peer, unless an announcement waits already.
    fn queue_credit(&mut self, stream: StreamId) {
        if self.streams.queue_credit(stream) {
            self.control.push_back(Sent::Credit(stream));
        }
    }

    /// Returns true if no segment may be taken that makes parts to send: the peer does not read.
    fn is_backed_up(&self) -> bool {
        self.control.len() >= CONTROL_MAX + 3 * self.streams.len()
    }

    /// Reports the readable position of a stream. Replaces an event that has not been polled yet.
    fn report_readable(&mut self, stream: StreamId, until: u64) {
        match self.events.back_mut() {
            Some(Event::Readable {
                stream: s,
                until: u,
            }) if *s == stream => *u = until,
            _ => self.events.push_back(Event::Readable { stream, until }),
        }
    }

    /// Reports the acknowledged position of a stream, likewise.
    fn report_acked(&mut self, stream: StreamId, until: u64) {
        match self.events.back_mut() {
            Some(Event::Acked {
                stream: s,
                until: u,
            }) if *s == stream => *u = until,
            _ => self.events.push_back(Event::Acked { stream, until }),
        }
    }

    /// Removes a stream.
    fn forget(&mut self, stream: StreamId) {
        self.queued.remove(&stream);
        self.blocked.forget(stream);
        self.scheduler.remove(stream);
    }
}
