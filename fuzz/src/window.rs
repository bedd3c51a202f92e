//! FEC over sliding windows: an encoder, an arbitrary link, a decoder.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use arbitrary::Arbitrary;
use fec::{
    overhead::Overhead,
    scheme::Arrival,
    serial,
    window::{DecoderConfig, EncoderConfig, SPAN_MAX, WindowDecoder, WindowEncoder},
    wire::Header,
};

use crate::link::{self, Event, PAYLOAD_MAX, Receiver, Sender};

/// Settings and events.
#[derive(Arbitrary, Clone, Debug)]
pub struct Case {
    window: u8,
    share: (u8, u8),
    span: u16,
    repairs: u8,
    delay: u8,
    first: u32,
    hostile: bool,
    events: Vec<Event>,
}

/// Checks that nothing panics and that memory is bounded, and:
///
/// - Without hostile packets every delivered packet was sent, and is delivered once unless the
///   decoder is uncertain; no packet is rejected. The only packet missing from a repair packet's
///   window is restored at once.
/// - After hostile packets, an honest stream that begins elsewhere is soon decoded.
pub fn run(case: &Case) {
    let window = case.window.max(1);
    let minimum = 2 * usize::from(window);
    let overhead = Overhead::of_block(case.share.0.max(1), case.share.1);
    let encoder = EncoderConfig {
        delay: Duration::from_millis(case.delay.into()),
        ..encoder(window, overhead, case.first)
    };
    let decoder = DecoderConfig {
        window,
        payload_max: PAYLOAD_MAX,
        span: minimum + usize::from(case.span) % (SPAN_MAX + 1 - minimum),
        repairs: case.repairs.max(1).into(),
    };
    let mut sender = Sender::new(WindowEncoder::new(encoder).expect("in range"));
    let mut checker = Checker::new(decoder);
    for events in case.events.chunks(8) {
        link::play(&mut sender, &mut checker, events, case.hostile, case.first);
        for packet in &sender.sent[checker.sent..] {
            if let Header::WindowData { id } = packet.header {
                checker.data.insert(id, packet.payload.clone());
            }
        }
        checker.sent = sender.sent.len();
        if !case.hostile {
            checker.check_honest();
        }
    }
    if case.hostile {
        checker.recovers(case.first.rotate_left(16));
    }
}

fn encoder(window: u8, overhead: Overhead, first_id: u32) -> EncoderConfig {
    EncoderConfig {
        window,
        payload_max: PAYLOAD_MAX,
        overhead,
        first_id,
        ..EncoderConfig::default()
    }
}

struct Checker {
    config: DecoderConfig,
    decoder: WindowDecoder,
    /// Count of sent packets known here, and the data packets among them.
    sent: usize,
    data: BTreeMap<u32, Vec<u8>>,
    /// Packets delivered since the last check.
    passed_on: Vec<(u32, Vec<u8>)>,
    /// Delivered packets of which the decoder is certain.
    once: BTreeSet<u32>,
    twice: bool,
    /// All numbers that headers contained.
    touched: BTreeSet<u32>,
    /// The decoder's counters before the current packet.
    before: fec::window::DecoderStats,
    /// True if the current packet must restore one.
    owed: bool,
}

impl Checker {
    fn new(config: DecoderConfig) -> Self {
        let decoder = WindowDecoder::new(&config).expect("in range");
        Self {
            config,
            before: decoder.stats(),
            decoder,
            sent: 0,
            data: BTreeMap::new(),
            passed_on: Vec::new(),
            once: BTreeSet::new(),
            twice: false,
            touched: BTreeSet::new(),
            owed: false,
        }
    }

    fn check_honest(&mut self) {
        for (id, payload) in self.passed_on.drain(..) {
            assert_eq!(self.data.get(&id), Some(&payload), "as sent");
        }
        let stats = self.decoder.stats();
        assert_eq!((stats.corrupt, stats.refused()), (0, 0));
        if stats.resyncs == 0 {
            assert!(!self.twice, "passed on twice");
            assert!(!self.owed, "not restored");
        }
    }

    /// Starts a new encoder at `first`: it must be decoded once a window of it has arrived, unless
    /// hostile packets use numbers near it.
    fn recovers(&mut self, first: u32) {
        let window = self.config.window;
        // With a shorter span, packets after a loss may be too far ahead of it.
        if self.config.span < usize::from(window) + 8 {
            return;
        }
        let around = first.wrapping_sub(4096);
        if self
            .touched
            .iter()
            .any(|id| serial::within(*id, around, 3 * 4096))
        {
            return;
        }
        let config = encoder(window, Overhead::of_block(2, 1), first);
        let mut sender = Sender::new(WindowEncoder::new(config).expect("in range"));
        let mut next = 0;
        for i in 0..120u32 {
            sender.data(30);
            let lost = i > 40 && i % 8 == 0;
            let skipped = next + usize::from(lost);
            for packet in &sender.sent[skipped..] {
                link::deliver(self, packet.header, &packet.payload);
            }
            next = sender.sent.len();
        }
        // A window of one packet covers every second packet only.
        for i in (40..110).filter(|i| i % 8 != 0 || window > 1) {
            assert!(self.once.contains(&first.wrapping_add(i)), "packet {i}");
        }
    }

    fn pass_on(&mut self, header: Header, payload: &[u8]) {
        let Header::WindowData { id } = header else {
            panic!("{header:?} passed on");
        };
        self.passed_on.push((id, payload.to_vec()));
    }

    /// Returns the packets of a window not known to have been delivered.
    fn missing(&self, first: u32, count: u16) -> usize {
        let ids = (0..count.into()).map(|i| first.wrapping_add(i));
        ids.filter(|id| !self.once.contains(id)).count()
    }
}

impl Receiver for Checker {
    type Decoder = WindowDecoder;

    fn decoder(&mut self) -> &mut WindowDecoder {
        &mut self.decoder
    }

    fn arrives(&mut self, header: Header) {
        self.before = self.decoder.stats();
        match header {
            Header::WindowData { id } => self.touched.insert(id),
            Header::WindowRepair { first, .. } => self.touched.insert(first),
            _ => return,
        };
    }

    fn arrived(&mut self, header: Header, payload: &[u8], arrival: Option<Arrival>) {
        assert!(self.decoder.pending() <= self.config.repairs);
        match header {
            Header::WindowData { id } => {
                if arrival == Some(Arrival::Data) {
                    self.twice |= !self.once.insert(id);
                }
                if matches!(arrival, Some(Arrival::Data | Arrival::Late)) {
                    self.pass_on(header, payload);
                }
            }
            Header::WindowRepair { first, count, .. } => {
                let (before, after) = (self.before, self.decoder.stats());
                let kept = arrival.is_some() && after.repairs_far == before.repairs_far;
                self.owed |= kept && self.missing(first, count) == 1;
            }
            _ => assert_eq!(arrival, None, "of another scheme"),
        }
    }

    fn recovered(&mut self, header: Header, payload: &[u8]) {
        if let Header::WindowData { id } = header {
            self.twice |= !self.once.insert(id);
        }
        self.pass_on(header, payload);
    }
}
