//! `[site.boost]`: what is done with the packets of a site in mode `packet`, booster by booster.
//!
//! Plain data: what a booster does with it is written in the crate `boosters`.

use std::time::Duration;

use units::{ByteSize, Ratio};

/// The boosters of a site; one that is `None` is off for good. Default: none.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Boost {
    /// Restores lost packets from overcode.
    pub fec: Option<Fec>,
    /// Sends lost packets again.
    pub arq: Option<Arq>,
    /// Makes the ACKs again that were left out on the way, spread over time.
    pub ack_reconstruction: Option<AckReconstruction>,
    /// Leaves out ACKs that a later one in the queue says too.
    pub ack_filter: Option<AckFilter>,
    /// Leaves out TCP data that the other side is known to have.
    pub data_filter: Option<DataFilter>,
    /// Sends TCP segments again in the sender's place.
    pub snoop: Option<Snoop>,
    /// Divides ACKs, so that the sender's window grows faster.
    pub divacks: Option<DivAcks>,
    /// Evens out delays at the far end.
    pub jitter: Option<Jitter>,
    /// Adds a checksum to UDP datagrams that have none.
    pub checksum: Option<Checksum>,
    /// Makes packets smaller.
    pub compress: Option<Compress>,
    /// Tells senders of our queue before it is full.
    pub congestion: Option<Congestion>,
}

impl Boost {
    /// The boosters that are configured, by their keys, and when each works.
    pub fn rules(&self) -> impl Iterator<Item = (&'static str, &Rule)> {
        [
            ("fec", self.fec.as_ref().map(|own| &own.rule)),
            ("arq", self.arq.as_ref().map(|own| &own.rule)),
            (
                "ack_reconstruction",
                self.ack_reconstruction.as_ref().map(|own| &own.rule),
            ),
            ("ack_filter", self.ack_filter.as_ref().map(|own| &own.rule)),
            (
                "data_filter",
                self.data_filter.as_ref().map(|own| &own.rule),
            ),
            ("snoop", self.snoop.as_ref().map(|own| &own.rule)),
            ("divacks", self.divacks.as_ref().map(|own| &own.rule)),
            ("jitter", self.jitter.as_ref().map(|own| &own.rule)),
            ("checksum", self.checksum.as_ref().map(|own| &own.rule)),
            ("compress", self.compress.as_ref().map(|own| &own.rule)),
            ("congestion", self.congestion.as_ref().map(|own| &own.rule)),
        ]
        .into_iter()
        .filter_map(|(name, rule)| Some((name, rule?)))
    }
}

/// When a booster that is configured works.
///
/// All the conditions that are given have to hold. What is measured is of the packets of the
/// site; a booster that is told nothing of a measure takes the condition for not met.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rule {
    /// What decides. Default [`When::Rule`] if there is any condition, of the file or by default,
    /// else [`When::Always`].
    pub when: When,
    /// The share of packets that the link loses is above this, 0 to 1. Default as the booster has it.
    pub loss_above: Option<Ratio>,
    /// The normalised asymmetry is above this, 0 to 10,000: how many ACKs the data that come in
    /// call for, over how many the way back takes; above 1 it is short of room for them. Default
    /// as the booster has it.
    pub asymmetry_above: Option<f64>,
    /// Packets wait in our queue for longer than this, 0 to 1 h. Default as the booster has it.
    pub queue_above: Option<Duration>,
    /// For how long the conditions must hold before it begins to work, and must not hold before it
    /// ends, 0 to 1 h. Default 2 s: longer than a burst of losses, shorter than what people wait for.
    pub after: Duration,
}

impl Rule {
    /// The default of [`after`](Self::after).
    pub const AFTER: Duration = Duration::from_secs(2);

    /// Without any condition.
    pub const ALWAYS: Self = Self {
        when: When::Always,
        loss_above: None,
        asymmetry_above: None,
        queue_above: None,
        after: Self::AFTER,
    };

    /// Whether there is a condition.
    pub const fn has_condition(&self) -> bool {
        self.loss_above.is_some() || self.asymmetry_above.is_some() || self.queue_above.is_some()
    }
}

/// What decides whether a booster works.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// The conditions.
    Rule,
    /// It works at all times.
    Always,
    /// It never does.
    Never,
}

/// `fec`: overcode over the packets of the site.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Fec {
    /// When it works. Default: the loss is above 0.05 %; below that, a packet in two thousand, TCP
    /// and voice do without.
    pub rule: Rule,
    /// How overcode is made. Default [`FecScheme::Window`]: it restores a packet several times sooner.
    pub scheme: FecScheme,
    /// Packets that a repair packet is over, 1 to 128. Default 64: bursts of a dozen packets are
    /// covered at the usual overcode.
    pub window: u8,
    /// Data packets of a block, 1 to 128. Default 20: on a link of 1 Mbit/s it closes within a quarter of a second.
    pub block: u8,
    /// Overcode at most, as a share of the bytes of data packets, 0 to 1. Default 50 %.
    pub overhead_max: Ratio,
    /// What may be lost still, 1e-9 to 0.1. Default 1e-5: nothing that TCP or voice notice.
    pub target: Ratio,
    /// Blocks that are sent interleaved, 1 to 64, of at most 2048 packets together. Default 1, none. Costs as many times the delay.
    pub depth: u8,
}

/// How overcode is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FecScheme {
    /// Each repair packet is over the last packets (default).
    #[default]
    Window,
    /// Packets are put together in blocks.
    Block,
}

/// `arq`: lost packets are sent again.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Arq {
    /// When it works. Default always.
    pub rule: Rule,
    /// Times that a packet is sent again, 1 to 2. Default 1: what is lost twice, the hosts send again themselves.
    pub tries: u8,
    /// Whether packets leave in the order in which they came, so that those behind a lost one wait.
    /// Default no: TCP copes with some reordering, and voice wants no delay.
    pub order: bool,
    /// Packets that are kept to be sent again, 64 KiB to 64 MiB. Default 1 MiB: the product of 14
    /// Mbit/s and 600 ms. At each end.
    pub cache: ByteSize,
    /// How long a missing packet is waited for, 1 ms to [`WAIT_MAX`](Self::WAIT_MAX). Default the site's `deadline`, as far as that is
    /// accepted.
    pub wait: Duration,
}

impl Arq {
    /// The longest that may be waited: as the far end is told of it in milliseconds, in 16 bits.
    pub const WAIT_MAX: Duration = Duration::from_secs(60);
}

/// `ack_reconstruction`: ACKs that were left out are made again behind the link, spread over time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AckReconstruction {
    /// When it works. Default: packets wait in the queue at all, and the asymmetry is above 1, so
    /// that ACKs are left out.
    pub rule: Rule,
    /// Over how long a time ACKs are spread at most, 1 ms to 10 s. Default 1 s: they are spread until the next one
    /// is due, unless that takes longer.
    pub spacing_max: Duration,
}

/// `ack_filter`: ACKs are left out that a later one in the queue says too.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AckFilter {
    /// When it works. Default always: it only does anything where ACKs wait.
    pub rule: Rule,
    /// Beyond `high` one duplicate in `high` - `low` passes, and no more than every second, 1 to 255. Default 2.
    pub low: u8,
    /// Duplicates of an ACK that all pass, `low` to 255, and three in any case. Default 8.
    pub high: u8,
}

/// `data_filter`: TCP data is left out that the other side is known to have.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DataFilter {
    /// When it works. Default always.
    pub rule: Rule,
}

/// `snoop`: TCP segments that were lost behind us are sent again in the sender's place.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Snoop {
    /// When it works. Default always.
    pub rule: Rule,
    /// Segments that are kept until they are acknowledged, 64 KiB to 64 MiB. Default 1 MiB.
    pub cache: ByteSize,
    /// Times that a segment is sent again, 1 to 20. Default 5: beyond that it is more than loss.
    pub tries: u8,
}

/// `divacks`: an ACK goes on as several, each for a part of its bytes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DivAcks {
    /// When it works. Default always.
    pub rule: Rule,
    /// When ACKs are divided. Default [`DivAcksMode::Controlled`].
    pub mode: DivAcksMode,
    /// Parts of an ACK, 2 to 64. Default 12.
    pub parts: u8,
    /// Parts of ACKs of a connection at most, 1 to 1,000,000. Default 1500: past slow start
    /// nothing is to be had by it.
    pub max_count: u32,
}

/// When ACKs are divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DivAcksMode {
    /// Until [`DivAcks::max_count`], and anew after a pause (default).
    #[default]
    Controlled,
    /// Until the first sign of loss.
    BruteForce,
}

/// `jitter`: packets leave the far end as evenly as they came.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Jitter {
    /// When it works. Default always.
    pub rule: Rule,
    /// How long a packet is held back at most, 1 ms to 2 s. Default 60 ms: what voice can spare.
    pub delay: Duration,
}

/// `checksum`: UDP datagrams over IPv4 that have no checksum get one, so that damage behind the link is found out.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Checksum {
    /// When it works. Default always.
    pub rule: Rule,
}

/// `compress`: headers and payload of packets.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Compress {
    /// When it works. Default always.
    pub rule: Rule,
    /// How hard payload is compressed, 1 to 9, as zstd has it. Default 3.
    pub level: u8,
    /// Whether headers are compressed. Default yes.
    pub headers: bool,
    /// Whether payload is. Default yes; what does not get smaller goes as it is.
    pub payload: bool,
}

/// `congestion`: senders hear of our queue before it is full.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Congestion {
    /// When it works. Default: packets wait for more than 100 ms.
    pub rule: Rule,
    /// How they are told. Default [`CongestionMark::Both`].
    pub mark: CongestionMark,
}

/// How a sender is told that it is too fast.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CongestionMark {
    /// By ECN, where its packets allow it.
    Ecn,
    /// By duplicate ACKs, where it speaks TCP.
    DupAck,
    /// By ECN where its packets allow it, else by duplicate ACKs (default).
    #[default]
    Both,
}
