//! `[site.boost]`: what is done with the packets of a site in mode `packet`, booster by booster.
//!
//! What a booster does with it is written in the crate `boosters`.

use std::time::Duration;

use units::{ByteSize, Ratio};

use crate::reading::{
    Section, section,
    values::{Integer, Number, Share, Size, Span, Switch, byte, share, some},
    words,
};

section! {
    /// The boosters of a site; one that is `None` is off for good.
    #[derive(Debug, Clone, PartialEq, Default)]
    pub struct Boost(s, deadline: Duration) {
        /// Restores lost packets from overcode.
        fec: Option<Fec> = s.switched("fec").map(Fec::read);
        /// Sends lost packets again.
        arq: Option<Arq> = s.switched("arq").map(|own| own.whole(|s| Arq::read_keys(s, deadline)));
        /// Makes the ACKs again that were left out on the way, spread over time.
        ack_reconstruction: Option<AckReconstruction> =
            read(s, "ack_reconstruction", AckReconstruction::read_keys);
        /// Leaves out ACKs that a later one in the queue says too.
        ack_filter: Option<AckFilter> = s.switched("ack_filter").map(AckFilter::read);
        /// Leaves out TCP data that the other side is known to have.
        data_filter: Option<DataFilter> = read(s, "data_filter", DataFilter::read_keys);
        /// Sends TCP segments again in the sender's place.
        snoop: Option<Snoop> = read(s, "snoop", Snoop::read_keys);
        /// Divides ACKs, so that the sender's window grows faster.
        divacks: Option<DivAcks> = read(s, "divacks", DivAcks::read_keys);
        /// Evens out delays at the far end.
        jitter: Option<Jitter> = read(s, "jitter", Jitter::read_keys);
        /// Adds a checksum to UDP datagrams that have none.
        checksum: Option<Checksum> = read(s, "checksum", Checksum::read_keys);
        /// Makes packets smaller.
        compress: Option<Compress> = s.switched("compress").map(Compress::read);
        /// Tells senders of our queue before it is full.
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
    /// The boosters that are configured, by their keys, and when each works.
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
    /// When a booster that is configured works.
    ///
    /// All the conditions that are given have to hold. What is measured is of the packets of the
    /// site; a booster that is told nothing of a measure takes the condition for not met. A
    /// condition that is missing is that of the booster.
    #[derive(Debug, Clone, Copy, PartialEq)]
    pub struct Rule(s, stated: &mut Option<When>, default: Rule) {
        /// What decides. By default [`When::Rule`] if there is any condition, of the file or of the
        /// booster, else [`When::Always`].
        when: When = { *stated = s.read("when", When::WORDS); stated.unwrap_or(When::Always) };
        /// The share of packets that the link loses is above this.
        loss_above: Option<Ratio> = some(Share(share(0.0)..=share(1.0))), default.loss_above;
        /// The normalised asymmetry is above this: how many ACKs the data that come in call for,
        /// over how many the way back takes; above 1 it is short of room for them.
        asymmetry_above: Option<f64> = some(Number(0.0..=10_000.0)), default.asymmetry_above;
        /// Packets wait in our queue for longer than this.
        queue_above: Option<Duration> = some(Span(Duration::ZERO..=HOUR)), default.queue_above;
        /// For how long the conditions must hold before it begins to work, and must not hold before
        /// it ends.
        after: Duration = Span(Duration::ZERO..=HOUR), default.after;
    }
}

const HOUR: Duration = Duration::from_secs(3600);

impl Rule {
    /// Without any condition. Changes are waited for longer than a burst of losses takes.
    pub const ALWAYS: Self = Self {
        when: When::Always,
        loss_above: None,
        asymmetry_above: None,
        queue_above: None,
        after: Duration::from_secs(2),
    };

    /// Whether there is a condition.
    pub const fn has_condition(&self) -> bool {
        self.loss_above.is_some() || self.asymmetry_above.is_some() || self.queue_above.is_some()
    }

    /// Reads the keys that all boosters have; a condition that is missing is that of `default`.
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
            let message = "has no effect: it counts for conditions, and there is none of `loss_above`, `asymmetry_above` and `queue_above`";
            s.warning("after", message);
        }
        if matches!(own, Some(When::Always | When::Never)) {
            for key in ["loss_above", "asymmetry_above", "queue_above", "after"] {
                if s.has(key) {
                    s.warning(
                        key,
                        "has no effect: only with `when = \"rule\"` conditions decide",
                    );
                }
            }
        }
        Self {
            when: own.unwrap_or(by_default),
            ..rule
        }
    }

    /// The same of a booster that judges its own condition by itself: only `others` are waited for.
    fn read_beside(s: &mut Section<'_>, default: Self, others: [&str; 2]) -> Self {
        let rule = Self::read(s, default);
        let alone = rule.when == When::Rule && !others.iter().any(|key| s.has(key));
        if alone && rule.after != default.after {
            let [one, other] = others;
            s.warning(
                "after",
                format!("has no effect: the booster's own condition is judged by itself; it counts for `{one}` and `{other}`"),
            );
        }
        rule
    }
}

words! {
    /// What decides whether a booster works.
    pub enum When {
        /// The conditions.
        Rule = "rule",
        /// It works at all times.
        Always = "always",
        /// It never does.
        Never = "never",
    }
}

section! {
    /// `fec`: overcode over the packets of the site.
    #[derive(Debug, Clone, Copy, PartialEq)]
    pub struct Fec(s) {
        /// When it works. Below its default, a packet lost in two thousand, TCP and voice do
        /// without.
        rule: Rule = Rule::read_beside(
            s,
            Rule { loss_above: Some(share(0.0005)), ..Rule::ALWAYS },
            ["asymmetry_above", "queue_above"],
        );
        /// How overcode is made.
        scheme: FecScheme = FecScheme::WORDS, FecScheme::Window;
        /// Packets that a repair packet is over.
        window: u8 = byte(1..=128), 64;
        /// Data packets of a block.
        block: u8 = byte(1..=128), 20;
        /// Overcode at most, as a share of the bytes of data packets.
        overhead_max: Ratio = Share(share(0.0)..=share(1.0)), share(0.5);
        /// What may be lost still.
        target: Ratio = Share(share(1e-9)..=share(0.1)), share(1e-5);
        /// Blocks that are sent interleaved, of at most 2048 packets together. Costs as many times
        /// the delay.
        depth: u8 = byte(1..=64), 1;
    }
}

/// Packets of interleaved blocks at most.
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
        if fec.overhead_max == share(0.0) {
            s.warning(
                "overhead_max",
                "leaves no room for overcode: the booster does nothing",
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

    /// The far end keeps the packets of all blocks that are interleaved, and of as many again.
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
    /// How overcode is made.
    pub enum FecScheme {
        /// Each repair packet is over the last packets.
        Window = "window",
        /// Packets are put together in blocks.
        Block = "block",
    }
}

section! {
    /// `arq`: lost packets are sent again.
    #[derive(Debug, Clone, Copy, PartialEq)]
    pub struct Arq(s, deadline: Duration) {
        /// When it works.
        rule: Rule = Rule::read(s, Rule::ALWAYS);
        /// Times that a packet is sent again. What is lost twice, the hosts send again themselves.
        tries: u8 = byte(1..=2), 1;
        /// Whether packets leave in the order in which they came, so that those behind a lost one
        /// wait.
        order: bool = Switch, false;
        /// Packets that are kept to be sent again, at each end. By default the product of 14 Mbit/s
        /// and 600 ms.
        cache: ByteSize = cache(), ByteSize::mib(1);
        /// How long a missing packet is waited for.
        wait: Duration =
            Span(Duration::from_millis(1)..=Arq::WAIT_MAX), deadline.min(Arq::WAIT_MAX);
    }
}

impl Arq {
    /// The longest that may be waited: as the far end is told of it in milliseconds, in 16 bits.
    pub const WAIT_MAX: Duration = Duration::from_secs(60);
}

section! {
    /// `ack_reconstruction`: ACKs that were left out are made again behind the link, spread over
    /// time.
    #[derive(Debug, Clone, Copy, PartialEq)]
    pub struct AckReconstruction(s) {
        /// When it works. By default: packets wait in the queue at all, and the asymmetry is such
        /// that ACKs are left out.
        rule: Rule = Rule::read(s, Rule {
            queue_above: Some(Duration::ZERO),
            asymmetry_above: Some(1.0),
            ..Rule::ALWAYS
        });
        /// Over how long a time ACKs are spread at most: until the next one is due, unless that
        /// takes longer.
        spacing_max: Duration =
            Span(Duration::from_millis(1)..=Duration::from_secs(10)), Duration::from_secs(1);
    }
}

section! {
    /// `ack_filter`: ACKs are left out that a later one in the queue says too.
    #[derive(Debug, Clone, Copy, PartialEq)]
    pub struct AckFilter(s) {
        /// When it works. It only does anything where ACKs wait.
        rule: Rule = Rule::read(s, Rule::ALWAYS);
        /// Beyond `high` one duplicate in `high` - `low` passes, and no more than every second.
        low: u8 = byte(1..=255), 2;
        /// Duplicates of an ACK that all pass, at least `low`, and three in any case.
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
    /// `data_filter`: TCP data is left out that the other side is known to have.
    #[derive(Debug, Clone, Copy, PartialEq)]
    pub struct DataFilter(s) {
        /// When it works.
        rule: Rule = Rule::read(s, Rule::ALWAYS);
    }
}

section! {
    /// `snoop`: TCP segments that were lost behind us are sent again in the sender's place.
    #[derive(Debug, Clone, Copy, PartialEq)]
    pub struct Snoop(s) {
        /// When it works.
        rule: Rule = Rule::read(s, Rule::ALWAYS);
        /// Segments that are kept until they are acknowledged.
        cache: ByteSize = cache(), ByteSize::mib(1);
        /// Times that a segment is sent again.
        tries: u8 = byte(1..=20), 5;
    }
}

section! {
    /// `divacks`: an ACK goes on as several, each for a part of its bytes.
    #[derive(Debug, Clone, Copy, PartialEq)]
    pub struct DivAcks(s) {
        /// When it works.
        rule: Rule = Rule::read(s, Rule::ALWAYS);
        /// When ACKs are divided.
        mode: DivAcksMode = DivAcksMode::WORDS, DivAcksMode::Controlled;
        /// Parts of an ACK.
        parts: u8 = byte(2..=64), 12;
        /// Parts of ACKs of a connection at most: past slow start nothing is to be had by it.
        max_count: u32 = Integer(1..=1_000_000), 1500;
    }
}

words! {
    /// When ACKs are divided.
    pub enum DivAcksMode {
        /// Until [`DivAcks::max_count`], and anew after a pause.
        Controlled = "controlled",
        /// Until the first sign of loss.
        BruteForce = "brute_force",
    }
}

section! {
    /// `jitter`: packets leave the far end as evenly as they came.
    #[derive(Debug, Clone, Copy, PartialEq)]
    pub struct Jitter(s) {
        /// When it works.
        rule: Rule = Rule::read(s, Rule::ALWAYS);
        /// How long a packet is held back at most.
        delay: Duration =
            Span(Duration::from_millis(1)..=Duration::from_secs(2)), Duration::from_millis(60);
    }
}

section! {
    /// `checksum`: UDP datagrams over IPv4 that have no checksum get one, so that damage behind the
    /// link is found out.
    #[derive(Debug, Clone, Copy, PartialEq)]
    pub struct Checksum(s) {
        /// When it works.
        rule: Rule = Rule::read(s, Rule::ALWAYS);
    }
}

section! {
    /// `compress`: headers and payload of packets.
    #[derive(Debug, Clone, Copy, PartialEq)]
    pub struct Compress(s) {
        /// When it works.
        rule: Rule = Rule::read(s, Rule::ALWAYS);
        /// How hard payload is compressed, as zstd has it.
        level: u8 = byte(1..=9), 3;
        /// Whether headers are compressed.
        headers: bool = Switch, true;
        /// Whether payload is; what does not get smaller goes as it is.
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
                "has no effect: only payload is compressed by levels",
            );
        }
        section.finish();
        compress
    }
}

section! {
    /// `congestion`: senders hear of our queue before it is full.
    #[derive(Debug, Clone, Copy, PartialEq)]
    pub struct Congestion(s) {
        /// When it works.
        rule: Rule = Rule::read_beside(
            s,
            Rule { queue_above: Some(Duration::from_millis(100)), ..Rule::ALWAYS },
            ["asymmetry_above", "loss_above"],
        );
        /// How they are told.
        mark: CongestionMark = CongestionMark::WORDS, CongestionMark::Both;
    }
}

words! {
    /// How a sender is told that it is too fast.
    pub enum CongestionMark {
        /// By ECN, where its packets allow it.
        Ecn = "ecn",
        /// By duplicate ACKs, where it speaks TCP.
        DupAck = "dupack",
        /// By ECN where its packets allow it, else by duplicate ACKs.
        Both = "both",
    }
}

fn cache() -> Size {
    Size(ByteSize::kib(64)..=ByteSize::mib(64))
}
