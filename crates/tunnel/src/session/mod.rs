//! One tunnel: streams, and the packets that carry them over the link, in plain text.
//!
//! ```text
//!   open, written, finish          +-----------+  segment   +----------+  new number   +-------+
//!   ---------------> streams ----> |   pack    | ---------> | delivery | ------------> | coding| --> packet
//!                    scheduler     +-----------+            +----------+  or again     +-------+
//!                                                                ^ acknowledged, lost
//!                                                                |
//!   events, Store    +----------+    segment   +----------+   reports      +--------+
//!   <--------------- |  parts   | <----------- | arrivals | <------------- | decode | <---------- packet
//!                    +----------+              +----------+                +--------+
//! ```
//!
//! Every packet has a number, used once. What must arrive is in segments, which have numbers of
//! their own and are sent until they are acknowledged; a segment is known by the positions of its
//! bytes, which stay with the caller.
//!
//! Packets beside streams (`messages`) need not arrive: the caller is asked for one when it is its
//! turn, and it is sent once.

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
mod stats;
#[cfg(test)]
mod tests;
mod trace;

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
pub use config::SessionConfig;
pub use error::{PacketError, TooManyQueues, TooManyStreams};
pub use event::Event;
use held::Held;
use messages::Messages;
pub use messages::QUEUES_MAX;
use segment::{Segment, Sent};
use send::Sending;
pub use stats::{Measures, PathState, SessionStats};

use crate::{
    arrival::{Arrivals, Timing},
    cause::{CauseCounts, Classifier, LossEvent},
    class::Class,
    coding::{Decoding, Encoding},
    delivery::Delivery,
    ecn::Ecn,
    outage::{Expected, Silence},
    path::{Mtu, PathMemory},
    rate::{Batch, Controller, ControllerConfig, Pacer, time_of},
    schedule::{HostId, Scheduler, SiteId},
    stream::Streams,
    wire::{CloseCode, DATAGRAM_OVERHEAD, ResetCode, StreamId},
};

/// One side of a tunnel.
#[derive(Debug)]
pub struct Session {
    config: SessionConfig,
    streams: Streams,
    scheduler: Scheduler,
    messages: Messages,
    /// What the openings of streams say that the peer has not acknowledged yet.
    openings: BTreeMap<StreamId, Box<[u8]>>,
    /// Streams that go before others, and until which position.
    queued: BTreeMap<StreamId, u64>,
    /// What is to be said before streams' bytes.
    control: VecDeque<Sent>,
    delivery: Delivery<Segment>,
    encoding: Encoding,
    pacer: Pacer,
    controller: Controller,
    classifier: Classifier,
    losses: Vec<LossEvent>,
    mtu: Mtu,
    silence: Silence,
    /// Since when there has been no stream, and nothing that the peer may lack.
    idle_since: Option<Duration>,
    /// The outage that lasts is one of both directions.
    unheard: bool,
    arrivals: Arrivals,
    /// `None` only while it is at work.
    decoding: Option<Decoding>,
    held: Held,
    /// An MTU probe that is to be acknowledged.
    mtu_arrived: Option<u16>,
    closing: Option<(CloseCode, String)>,
    events: VecDeque<Event>,
    /// The pace of the peer's reports.
    spacing: Duration,
    /// The carrier loses nothing.
    reliable: bool,
    /// A segment in the making.
    scratch: Vec<u8>,
    sending: Sending,
    /// When it was last looked whether the link is there, if nothing has happened since but that
    /// packets were sent.
    looked: Option<Duration>,
    /// What a report has acknowledged, while it is handled.
    acked: Vec<Segment>,
    stats: SessionStats,
    trace: ::trace::Trace,
}

/// A packet that has been written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    /// Its number, which no other packet of this side ever has.
    pub number: u64,
    /// The mark that its datagram is to have.
    pub ecn: Ecn,
}

impl Session {
    /// A session that begins at `now`.
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
            control: VecDeque::new(),
            delivery: Delivery::new(config.rtt),
            encoding: Encoding::new(config.packet_max, config.overhead_max),
            pacer: Pacer::new(controller.rate(), Batch::for_round_trip(config.rtt)),
            controller,
            classifier: Classifier::new(),
            losses: Vec::new(),
            mtu,
            silence: Silence::new(config.outages, &expected, now),
            idle_since: None,
            unheard: false,
            arrivals: Arrivals::new(timing(ours), now).with_rates_stated(stated),
            decoding: Some(Decoding::new(config.packet_max)),
            held: Held::default(),
            mtu_arrived: None,
            closing: None,
            events: VecDeque::new(),
            spacing: timing(config.return_rate.unwrap_or(rate)).spacing(),
            reliable: false,
            scratch: Vec::new(),
            sending: Sending::default(),
            looked: None,
            acked: Vec::new(),
            stats: SessionStats::default(),
            trace: ::trace::Trace::default(),
            config,
        }
    }

    /// What it has done so far.
    pub fn stats(&self) -> SessionStats {
        self.stats
    }

    /// Why our packets did not arrive, as far as can be told.
    pub fn causes(&self) -> CauseCounts {
        self.classifier.counts()
    }

    /// How things are on the path.
    pub fn path(&self) -> PathState {
        let link_rate = self.controller.link_rate();
        PathState {
            // The first packets of a link of unknown rate leave unpaced: that is not a rate.
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

    /// For how long the peer goes on sending without hearing that the first of it has arrived, as
    /// far as we know.
    pub fn peer_window(&self) -> Duration {
        self.delivery.window_time(self.arrivals.spacing())
    }

    /// The share of our packets that the link loses by itself, 0 to 1: [`PathState::loss`] without
    /// what is lost in congestion.
    pub fn link_loss(&self) -> f64 {
        self.encoding.link_loss()
    }

    /// How fast the peer says that it sends, in bits a second, if it knows.
    pub fn return_rate(&self) -> Option<u64> {
        self.config.return_rate
    }

    /// After how long without a packet of the peer's the link is taken to be silent.
    pub fn silence_limit(&self) -> Duration {
        self.silence.limit()
    }

    /// What has been measured of the path, unsmoothed.
    pub fn measures(&self) -> Measures {
        Measures {
            rtt: self.delivery.latest_rtt(),
            sent: self.encoding.counted(),
            received: self.arrivals.counts(),
        }
    }

    /// What a later session may begin with.
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

    /// What has happened; ask until there is nothing.
    pub fn poll_event(&mut self) -> Option<Event> {
        let event = self.events.pop_front()?;
        self.trace_event(&event);
        Some(event)
    }

    /// Opens a stream. Streams of the same site share what their class gets of the link.
    ///
    /// # Errors
    /// If there are as many streams as the peer takes, or the greeting is too long.
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

    /// The stream's bytes below `until` can be read from the store.
    pub fn written(&mut self, stream: StreamId, until: u64) {
        self.streams.written(stream, until);
        self.update_readiness(stream);
    }

    /// Bytes of a stream that the peer has beyond those of [`Acked`](Event::Acked), as runs in
    /// rising order: they are not asked for again either.
    pub fn acked_beyond(&self, stream: StreamId) -> impl Iterator<Item = Range<u64>> {
        self.streams.acked_beyond(stream)
    }

    /// The stream ends after what is written.
    pub fn finish(&mut self, stream: StreamId) {
        self.streams.finish(stream);
        self.trace_stream(stream, "half_closed_local");
        self.update_readiness(stream);
    }

    /// Ends the stream in both directions at once.
    pub fn reset(&mut self, stream: StreamId, code: ResetCode) {
        self.looked = None;
        // The peer cannot make sense of a reset without an opening.
        self.control.extend(self.opening(stream));
        if let Some(sent) = self.streams.reset(stream) {
            self.forget(stream);
            self.control.push_back(Sent::Reset(stream, code, sent));
            self.trace_stream(stream, "reset_sent");
        }
    }

    /// The peer may send the stream's bytes below `until`.
    pub fn allow(&mut self, stream: StreamId, until: u64) {
        if self.streams.allow(stream, until) {
            self.control.push_back(Sent::Credit(stream));
        }
    }

    /// Of the stream we send bytes below `until` to begin with, instead of as many as was agreed
    /// for all. To be said before any are sent; credit that comes adds to it as ever.
    pub fn limit_send(&mut self, stream: StreamId, until: u64) {
        self.streams.limit_send(stream, until);
        self.update_readiness(stream);
    }

    /// Of the stream the peer sends bytes below `until` to begin with: it has to be told by other
    /// means, as it would send as many as was agreed for all. To be said before any have come, and
    /// before more is [allowed](Self::allow).
    pub fn limit_receive(&mut self, stream: StreamId, until: u64) {
        self.streams.limit_receive(stream, until);
    }

    /// How many bytes of all streams together the peer has sent, those included that were lost and
    /// will not come again as their stream was reset. What it may send from here on is to be added
    /// to this, for [`allow_session`](Self::allow_session).
    pub fn session_received(&self) -> u64 {
        self.streams.session_received()
    }

    /// How many bytes of all streams together the peer may send, since the session began.
    pub fn session_allowed(&self) -> u64 {
        self.streams.session_allowed()
    }

    /// The peer may send so many bytes of all streams together, since the session began.
    pub fn allow_session(&mut self, until: u64) {
        if self.streams.allow_session(until) {
            self.control.push_back(Sent::SessionCredit);
        }
    }

    /// From now on the stream shares what its class gets of the link with those of that site.
    /// Streams that the peer opens are of site 0 to begin with.
    pub fn set_site(&mut self, stream: StreamId, site: SiteId) {
        self.scheduler.set_site(stream, site);
    }

    /// From now on the stream shares what its site gets with the streams of other hosts as one of
    /// that host's. Without it all streams are one host's, 0.
    pub fn set_host(&mut self, stream: StreamId, host: HostId) {
        self.scheduler.set_host(stream, host);
    }

    /// Until the stream's bytes below `until` are sent it goes before others of its site and class,
    /// but after those that are queued so with a lower `place`, such as the time at which they
    /// began. Of no effect where they are sent.
    pub fn queue(&mut self, stream: StreamId, place: u64, until: u64) {
        if self.streams.sent(stream).is_some_and(|sent| sent < until) {
            self.scheduler.queue(stream, place);
            let queued = self.queued.entry(stream).or_default();
            *queued = (*queued).max(until);
        }
    }

    /// How much a site gets beside others, 1 to begin with.
    pub fn set_weight(&mut self, site: SiteId, weight: u32) {
        self.scheduler.set_weight(site, weight);
        self.messages.scheduler.set_weight(site, weight);
    }

    /// From now on the stream is of that class, at both ends.
    pub fn set_class(&mut self, stream: StreamId, class: Class) {
        if self.streams.class(stream).is_some_and(|old| old != class) {
            self.reclass(stream, class);
            // An opening still to be sent says it.
            if !self.streams.is_unannounced(stream) {
                self.control.push_back(Sent::Reclass(stream));
            }
        }
    }

    /// Somebody who knows says whether the link is there.
    pub fn hint(&mut self, now: Duration, link: LinkHint) {
        self.looked = None;
        let rtt = self.delivery.smoothed_rtt();
        let change = self.silence.hint(now, link, rtt);
        self.report_change(now, change);
    }

    /// Whether the carrier loses nothing and keeps the order, as TCP does. Then there is no
    /// overcode, no cause of loss is looked for, no longer packet is tried, and nothing goes again
    /// by its age, as it only waits; but what later packets overtook does, as it went by a
    /// connection that is no more. What is known of loss is kept for later.
    pub fn set_reliable(&mut self, reliable: bool) {
        self.reliable = reliable;
        self.delivery.set_reliable(reliable);
    }

    /// Ends the session: says so to the peer, once.
    pub fn close(&mut self, code: CloseCode, reason: &str) {
        self.closing = Some((code, reason.to_owned()));
    }

    fn reclass(&mut self, stream: StreamId, class: Class) {
        self.streams.set_class(stream, class);
        self.scheduler.set_class(stream, class);
    }

    /// Tells the scheduler whether a stream has something to send.
    fn update_readiness(&mut self, stream: StreamId) {
        if self.streams.has_unsent(stream) {
            self.scheduler.ready(stream);
        } else {
            self.scheduler.idle(stream);
        }
    }

    /// Says how far a stream can be read. What it replaces nobody has asked for yet.
    fn report_readable(&mut self, stream: StreamId, until: u64) {
        match self.events.back_mut() {
            Some(Event::Readable {
                stream: s,
                until: u,
            }) if *s == stream => *u = until,
            _ => self.events.push_back(Event::Readable { stream, until }),
        }
    }

    /// Says how much of a stream the peer has, likewise.
    fn report_acked(&mut self, stream: StreamId, until: u64) {
        match self.events.back_mut() {
            Some(Event::Acked {
                stream: s,
                until: u,
            }) if *s == stream => *u = until,
            _ => self.events.push_back(Event::Acked { stream, until }),
        }
    }

    /// The stream is no more.
    fn forget(&mut self, stream: StreamId) {
        self.queued.remove(&stream);
        self.scheduler.remove(stream);
    }
}
