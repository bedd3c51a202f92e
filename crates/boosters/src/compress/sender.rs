//! Compression.

use std::time::Duration;

use super::{
    Config,
    codec::Codec,
    contexts::{Context, ContextForm, Contexts},
    flag,
    header::{self, Parts},
};
use crate::{
    booster::{Booster, Out},
    flow::Flows,
    ip::{self, FlowKey, Ip},
    packet::Packet,
    rule::Path,
    wire::{Abilities, COMPRESSED, CONTEXT, CONTEXT_KNOWN, NO_CONTEXT, Reader},
};

/// Minimum length to try: a frame has five bytes of its own.
const PACK_MIN: usize = 64;
/// Minimum saving in bytes, and as a share of all.
const SAVED_MIN: usize = 8;
const SAVED_SHARE: usize = 16;
/// Number of consecutive incompressible packets after which the next ones of the flow are skipped.
const MISSES: u8 = 8;
/// Initial and maximum number of skipped packets, doubled each time.
const SKIP_MIN: u32 = 64;
const SKIP_MAX: u32 = 4096;

/// Estimate of whether compressing a flow's payload pays. Encrypted flows are soon skipped.
#[derive(Clone, Copy, Debug, Default)]
struct PayloadGain {
    misses: u8,
    /// Packets still to skip.
    skip: u32,
    /// Number skipped the last time.
    skipped: u32,
}

impl PayloadGain {
    fn is_worth_trying(&mut self) -> bool {
        let worth = self.skip == 0;
        self.skip = self.skip.saturating_sub(1);
        worth
    }

    fn tried(&mut self, shrank: bool) {
        if shrank {
            *self = Self::default();
            return;
        }
        self.misses += 1;
        if self.misses >= MISSES {
            self.misses = 0;
            self.skipped = (self.skipped * 2).clamp(SKIP_MIN, SKIP_MAX);
            self.skip = self.skipped;
        }
    }
}

#[derive(Debug, Default)]
struct Counts {
    compressed: u64,
    contexts: u64,
    plain: u64,
    packed: u64,
    payloads_not_smaller: u64,
    bytes_in: u64,
    bytes_out: u64,
    confirmed: u64,
    asked: u64,
    requests_unanswered: u64,
}

/// Compresses headers and payloads of packets for the link.
#[derive(Debug)]
pub struct Sender {
    config: Config,
    contexts: Contexts,
    gains: Flows<PayloadGain>,
    codec: Codec,
    supported: bool,
    counts: Counts,
}

impl Sender {
    /// Creates a sender without contexts.
    #[must_use]
    pub fn new(config: Config) -> Self {
        let flows_max = config.flows_max.clamp(1, Config::FLOWS_MAX);
        let config = Config {
            level: config.level.clamp(1, 19),
            flows_max,
            ..config
        };
        Self {
            config,
            contexts: Contexts::new(flows_max),
            gains: Flows::new(flows_max),
            codec: Codec::default(),
            supported: false,
            counts: Counts::default(),
        }
    }

    /// Returns the message for an IP packet, if it is shorter or has to be sent.
    fn message(&mut self, now: Duration, packet: &[u8]) -> Option<Vec<u8>> {
        let parts = header::split(packet).filter(|_| self.config.headers);
        let context = parts.and_then(|parts| self.contexts.next(now, &parts.fixed));
        match (parts, context) {
            (Some(parts), Some(context)) if context.form == ContextForm::Short => {
                Some(self.compressed(packet, &parts, context))
            }
            (_, context) => self.whole(
                packet,
                context.filter(|context| context.form == ContextForm::Full),
            ),
        }
    }

    /// Encodes a packet with a known context.
    fn compressed(&mut self, packet: &[u8], parts: &Parts<'_>, context: Context) -> Vec<u8> {
        let mut out = Vec::with_capacity(packet.len());
        begin(&mut out, COMPRESSED, Some(context), parts.ecn);
        if parts.id != 0 {
            out[1] |= flag::ID;
            out.extend_from_slice(&parts.id.to_be_bytes());
        }
        parts.write_transport(&mut out);
        if let Some(frame) = self.pack(packet, parts.payload, 0) {
            out[1] |= flag::ZSTD;
            out.extend_from_slice(frame);
        } else {
            out.extend_from_slice(parts.payload);
        }
        self.counts.compressed += 1;
        out
    }

    /// Encodes a complete packet; `None` if it is better sent unchanged.
    fn whole(&mut self, packet: &[u8], context: Option<Context>) -> Option<Vec<u8>> {
        let mut out = Vec::with_capacity(packet.len() + 8);
        let kind = if context.is_some() {
            CONTEXT
        } else {
            COMPRESSED
        };
        begin(&mut out, kind, context, 0);
        // The context is sent anyway, so its header does not count.
        let header = if context.is_some() { 0 } else { out.len() };
        if let Some(frame) = self.pack(packet, packet, header) {
            out[1] |= flag::ZSTD;
            out.extend_from_slice(frame);
        } else if context.is_some() {
            out.extend_from_slice(packet);
        } else {
            self.counts.plain += 1;
            return None;
        }
        if context.is_some() {
            self.counts.contexts += 1;
        } else {
            self.counts.compressed += 1;
        }
        Some(out)
    }

    /// Compresses some bytes of a packet, if that saves enough beyond `header` bytes.
    fn pack(&mut self, packet: &[u8], bytes: &[u8], header: usize) -> Option<&[u8]> {
        if !self.config.payload || bytes.len() < PACK_MIN {
            return None;
        }
        let key: FlowKey = Ip::parse(packet)?.key();
        let (gain, _) = self.gains.entry(key, PayloadGain::default);
        if !gain.is_worth_trying() {
            return None;
        }
        let saved = SAVED_MIN.max(bytes.len() / SAVED_SHARE) + header;
        let frame = self
            .codec
            .pack(bytes, self.config.level, bytes.len() - saved);
        gain.tried(frame.is_some());
        if frame.is_some() {
            self.counts.packed += 1;
        } else {
            self.counts.payloads_not_smaller += 1;
        }
        frame
    }

    fn on_reply(&mut self, is_known: bool, reply: &[u8]) {
        let mut reader = Reader(reply.get(1..).unwrap_or_default());
        let found = match (reader.u16(), reader.u8(), reader.0) {
            (Some(cid), Some(generation), []) if is_known => self.contexts.known(cid, generation),
            (Some(cid), Some(generation), []) => self.contexts.missing(cid, generation),
            _ => false,
        };
        if is_known && found {
            self.counts.confirmed += 1;
        } else if !is_known {
            self.counts.asked += 1;
            self.counts.requests_unanswered += u64::from(!found);
        }
    }
}

/// Writes the beginning of a message.
fn begin(out: &mut Vec<u8>, kind: u8, context: Option<Context>, ecn: u8) {
    out.extend_from_slice(&[kind, ecn & flag::ECN]);
    let Some(context) = context else { return };
    out[1] |= flag::HEADERS;
    match u8::try_from(context.cid) {
        Ok(cid) => out.push(cid),
        Err(_) => {
            out[1] |= flag::WIDE;
            out.extend_from_slice(&context.cid.to_be_bytes());
        }
    }
    out.push(context.generation);
}

impl Booster for Sender {
    fn down(&mut self, now: Duration, packet: Packet, out: &mut Out) {
        if ip::version(&packet.bytes).is_none() {
            out.down.push(packet);
            return;
        }
        self.counts.bytes_in += packet.bytes.len() as u64;
        let packet = match self.message(now, &packet.bytes) {
            Some(bytes) => packet.with_bytes(bytes),
            None => packet,
        };
        self.counts.bytes_out += packet.bytes.len() as u64;
        out.down.push(packet);
    }

    fn up(&mut self, _: Duration, packet: Packet, out: &mut Out) {
        match packet.bytes.first() {
            Some(&NO_CONTEXT) => self.on_reply(false, &packet.bytes),
            Some(&CONTEXT_KNOWN) => self.on_reply(true, &packet.bytes),
            _ => out.up.push(packet),
        }
    }

    fn set_path(&mut self, _: Duration, path: &Path) {
        let supported = path.abilities & Abilities::COMPRESS != 0;
        if supported && !self.supported {
            self.contexts.all_missing();
        }
        self.supported = supported;
        let confirms = path.abilities & Abilities::CONFIRM != 0;
        self.contexts.set_confirms(confirms);
    }

    fn counters(&self, each: &mut dyn FnMut(&'static str, u64)) {
        let counts = &self.counts;
        each("compressed", counts.compressed);
        each("contexts", counts.contexts);
        each("plain", counts.plain);
        each("payloads_compressed", counts.packed);
        each("payloads_not_smaller", counts.payloads_not_smaller);
        each("bytes_in", counts.bytes_in);
        each("bytes_out", counts.bytes_out);
        each("confirmed", counts.confirmed);
        each("requests", counts.asked);
        each("requests_unanswered", counts.requests_unanswered);
        each("flows", self.contexts.len() as u64);
        each("flows_evicted", self.contexts.evicted);
        each("flows_refused", self.contexts.refused);
    }
}
