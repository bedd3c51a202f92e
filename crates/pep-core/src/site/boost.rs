//! `[site.boost]`: boosters for the packets of a site in mode `packet`.
//!
//! The crate `boosters` describes how each booster works.

use std::time::Duration;

use units::{ByteSize, Ratio};

use crate::reading::{
    Section, section,
    values::{Integer, Number, Share, Size, Span, Switch, byte, share, some},
    words,
};

section! {
    /// Boosters of a site; `None` means off.
    #[derive(Debug, Clone, PartialEq, Default)]
    pub struct Boost(s, deadline: Duration) {
        /// Restores lost packets from repair packets.
        fec: Option<Fec> = s.switched("fec").map(Fec::read);
        /// Retransmits lost packets.
        arq: Option<Arq> = s.switched("arq").map(|own| own.whole(|s| Arq::read_keys(s, deadline)));
        /// Recreates filtered ACKs, spread over time.
        ack_reconstruction: Option<AckReconstruction> =
            read(s, "ack_reconstruction", AckReconstruction::read_keys);
        /// Drops ACKs that a later one in the queue covers.
        ack_filter: Option<AckFilter> = s.switched("ack_filter").map(AckFilter::read);
        /// Drops TCP data that the other side is known to have.
        data_filter: Option<DataFilter> = read(s, "data_filter", DataFilter::read_keys);
        /// Retransmits TCP segments in the sender's place.
        snoop: Option<Snoop> = read(s, "snoop", Snoop::read_keys);
        /// Divides ACKs, so that the sender's window grows faster.
        divacks: Option<DivAcks> = read(s, "divacks", DivAcks::read_keys);
        /// Evens out delays at the far end.
        jitter: Option<Jitter> = read(s, "jitter", Jitter::read_keys);
        /// Adds a checksum to UDP datagrams that have none.
        checksum: Option<Checksum> = read(s, "checksum", Checksum::read_keys);
        /// Makes packets smaller.
        compress: Option<Compress> = s.switched("compress").map(Compress::read);
        /// Signals congestion to senders before pepd's queue is full.
        congestion: Option<Congestion> = read(s, "congestion", Congestion::read_keys);
    }
}

/// A booster whose keys need no check.
fn read<T>(
    s: &mut Section<'_>,
    key: &'static str,
    keys: impl FnOnce(&mut Section<'_>) -> T,
) -> Option<T> {
    s.switched(key).map(|own| own.whole(keys))
}

impl Boost {
    /// Configured boosters, by their keys, with their rules.
    pub fn rules(&self) -> impl Iterator<Item = (&'static str, &Rule)> {
        macro_rules! rules {
            ($($name:ident)*) => {
                [$((stringify!($name), self.$name.as_ref().map(|own| &own.rule))),*]
            };
        }
        let all = rules! {
            fec arq ack_reconstruction ack_filter data_filter snoop
            divacks jitter checksum compress congestion
        };
        all.into_iter()
            .filter_map(|(name, rule)| Some((name, rule?)))
    }
}

section! {
    /// Rule that switches a configured booster on and off.
    ///
    /// All configured conditions have to hold. They are measured on the packets of the site; a
    /// condition without measurement counts as not met. Conditions that are not configured take the
    /// booster's defaults.
    #[derive(Debug, Clone, Copy, PartialEq)]
    pub struct Rule(s, stated: &mut Option<When>, default: Rule) {
        /// Mode of the rule. Default: [`When::Rule`] if there is any condition, of the file or of
        /// the booster, else [`When::Always`].
        when: When = { *stated = s.read("when", When::WORDS); stated.unwrap_or(When::Always) };
        /// The loss ratio of the link is above this.
        loss_above: Option<Ratio> = some(Share(share(0.0)..=share(1.0))), default.loss_above;
        /// The normalised asymmetry is above this: the rate of ACKs that incoming data call for,
        /// over the rate that the return path takes. Above 1 the return path is too narrow for
        /// them.
        asymmetry_above: Option<f64> = some(Number(0.0..=10_000.0)), default.asymmetry_above;
        /// Packets wait in pepd's queue for longer than this.
        queue_above: Option<Duration> = some(Span(Duration::ZERO..=HOUR)), default.queue_above;
        /// Time for which the conditions must hold before the booster starts, and fail before it
        /// stops.
        after: Duration = Span(Duration::ZERO..=HOUR), default.after;
    }
}

const HOUR: Duration = Duration::from_secs(3600);

impl Rule {
    /// No condition. Changes wait for longer than a burst of losses.
    pub const ALWAYS: Self = Self {
        when: When::Always,
        loss_above: None,
        asymmetry_above: None,
        queue_above: None,
        after: Duration::from_secs(2),
    };

    /// Reports whether there is a condition.
    pub const fn has_condition(&self) -> bool {
        self.loss_above.is_some() || self.asymmetry_above.is_some() || self.queue_above.is_some()
    }

    /// Reads the keys common to all boosters; missing conditions take those of `default`.
    fn read(s: &mut Section<'_>, default: Self) -> Self {
        let mut own = None;
        let rule = Self::read_keys(s, &mut own, default);
        let by_default = match rule.has_condition() {
            true => When::Rule,
            false => When::Always,
        };
        if own == Some(When::Rule) && !rule.has_condition() {
            let message = "\"rule\" needs a condition: one or more of `loss_above`, `asymmetry_above` and `queue_above`; \
                           accepted without: \"always\", \"never\"";
            s.error("when", message);
        }
        if own.is_none() && !rule.has_condition() && s.has("after") {
            let message = "has no effect without `loss_above`, `asymmetry_above` or `queue_above`";
            s.warning("after", message);
        }
        if matches!(own, Some(When::Always | When::Never)) {
            for key in ["loss_above", "asymmetry_above", "queue_above", "after"] {
                if s.has(key) {
                    s.warning(key, "has no effect: conditions need `when = \"rule\"`");
                }
            }
        }
        Self {
            when: own.unwrap_or(by_default),
            ..rule
        }
    }

    /// Reads the keys of a booster that judges its own condition itself: the rule waits only for
    /// `others`.
    fn read_beside(s: &mut Section<'_>, default: Self, others: [&str; 2]) -> Self {
        let rule = Self::read(s, default);
        let alone = rule.when == When::Rule && !others.iter().any(|key| s.has(key));
        if alone && rule.after != default.after {
            let [one, other] = others;
            s.warning(
                "after",
                format!("has no effect on the booster's own condition; it delays only `{one}` and `{other}`"),
            );
        }
        rule
    }
}

words! {
    /// Mode of a booster's rule.
    pub enum When {
        /// The conditions.
        Rule = "rule",
        /// Always on.
        Always = "always",
        /// Always off.
        Never = "never",
    }
}

section! {
    /// `fec`: repair packets for the packets of the site.
    #[derive(Debug, Clone, Copy, PartialEq)]
    pub struct Fec(s) {
        /// Rule. Below its default, one lost packet in two thousand, TCP and voice do without FEC.
        rule: Rule = Rule::read_beside(
            s,
            Rule { loss_above: Some(share(0.0005)), ..Rule::ALWAYS },
            ["asymmetry_above", "queue_above"],
        );
        /// FEC scheme.
        scheme: FecScheme = FecScheme::WORDS, FecScheme::Window;
        /// Implementation of the block code, in encoder and decoder.
        code: FecCode = FecCode::WORDS, FecCode::Native;
        /// Packets that one repair packet covers.
        window: u8 = byte(1..=128), 64;
        /// Data packets of a block.
        block: u8 = byte(1..=128), 20;
        /// Maximum FEC overhead, as a share of the bytes of data packets.
        overhead_max: Ratio = Share(share(0.0)..=share(1.0)), share(0.5);
        /// Tolerated residual loss.
        target: Ratio = Share(share(1e-9)..=share(0.1)), share(1e-5);
        /// Interleaved blocks, of at most 2048 packets together. Multiplies the delay.
        depth: u8 = byte(1..=64), 1;
    }
}

/// Maximum number of packets of interleaved blocks.
const INTERLEAVED_MAX: u32 = 2048;

impl Fec {
    fn read(mut section: Section<'_>) -> Self {
        let s = &mut section;
        let fec = Self::read_keys(s);
        let (others, scheme) = match fec.scheme {
            FecScheme::Window => (&["block", "depth"][..], "block"),
            FecScheme::Block => (&["window"][..], "window"),
        };
        fec.check_interleaved(s);
        if fec.scheme != FecScheme::Block && s.has("code") {
            s.error(
                "code",
                "only blocks have another implementation; remove it, or set `scheme = \"block\"`",
            );
        }
        if fec.overhead_max == share(0.0) {
            s.warning(
                "overhead_max",
                "leaves no room for repair packets: the booster does nothing",
            );
        }
        for key in others.iter().filter(|key| s.has(key)) {
            s.warning(
                key,
                format!("has no effect: only `scheme = \"{scheme}\"` has it"),
            );
        }
        section.finish();
        fec
    }

    /// The far end stores the packets of all interleaved blocks, and of as many more.
    fn check_interleaved(&self, s: &mut Section<'_>) {
        let (block, depth) = (u32::from(self.block), u32::from(self.depth));
        if self.scheme != FecScheme::Block || block * depth <= INTERLEAVED_MAX {
            return;
        }
        let (key, value, most, other) = match s.has("depth") {
            true => (
                "depth",
                depth,
                INTERLEAVED_MAX / block,
                format!("`block` ({block})"),
            ),
            false => (
                "block",
                block,
                INTERLEAVED_MAX / depth,
                format!("`depth` ({depth})"),
            ),
        };
        s.error(
            key,
            format!(
                "{value} times {other} is above {INTERLEAVED_MAX} packets; accepted: 1 to {most}"
            ),
        );
    }
}

words! {
    /// FEC scheme.
    pub enum FecScheme {
        /// Each repair packet covers the latest packets.
        Window = "window",
        /// Packets are grouped into blocks.
        Block = "block",
    }
}

words! {
    /// Implementation of the block code. All give the same bytes, so that the ends may differ.
    pub enum FecCode {
        /// pepd's own, with the vector instructions of the CPU.
        Native = "native",
        /// The crate of that name: slower, for comparison, or in case of doubt about the other.
        ReedSolomonErasure = "reed-solomon-erasure",
    }
}

section! {
    /// `arq`: lost packets are retransmitted.
    #[derive(Debug, Clone, Copy, PartialEq)]
    pub struct Arq(s, deadline: Duration) {
        /// Rule.
        rule: Rule = Rule::read(s, Rule::ALWAYS);
        /// Maximum number of retransmissions of a packet. Packets lost twice are left to the hosts.
        tries: u8 = byte(1..=2), 1;
        /// Delivers packets in order, so that those behind a lost one wait.
        order: bool = Switch, false;
        /// Memory for retransmissions, at each end. The default is the product of 14 Mbit/s and 600
        /// ms.
        cache: ByteSize = cache(), ByteSize::mib(1);
        /// Time to wait for a missing packet.
        wait: Duration =
            Span(Duration::from_millis(1)..=Arq::WAIT_MAX), deadline.min(Arq::WAIT_MAX);
    }
}

impl Arq {
    /// Maximum wait: the far end is notified of it in milliseconds, in 16 bits.
    pub const WAIT_MAX: Duration = Duration::from_secs(60);
}

section! {
    /// `ack_reconstruction`: filtered ACKs are recreated behind the link, spread over time.
    #[derive(Debug, Clone, Copy, PartialEq)]
    pub struct AckReconstruction(s) {
        /// Rule. Default: packets wait in the queue at all, and the asymmetry is such that ACKs are
        /// filtered.
        rule: Rule = Rule::read(s, Rule {
            queue_above: Some(Duration::ZERO),
            asymmetry_above: Some(1.0),
            ..Rule::ALWAYS
        });
        /// Maximum time over which ACKs are spread; otherwise until the next one is due.
        spacing_max: Duration =
            Span(Duration::from_millis(1)..=Duration::from_secs(10)), Duration::from_secs(1);
    }
}

section! {
    /// `ack_filter`: drops ACKs that a later one in the queue covers.
    #[derive(Debug, Clone, Copy, PartialEq)]
    pub struct AckFilter(s) {
        /// Rule. Has an effect only where ACKs wait.
        rule: Rule = Rule::read(s, Rule::ALWAYS);
        /// Beyond `high`, one duplicate in `high` - `low` passes, and one per second at most.
        low: u8 = byte(1..=255), 2;
        /// Duplicates of an ACK that all pass; no fewer than `low`, and never fewer than three.
        high: u8 = byte(1..=255), 8;
    }
}

impl AckFilter {
    fn read(mut section: Section<'_>) -> Self {
        let s = &mut section;
        let filter = Self::read_keys(s);
        if filter.high < filter.low {
            let (key, other) = match s.has("high") {
                true => ("high", format!("`low` ({})", filter.low)),
                false => ("low", format!("`high` ({})", filter.high)),
            };
            let wrong = match key {
                "high" => format!(
                    "{} is below {other}; accepted: {} to 255",
                    filter.high, filter.low
                ),
                _ => format!(
                    "{} is above {other}; accepted: 1 to {}",
                    filter.low, filter.high
                ),
            };
            s.error(key, wrong);
        }
        section.finish();
        filter
    }
}

section! {
    /// `data_filter`: drops TCP data that the other side is known to have.
    #[derive(Debug, Clone, Copy, PartialEq)]
    pub struct DataFilter(s) {
        /// Rule.
        rule: Rule = Rule::read(s, Rule::ALWAYS);
    }
}

section! {
    /// `snoop`: TCP segments lost beyond pepd are retransmitted in the sender's place.
    #[derive(Debug, Clone, Copy, PartialEq)]
    pub struct Snoop(s) {
        /// Rule.
        rule: Rule = Rule::read(s, Rule::ALWAYS);
        /// Memory for segments until they are acknowledged.
        cache: ByteSize = cache(), ByteSize::mib(1);
        /// Maximum number of retransmissions of a segment.
        tries: u8 = byte(1..=20), 5;
    }
}

section! {
    /// `divacks`: an ACK is split into several, each for a part of its bytes.
    #[derive(Debug, Clone, Copy, PartialEq)]
    pub struct DivAcks(s) {
        /// Rule.
        rule: Rule = Rule::read(s, Rule::ALWAYS);
        /// Condition for dividing ACKs.
        mode: DivAcksMode = DivAcksMode::WORDS, DivAcksMode::Controlled;
        /// Parts of an ACK.
        parts: u8 = byte(2..=64), 12;
        /// Maximum number of parts of ACKs of a connection: past slow start division gains nothing.
        max_count: u32 = Integer(1..=1_000_000), 1500;
    }
}

words! {
    /// Condition for dividing ACKs.
    pub enum DivAcksMode {
        /// Until [`DivAcks::max_count`], and again after a pause.
        Controlled = "controlled",
        /// Until the first sign of loss.
        BruteForce = "brute_force",
    }
}

section! {
    /// `jitter`: packets leave the far end with the spacing of their arrival.
    #[derive(Debug, Clone, Copy, PartialEq)]
    pub struct Jitter(s) {
        /// Rule.
        rule: Rule = Rule::read(s, Rule::ALWAYS);
        /// Maximum time to hold a packet back.
        delay: Duration =
            Span(Duration::from_millis(1)..=Duration::from_secs(2)), Duration::from_millis(60);
    }
}

section! {
    /// `checksum`: adds a checksum to UDP datagrams over IPv4 that have none, so that damage behind
    /// the link is detected.
    #[derive(Debug, Clone, Copy, PartialEq)]
    pub struct Checksum(s) {
        /// Rule.
        rule: Rule = Rule::read(s, Rule::ALWAYS);
    }
}

section! {
    /// `compress`: compresses headers and payload of packets.
    #[derive(Debug, Clone, Copy, PartialEq)]
    pub struct Compress(s) {
        /// Rule.
        rule: Rule = Rule::read(s, Rule::ALWAYS);
        /// Compression level of zstd for payload.
        level: u8 = byte(1..=9), 3;
        /// Compresses headers.
        headers: bool = Switch, true;
        /// Compresses payload; incompressible payload stays unchanged.
        payload: bool = Switch, true;
    }
}

impl Compress {
    fn read(mut section: Section<'_>) -> Self {
        let s = &mut section;
        let compress = Self::read_keys(s);
        if !compress.headers && !compress.payload {
            s.warning(
                "payload",
                "with `headers` off as well nothing is compressed: the booster does nothing",
            );
        } else if !compress.payload && s.has("level") {
            s.warning(
                "level",
                "has no effect: only payload has a compression level",
            );
        }
        section.finish();
        compress
    }
}

section! {
    /// `congestion`: notifies senders of pepd's queue before it is full.
    #[derive(Debug, Clone, Copy, PartialEq)]
    pub struct Congestion(s) {
        /// Rule.
        rule: Rule = Rule::read_beside(
            s,
            Rule { queue_above: Some(Duration::from_millis(100)), ..Rule::ALWAYS },
            ["asymmetry_above", "loss_above"],
        );
        /// Signal to senders.
        mark: CongestionMark = CongestionMark::WORDS, CongestionMark::Both;
    }
}

words! {
    /// Signal to a sender that is too fast.
    pub enum CongestionMark {
        /// By ECN, where its packets allow it.
        Ecn = "ecn",
        /// By duplicate ACKs, for TCP.
        DupAck = "dupack",
        /// By ECN where its packets allow it, else by duplicate ACKs.
        Both = "both",
    }
}

fn cache() -> Size {
    Size(ByteSize::kib(64)..=ByteSize::mib(64))
}
