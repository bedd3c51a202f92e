//! `fec`: adds repair packets, from which the far end restores lost packets (ramakrishnan2000 §3,
//! `FZC`).
//!
//! Packets leave at once and unchanged except for a header, and received packets are passed on at
//! once. The repair rate follows the loss that the peer counts; on a clean link there are no repair
//! packets and no headers. Apart from bursts of a few packets, the FEC overhead never exceeds its
//! share of the protected bytes. Repair packets use only spare room on the link: while packets wait
//! for long, repair packets wait too, or they would cost more packets than they restore. When
//! packets pause, the last ones get their outstanding repair packets. Packets too long for the link
//! with a header are cut before they are protected, and joined after the decoder: so each piece can
//! be restored.

mod allowance;
mod pace;
mod receiver;
#[cfg(test)]
mod tests;

use std::time::Duration;

use fec::{
    block::{self, BlockEncoder},
    code::ErasureCode,
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

pub use fec::code::Backend;
pub use receiver::Receiver;

/// Code that protects packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// Sliding window: a repair packet covers this many packets before it, 1 to [`WINDOW_MAX`].
    Window {
        /// Number of packets.
        window: u8,
    },
    /// Blocks of packets.
    Block {
        /// Packets per block, 1 to 128.
        k: u8,
        /// Interleaved blocks, 1 to 64, and no more than [`INTERLEAVED_MAX`] packets together.
        depth: u8,
    },
}

impl Scheme {
    /// Returns the scheme with all values clamped.
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

/// Number of packets of interleaved blocks that receivers keep. They keep as many again, so that
/// late packets still find their block.
pub const INTERLEAVED_MAX: usize = 2048;

/// Maximum window: longer ones cost receivers more than they restore.
pub const WINDOW_MAX: u8 = 128;

/// Settings of the booster.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Config {
    /// Code. Default: a window of 64, which restores a lost packet several times sooner than blocks
    /// do.
    pub scheme: Scheme,
    /// Implementation of [`Scheme::Block`]. Default: the fastest kernel.
    pub code: Backend,
    /// Maximum repair bytes per protected byte, 0 to 1. Each packet counts with the header bytes of
    /// a repair packet, so this is the share of packets, too, if all have one length. Default 0.5.
    pub overhead_max: f64,
    /// Target share of failed blocks, or of equivalent windows; 1e-9 to 0.1. Default 1e-5.
    pub target: f64,
    /// Minimum loss for any FEC. Default 1 in 2,000.
    pub threshold: f64,
    /// Maximum waiting time of packets, and for a round trip, above which no repair packets are
    /// sent. Default 500 ms.
    pub waiting_max: Duration,
    /// Determines the first number.
    pub seed: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            scheme: Scheme::Window { window: 64 },
            code: Backend::default(),
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
/// Number of bytes that a repair packet is longer than the longest packet it protects: its header,
/// and the packet's length.
const REPAIR_EXTRA: usize = 1 + 9 + 2;
/// Number of bytes that a protected message is longer, and repair packets beyond that: packets must
/// leave this room.
pub const OVERHEAD: usize = if HEADER > REPAIR_EXTRA {
    HEADER
} else {
    REPAIR_EXTRA
};

/// Multiple of the spacing after which packets count as pausing, within these bounds.
const PAUSE: u32 = 4;
const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_millis(200);
/// Minimum waiting time to tolerate even if the round trip is shorter: bursts cause it.
const WAITING_MIN: Duration = Duration::from_millis(20);

/// Sender of protected packets.
#[derive(Debug)]
pub struct Sender {
    config: Config,
    control: Control,
    encoder: Option<Box<dyn Encoding>>,
    /// Maximum length of a message.
    room: usize,
    /// Waiting time of packets above which repair packets wait, too.
    waiting_max: Duration,
    /// Counts of the peer at the last update.
    counted: [u64; 3],
    /// Packets lost to congestion at the last update.
    congested: u64,
    /// Budget of repair packets.
    allowance: Allowance,
    cutter: Cutter,
    /// Time of the last packet, and the mean spacing.
    last: Option<Duration>,
    apart: Duration,
    /// True while the last packets lack repair packets.
    bare: bool,
    /// Number of encoders made so far.
    made: u64,
    counters: Counters,
}

/// Encoder as a trait object.
trait Encoding: Encoder + std::fmt::Debug + Send {}
impl Encoding for WindowEncoder {}
impl Encoding for BlockEncoder<Box<dyn ErasureCode + Send>> {}

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
    /// Creates a sender that knows nothing of the link and sends no repair packets. Values out of
    /// range are clamped.
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

    /// Returns the long-term repair rate: repair packets per packet.
    #[must_use]
    pub fn share(&self) -> f64 {
        let overhead = self.control.overhead();
        let (rows, packets) = match self.config.scheme {
            Scheme::Window { window } => overhead.rows_of_window(window.into()),
            Scheme::Block { k, .. } => (overhead.rows(k.into()), k.into()),
        };
        rows as f64 / packets as f64
    }

    /// Feeds the peer's new counts to the control.
    fn count(&mut self, path: &Path) {
        let [packets, lost, bursts] = self.counted;
        let counts = path.counts;
        if counts[0] < packets || path.congested < self.congested {
            // Another session counts from 0.
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
        // More packets would increase the congestion, and losses during it do not reflect the link.
        self.control.on_congestion(congested);
        self.control.on_counts(news);
    }

    /// Switches protection of later packets on or off.
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

    /// Replaces the encoder, if there is one.
    fn renew_encoder(&mut self) {
        if self.encoder.take().is_some() {
            let overhead = self.control.overhead().clone();
            self.encoder = Some(self.make(overhead));
        }
    }

    /// Creates an encoder whose numbers are far from those of the last one: the far end must not
    /// confuse the two.
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
                    // This booster detects pauses itself.
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
                let encoder = BlockEncoder::with_code(config, self.config.code.code());
                Box::new(encoder.expect("all values are in range"))
            }
        }
    }

    /// Sends a message that fits, and the repair packets that are ready.
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

    /// Returns the time without a packet after which the previous ones count as the last.
    fn pause(&self) -> Duration {
        (self.apart * PAUSE).clamp(PAUSE_MIN, PAUSE_MAX)
    }

    /// Sends the pending repair packets, if the link has room for them.
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
                // Addressed to the far pepd, which learns of marks from the tunnel.
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
            // Packets already protected stay so; the next ones use another encoder.
            self.renew_encoder();
        }
        self.waiting_max = path.rtt.max(WAITING_MIN).min(self.config.waiting_max);
        self.count(path);
        self.follow();
    }

    /// The far end has lost its state: repair packets over earlier packets would restore
    /// duplicates, or none.
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
        each(
            "fec_overhead_permille",
            (self.share() * 1000.0).round() as u64,
        );
    }
}
