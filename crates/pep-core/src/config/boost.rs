//! From the file to checked boosters.

use std::time::Duration;

use units::ByteSize;

use crate::reading::{
    Section,
    values::{Integer, Number, OneOf, Share, Size, Span, Switch, byte, share},
};
use crate::site::boost::{
    AckFilter, AckReconstruction, Arq, Boost, Checksum, Compress, Congestion, CongestionMark,
    DataFilter, DivAcks, DivAcksMode, Fec, FecScheme, Jitter, Rule, Snoop, When,
};

const HOUR: Duration = Duration::from_secs(3600);

impl Boost {
    /// Reads `[site.boost]`; what it does not name is off.
    pub(in crate::config) fn read(mut section: Section<'_>, deadline: Duration) -> Self {
        let s = &mut section;
        let boost = Self {
            fec: s.switched("fec").map(Fec::read),
            arq: s.switched("arq").map(|own| Arq::read(own, deadline)),
            ack_reconstruction: s
                .switched("ack_reconstruction")
                .map(AckReconstruction::read),
            ack_filter: s.switched("ack_filter").map(AckFilter::read),
            data_filter: s.switched("data_filter").map(DataFilter::read),
            snoop: s.switched("snoop").map(Snoop::read),
            divacks: s.switched("divacks").map(DivAcks::read),
            jitter: s.switched("jitter").map(Jitter::read),
            checksum: s.switched("checksum").map(Checksum::read),
            compress: s.switched("compress").map(Compress::read),
            congestion: s.switched("congestion").map(Congestion::read),
        };
        section.finish();
        boost
    }
}

impl Rule {
    /// Reads the keys that all boosters have; a condition that is missing is that of `default`.
    fn read(s: &mut Section<'_>, default: Self) -> Self {
        let own = s.read("when", WHENS);
        let rule = Self {
            when: When::Always,
            loss_above: s.read("loss_above", Share(share(0.0)..=share(1.0))),
            asymmetry_above: s.read("asymmetry_above", Number(0.0..=10_000.0)),
            queue_above: s.read("queue_above", Span(Duration::ZERO..=HOUR)),
            after: s
                .read("after", Span(Duration::ZERO..=HOUR))
                .unwrap_or(default.after),
        };
        let rule = Self {
            loss_above: rule.loss_above.or(default.loss_above),
            asymmetry_above: rule.asymmetry_above.or(default.asymmetry_above),
            queue_above: rule.queue_above.or(default.queue_above),
            ..rule
        };
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

/// Packets of interleaved blocks at most.
const INTERLEAVED_MAX: u32 = 2048;

impl Fec {
    fn read(mut section: Section<'_>) -> Self {
        let s = &mut section;
        let rule = Rule {
            loss_above: Some(share(0.0005)),
            ..Rule::ALWAYS
        };
        let fec = Self {
            rule: Rule::read_beside(s, rule, ["asymmetry_above", "queue_above"]),
            scheme: s.read("scheme", SCHEMES).unwrap_or_default(),
            window: s.read("window", byte(1..=128)).unwrap_or(64),
            block: s.read("block", byte(1..=128)).unwrap_or(20),
            overhead_max: s
                .read("overhead_max", Share(share(0.0)..=share(1.0)))
                .unwrap_or(share(0.5)),
            target: s
                .read("target", Share(share(1e-9)..=share(0.1)))
                .unwrap_or(share(1e-5)),
            depth: s.read("depth", byte(1..=64)).unwrap_or(1),
        };
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

impl Arq {
    fn read(mut section: Section<'_>, deadline: Duration) -> Self {
        let s = &mut section;
        let arq = Self {
            rule: Rule::read(s, Rule::ALWAYS),
            tries: s.read("tries", byte(1..=2)).unwrap_or(1),
            order: s.read("order", Switch).unwrap_or(false),
            cache: s.read("cache", cache()).unwrap_or(ByteSize::mib(1)),
            wait: s
                .read("wait", Span(Duration::from_millis(1)..=Arq::WAIT_MAX))
                .unwrap_or(deadline.min(Arq::WAIT_MAX)),
        };
        section.finish();
        arq
    }
}

impl AckReconstruction {
    fn read(mut section: Section<'_>) -> Self {
        let s = &mut section;
        let rule = Rule {
            queue_above: Some(Duration::ZERO),
            asymmetry_above: Some(1.0),
            ..Rule::ALWAYS
        };
        let spacing = Span(Duration::from_millis(1)..=Duration::from_secs(10));
        let own = Self {
            rule: Rule::read(s, rule),
            spacing_max: s
                .read("spacing_max", spacing)
                .unwrap_or(Duration::from_secs(1)),
        };
        section.finish();
        own
    }
}

impl AckFilter {
    fn read(mut section: Section<'_>) -> Self {
        let s = &mut section;
        let filter = Self {
            rule: Rule::read(s, Rule::ALWAYS),
            low: s.read("low", byte(1..=255)).unwrap_or(2),
            high: s.read("high", byte(1..=255)).unwrap_or(8),
        };
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

impl DataFilter {
    fn read(mut section: Section<'_>) -> Self {
        let rule = Rule::read(&mut section, Rule::ALWAYS);
        section.finish();
        Self { rule }
    }
}

impl Snoop {
    fn read(mut section: Section<'_>) -> Self {
        let s = &mut section;
        let snoop = Self {
            rule: Rule::read(s, Rule::ALWAYS),
            cache: s.read("cache", cache()).unwrap_or(ByteSize::mib(1)),
            tries: s.read("tries", byte(1..=20)).unwrap_or(5),
        };
        section.finish();
        snoop
    }
}

impl DivAcks {
    fn read(mut section: Section<'_>) -> Self {
        let s = &mut section;
        let divacks = Self {
            rule: Rule::read(s, Rule::ALWAYS),
            mode: s.read("mode", DIVACKS_MODES).unwrap_or_default(),
            parts: s.read("parts", byte(2..=64)).unwrap_or(12),
            max_count: s.read("max_count", Integer(1..=1_000_000)).unwrap_or(1500),
        };
        section.finish();
        divacks
    }
}

impl Jitter {
    fn read(mut section: Section<'_>) -> Self {
        let s = &mut section;
        let bound = Span(Duration::from_millis(1)..=Duration::from_secs(2));
        let jitter = Self {
            rule: Rule::read(s, Rule::ALWAYS),
            delay: s.read("delay", bound).unwrap_or(Duration::from_millis(60)),
        };
        section.finish();
        jitter
    }
}

impl Checksum {
    fn read(mut section: Section<'_>) -> Self {
        let rule = Rule::read(&mut section, Rule::ALWAYS);
        section.finish();
        Self { rule }
    }
}

impl Compress {
    fn read(mut section: Section<'_>) -> Self {
        let s = &mut section;
        let compress = Self {
            rule: Rule::read(s, Rule::ALWAYS),
            level: s.read("level", byte(1..=9)).unwrap_or(3),
            headers: s.read("headers", Switch).unwrap_or(true),
            payload: s.read("payload", Switch).unwrap_or(true),
        };
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

impl Congestion {
    fn read(mut section: Section<'_>) -> Self {
        let s = &mut section;
        let rule = Rule {
            queue_above: Some(Duration::from_millis(100)),
            ..Rule::ALWAYS
        };
        let congestion = Self {
            rule: Rule::read_beside(s, rule, ["asymmetry_above", "loss_above"]),
            mark: s.read("mark", MARKS).unwrap_or_default(),
        };
        section.finish();
        congestion
    }
}

fn cache() -> Size {
    Size(ByteSize::kib(64)..=ByteSize::mib(64))
}

const WHENS: OneOf<When> = OneOf(&[
    ("rule", When::Rule),
    ("always", When::Always),
    ("never", When::Never),
]);
const SCHEMES: OneOf<FecScheme> =
    OneOf(&[("window", FecScheme::Window), ("block", FecScheme::Block)]);
const DIVACKS_MODES: OneOf<DivAcksMode> = OneOf(&[
    ("controlled", DivAcksMode::Controlled),
    ("brute_force", DivAcksMode::BruteForce),
]);
const MARKS: OneOf<CongestionMark> = OneOf(&[
    ("ecn", CongestionMark::Ecn),
    ("dupack", CongestionMark::DupAck),
    ("both", CongestionMark::Both),
]);
