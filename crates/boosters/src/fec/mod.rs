//! `fec`: repair packets follow the packets, from which the far end restores what the link has lost (ramakrishnan2000 §3, `FZC`).
//!
//! Packets leave at once and unchanged but for a header; what arrives goes on at once. Overcode follows the loss that the peer counts; on a
//! clean link there is none, and no header either. It never exceeds its share of the bytes that it protects, bursts of a few packets
//! apart, and takes only what room the link has: while packets wait for long, it waits too, or it would cost more of them than it restores. When packets pause, the last ones get the overcode that they lack. Packets that are too long for the link beside a header are
//! cut before they are protected, and joined behind the decoder: so each piece can be restored.

mod allowance;
mod pace;
mod receiver;
#[cfg(test)]
mod tests;

use std::time::Duration;

use fec::{
    block::{self, BlockEncoder},
    control::{Control, ControlConfig, Counts},
    overhead::Overhead,
    scheme::Encoder,
    theory::block_of_window,
    window::{self, WindowEncoder},
    wire::Header,
};

use self::allowance::Allowance;
use crate::{
    booster::{Booster, Out},
    ecn::Ecn,
    packet::Packet,
    pieces::Cutter,
    rule::Path,
    wire::FEC,
};

pub use receiver::Receiver;

/// How packets are put together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// A repair packet is over so many packets before it, 1 to [`WINDOW_MAX`].
    Window {
        /// How many.
        window: u8,
    },
    /// Blocks of packets.
    Block {
        /// How many packets a block has, 1 to 128.
        k: u8,
        /// How many blocks are filled in turn, 1 to 64, and no more than [`INTERLEAVED_MAX`] packets together.
        depth: u8,
    },
}

impl Scheme {
    /// What is out of range brought into it.
    fn in_range(self) -> Self {
        match self {
            Self::Window { window } => Self::Window {
                window: window.clamp(1, WINDOW_MAX),
            },
            Self::Block { k, depth } => {
                let k = k.clamp(1, 128);
                let most = (INTERLEAVED_MAX / usize::from(k)).min(64) as u8;
                let depth = depth.clamp(1, most);
                Self::Block { k, depth }
            }
        }
    }
}

/// Receivers keep this many packets of interleaved blocks, and as many again, so that those that come late still meet theirs.
pub const INTERLEAVED_MAX: usize = 2048;

/// Longer windows would cost receivers more than they restore.
pub const WINDOW_MAX: u8 = 128;

/// What overcode aims at.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Config {
    /// Default: a window of 64, by which a lost packet is back several times sooner than by blocks.
    pub scheme: Scheme,
    /// Bytes of repair packets per byte of what they protect at most, 0 to 1, each packet with as many bytes of headers as a repair packet has
    /// (so that this is the share of packets, too, where all are of one length). Default 0.5.
    pub overhead_max: f64,
    /// The share of blocks, or of windows that do as well, that may fail; 1e-9 to 0.1. Default 1e-5.
    pub target: f64,
    /// The loss above which there is overcode at all. Default 1 in 2,000.
    pub threshold: f64,
    /// Behind packets that have waited for longer than this, and for a round trip, there is no overcode. Default 500 ms.
    pub waiting_max: Duration,
    /// Numbers begin somewhere that follows from this.
    pub seed: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            scheme: Scheme::Window { window: 64 },
            overhead_max: 0.5,
            target: fec::control::TARGET_PACKETS,
            threshold: 5e-4,
            waiting_max: Duration::from_millis(500),
            seed: 0,
        }
    }
}

/// Kind of message, and the longest header of a data packet.
const HEADER: usize = 1 + 6;
/// What a repair packet is longer than the longest packet that it protects: its header, and the packet's length.
const REPAIR_EXTRA: usize = 1 + 9 + 2;
/// What a protected message is longer, and what repair packets are beyond that: room that packets leave.
pub const OVERHEAD: usize = if HEADER > REPAIR_EXTRA {
    HEADER
} else {
    REPAIR_EXTRA
};

/// Packets pause if none has come for so many times as they come apart, but within these bounds.
const PAUSE: u32 = 4;
const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_millis(200);
/// What packets may wait though the round trip is shorter: bursts do.
const WAITING_MIN: Duration = Duration::from_millis(20);

/// The sending side.
#[derive(Debug)]
pub struct Sender {
    config: Config,
    control: Control,
    encoder: Option<Box<dyn Encoding>>,
    /// Messages are this long at most.
    room: usize,
    /// How long packets may wait before overcode waits, too.
    waiting_max: Duration,
    /// How the peer's counts stood.
    counted: [u64; 3],
    /// How many packets congestion had taken then.
    congested: u64,
    /// What repair packets may cost.
    allowance: Allowance,
    cutter: Cutter,
    /// When the last packet came, and how far apart they come.
    last: Option<Duration>,
    apart: Duration,
    /// The last packets lack overcode as yet.
    bare: bool,
    /// How often an encoder was made.
    made: u64,
    counters: Counters,
}

/// An encoder that can be kept.
trait Encoding: Encoder + std::fmt::Debug + Send {}
impl Encoding for WindowEncoder {}
impl Encoding for BlockEncoder {}

#[derive(Clone, Copy, Debug, Default)]
struct Counters {
    protected: u64,
    plain: u64,
    cut: u64,
    too_long: u64,
    repairs: u64,
    repairs_dropped: u64,
    repairs_withheld: u64,
}

impl Sender {
    /// With nothing known of the link: without overcode. Values out of range are brought into it.
    #[must_use]
    pub fn new(config: Config) -> Self {
        let config = Config {
            scheme: config.scheme.in_range(),
            ..config
        };
        let (block, depth) = match config.scheme {
            Scheme::Window { window } => (block_of_window(window.into()), 1),
            Scheme::Block { k, depth } => (k.into(), depth.into()),
        };
        let control = ControlConfig {
            target: config.target.clamp(1e-9, 0.1),
            overhead_max: config.overhead_max.clamp(0.0, 1.0),
            block: block.min(255) as u8,
            depth,
            threshold: config.threshold.clamp(1e-5, 0.5),
            ..ControlConfig::default()
        };
        let packets = match config.scheme {
            Scheme::Window { .. } => 0,
            Scheme::Block { .. } => block * depth,
        };
        Self {
            allowance: Allowance::new(control.overhead_max, packets),
            control: Control::new(control).expect("all values are in range"),
            config,
            encoder: None,
            room: Path::default().room,
            waiting_max: WAITING_MIN,
            counted: [0; 3],
            congested: 0,
            cutter: Cutter::default(),
            last: None,
            apart: PAUSE_MAX,
            bare: false,
            made: 0,
            counters: Counters::default(),
        }
    }

    /// Repair packets per packet, as they are sent in the long run.
    #[must_use]
    pub fn share(&self) -> f64 {
        let overhead = self.control.overhead();
        let (rows, packets) = match self.config.scheme {
            Scheme::Window { window } => overhead.rows_of_window(window.into()),
            Scheme::Block { k, .. } => (overhead.rows(k.into()), k.into()),
        };
        rows as f64 / packets as f64
    }

    /// What the peer has counted since it was looked at last.
    fn count(&mut self, path: &Path) {
        let [packets, lost, bursts] = self.counted;
        let counts = path.counts;
        if counts[0] < packets || path.congested < self.congested {
            // Another session counts anew.
            (self.counted, self.congested) = ([0; 3], 0);
            return;
        }
        let news = Counts::new(
            counts[0] - packets,
            counts[1].saturating_sub(lost),
            counts[2].saturating_sub(bursts),
        );
        let Some(news) = news.ok().filter(|news| news.packets() > 0) else {
            return;
        };
        self.counted = counts;
        let congested = path.congested > self.congested;
        self.congested = path.congested;
        // More packets would make it worse; and what is lost then says nothing of the link.
        self.control.on_congestion(congested);
        self.control.on_counts(news);
    }

    /// Packets that come from here on are protected, or not.
    fn follow(&mut self) {
        let Some(overhead) = self.control.poll_overhead().cloned() else {
            return;
        };
        if self.share() == 0.0 {
            self.encoder = None;
            self.bare = false;
        } else if let Some(encoder) = &mut self.encoder {
            encoder.set_overhead(overhead);
        } else {
            self.encoder = Some(self.make(overhead));
        }
    }

    /// Another encoder, where there is one.
    fn renew_encoder(&mut self) {
        if self.encoder.take().is_some() {
            let overhead = self.control.overhead().clone();
            self.encoder = Some(self.make(overhead));
        }
    }

    /// Its numbers are far from those of the one before: the far end must not take one for the other.
    fn make(&mut self, overhead: Overhead) -> Box<dyn Encoding> {
        self.made += 1;
        let spread = self.config.seed.wrapping_add(self.made);
        let first = (spread.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32;
        let payload_max = self.room.saturating_sub(OVERHEAD).max(1);
        match self.config.scheme {
            Scheme::Window { window } => {
                let config = window::EncoderConfig {
                    window,
                    payload_max,
                    overhead,
                    // A pause is for us to see.
                    hold: Duration::MAX,
                    first_id: first,
                    ..window::EncoderConfig::default()
                };
                Box::new(WindowEncoder::new(config).expect("all values are in range"))
            }
            Scheme::Block { k, depth } => {
                let config = block::EncoderConfig {
                    k,
                    depth: depth.into(),
                    block_time: Duration::MAX,
                    payload_max,
                    overhead,
                    first_block: first,
                    ..block::EncoderConfig::default()
                };
                Box::new(BlockEncoder::new(config).expect("all values are in range"))
            }
        }
    }

    /// Sends a message that fits, and the overcode that has come together by then.
    fn protect(&mut self, now: Duration, packet: Packet, out: &mut Out) {
        let encoder = self.encoder.as_mut();
        let header = encoder.and_then(|encoder| encoder.handle_data(&packet.bytes, now).ok());
        let Some(header) = header else {
            self.counters.too_long += 1;
            out.down.push(packet);
            return;
        };
        self.counters.protected += 1;
        self.allowance.earn(packet.bytes.len() + REPAIR_EXTRA);
        self.bare = true;
        self.note_time(now);
        out.down
            .push(packet.with_bytes(message(header, &packet.bytes)));
        let waited = now.saturating_sub(packet.since);
        self.give_repairs(&packet, waited <= self.waiting_max, out);
    }

    fn note_time(&mut self, now: Duration) {
        if let Some(last) = self.last.replace(now) {
            let apart = now.saturating_sub(last).min(PAUSE_MAX);
            self.apart = (self.apart * 7 + apart) / 8;
        }
    }

    /// After which time without a packet those before are taken for the last ones.
    fn pause(&self) -> Duration {
        (self.apart * PAUSE).clamp(PAUSE_MIN, PAUSE_MAX)
    }

    /// Sends what overcode has come together, if there is room for it on the link.
    fn give_repairs(&mut self, like: &Packet, has_room: bool, out: &mut Out) {
        let Some(encoder) = &mut self.encoder else {
            return;
        };
        while let Some((header, symbol)) = encoder.poll_repair() {
            self.bare = false;
            if !has_room {
                self.counters.repairs_withheld += 1;
                continue;
            }
            let bytes = message(header, symbol);
            if !self.allowance.spend(bytes.len()) {
                self.counters.repairs_dropped += 1;
                continue;
            }
            self.counters.repairs += 1;
            let repair = Packet {
                bytes,
                since: like.since,
                // It is for us, who hear of marks by the tunnel.
                ecn: Ecn::Ect0,
                ..Packet::default()
            };
            out.down.push(repair);
        }
    }
}

fn message(header: Header, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(REPAIR_EXTRA + payload.len());
    bytes.push(FEC);
    header.emit(&mut bytes);
    bytes.extend_from_slice(payload);
    bytes
}

impl Booster for Sender {
    fn down(&mut self, now: Duration, packet: Packet, out: &mut Out) {
        if self.encoder.is_none() {
            self.counters.plain += 1;
            out.down.push(packet);
            return;
        }
        let room = self.room.saturating_sub(OVERHEAD);
        if packet.bytes.len() <= room {
            self.protect(now, packet, out);
            return;
        }
        let pieces = self.cutter.cut(&packet.bytes, room);
        if pieces.is_empty() {
            self.counters.too_long += 1;
            out.down.push(packet);
            return;
        }
        self.counters.cut += 1;
        for piece in pieces {
            self.protect(now, packet.with_bytes(piece), out);
        }
    }

    fn on_time(&mut self, now: Duration, out: &mut Out) {
        if self.deadline().is_none_or(|at| at > now) {
            return;
        }
        self.bare = false;
        if let Some(encoder) = &mut self.encoder {
            encoder.handle_drained(now);
        }
        let like = Packet {
            since: now,
            ..Packet::default()
        };
        self.give_repairs(&like, true, out);
    }

    fn deadline(&self) -> Option<Duration> {
        let last = self.last.filter(|_| self.bare && self.encoder.is_some())?;
        Some(last + self.pause())
    }

    fn set_path(&mut self, _now: Duration, path: &Path) {
        if path.room != self.room {
            self.room = path.room;
            // What has been protected stays so; the next packets are by another encoder.
            self.renew_encoder();
        }
        self.waiting_max = path.rtt.max(WAITING_MIN).min(self.config.waiting_max);
        self.count(path);
        self.follow();
    }

    /// The far end has forgotten what came before: overcode over it would restore packets that hosts have, or none.
    fn reset(&mut self) {
        self.renew_encoder();
        (self.bare, self.last) = (false, None);
    }

    fn counters(&self, each: &mut dyn FnMut(&'static str, u64)) {
        let Counters {
            protected,
            plain,
            cut,
            too_long,
            repairs,
            repairs_dropped,
            repairs_withheld,
        } = self.counters;
        each("protected", protected);
        each("plain", plain);
        each("cut", cut);
        each("too_long", too_long);
        each("repairs", repairs);
        each("repairs_dropped", repairs_dropped);
        each("repairs_withheld", repairs_withheld);
        each("overcode_permille", (self.share() * 1000.0).round() as u64);
    }
}
