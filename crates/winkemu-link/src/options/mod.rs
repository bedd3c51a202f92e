//! A link as people write it: on the command line, in `key=value,...` lists and in TOML.

mod tables;

use std::{
    fmt, io,
    path::{Path, PathBuf},
    str::FromStr,
};

use units::{Rate, Ratio, duration::Span};

use super::{
    Aqm, DelayConfig, DelayModel, Gilbert, InFlight, Jitter, LinkConfig, LossConfig, OnOff, Outage,
    PathConfig, Periodic, QueueConfig, QueueLimit, Queued, RateModel, Spans, ValueError, Wink,
    nanos,
    trace::{self, TraceError},
};

/// Why a link's options were refused.
#[derive(Debug, thiserror::Error)]
pub enum OptionError {
    /// There is no such key.
    #[error("`{key}` is no option of a link; there are {}", PathOptions::KEYS.join(", "))]
    Unknown {
        /// As found.
        key: String,
    },
    /// The value of a key is not acceptable.
    #[error("{key}: {message}")]
    Value {
        /// The key.
        key: &'static str,
        /// What was found, and what is accepted.
        message: String,
    },
    /// A text without a key.
    #[error("`{text}` is not key=value")]
    NoKey {
        /// As found.
        text: String,
    },
    /// A trace file could not be read.
    #[error("{key}: cannot read {}", path.display())]
    File {
        /// The key.
        key: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        error: io::Error,
    },
    /// A trace file holds something else.
    #[error("{key}: {}", path.display())]
    Trace {
        /// The key.
        key: &'static str,
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        error: TraceError,
    },
}

/// A value, or a file that holds it over time.
#[derive(Debug, Clone, PartialEq)]
pub enum Source<T> {
    /// The value itself.
    Value(T),
    /// `@FILE`.
    File(PathBuf),
}

impl<T: FromStr<Err: fmt::Display>> FromStr for Source<T> {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        match text.strip_prefix('@') {
            Some(path) => Ok(Self::File(path.into())),
            None => text.parse().map(Self::Value).map_err(|error: T::Err| {
                let message = error.to_string();
                let expected = message.split_once("` is not ").map_or("", |(_, e)| e);
                ValueError::new(text, format!("{expected}; or @FILE"))
            }),
        }
    }
}

impl<T: fmt::Display> fmt::Display for Source<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Value(value) => write!(f, "{value}"),
            Self::File(path) => write!(f, "@{}", path.display()),
        }
    }
}

/// A rate, or none: `10mbit` or `unlimited`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RateLimit(pub Option<Rate>);

impl FromStr for RateLimit {
    type Err = units::UnitError;

    fn from_str(text: &str) -> Result<Self, units::UnitError> {
        if text.trim() == "unlimited" {
            return Ok(Self(None));
        }
        text.parse().map(|rate| Self(Some(rate)))
    }
}

impl fmt::Display for RateLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(rate) => write!(f, "{rate}"),
            None => f.write_str("unlimited"),
        }
    }
}

/// Declares the options once: field, type, key, and help text.
macro_rules! path_options {
    ($($(#[$doc:meta])+ $field:ident: $type:ty = $key:literal $name:literal,)+) => {
        /// What may be said about one direction, or about both; what is left out keeps its default.
        ///
        /// Reads itself from `key=value,key=value` and from TOML, where a value is a string, a
        /// number or a boolean.
        #[derive(Debug, Clone, Default, PartialEq, clap::Args)]
        pub struct PathOptions {
            $($(#[$doc])+ #[arg(long = $key, value_name = $name)] pub $field: Option<$type>,)+
        }

        impl PathOptions {
            /// All keys.
            pub const KEYS: &[&str] = &[$($key),+];

            /// Sets one option from text.
            ///
            /// # Errors
            /// When there is no such key, or the value is not acceptable.
            pub fn set(&mut self, key: &str, value: &str) -> Result<(), OptionError> {
                match key {
                    $($key => {
                        let value: $type = value.trim().parse().map_err(|error| OptionError::Value {
                            key: $key,
                            message: format!("{error}"),
                        })?;
                        self.$field = Some(value);
                    })+
                    _ => return Err(OptionError::Unknown { key: key.to_owned() }),
                }
                Ok(())
            }

            /// These options, and where they say nothing, those of `base`.
            pub fn over(self, base: Self) -> Self {
                Self { $($field: self.$field.or(base.$field),)+ }
            }

            /// What is set, as text.
            pub fn entries(&self) -> Vec<(&'static str, String)> {
                let mut entries = Vec::new();
                $(if let Some(value) = &self.$field {
                    entries.push(($key, value.to_string()));
                })+
                entries
            }
        }
    };
}

path_options! {
    /// Rate: 10mbit, unlimited, or @FILE with `seconds,rate` lines or in mahimahi's format
    rate: Source<RateLimit> = "rate" "RATE",
    /// Bytes that each packet takes on the wire beyond its own: 0 to 1000
    overhead: Overhead = "overhead" "BYTES",
    /// Size of the queue: 660kB, 1000p or 100%bdp [default: 100%bdp, at least 15kB]
    queue: QueueLimit = "queue" "SIZE",
    /// What a full queue drops: tail, head, or codel[:target=5ms,interval=100ms] [default: tail]
    aqm: Aqm = "aqm" "DISCIPLINE",
    /// One-way delay: 264ms, or @FILE with `seconds,delay` lines
    delay: Source<Span> = "delay" "DELAY",
    /// Random extra delay: 20ms (evenly from 0 to 20 ms) or 5ms,exponential (mean)
    jitter: Jitter = "jitter" "JITTER",
    /// Whether jitter lets packets overtake each other: true or false [default: false]
    reorder: bool = "reorder" "BOOL",
    /// Packet error ratio: 1%, 0.01, or @FILE with a 0 or 1 for each packet
    loss: Source<Ratio> = "loss" "SHARE",
    /// Bit error ratio: a packet of n bytes is lost with 1 - (1 - BER)^(8n)
    ber: Ratio = "ber" "BER",
    /// Loss in bursts: P(good to bad),P(bad to good)[,loss in bad[,loss in good]]
    gilbert: Gilbert = "gilbert" "P,Q",
    /// Share of packets that arrive twice
    duplicate: Ratio = "duplicate" "SHARE",
    /// Share of packets with one bit flipped
    corrupt: Ratio = "corrupt" "SHARE",
    /// Down with probability p in each interval i: p=0.4,i=100ms
    wink: Wink = "wink" "p=P,i=TIME",
    /// Regular outages: up=9s,down=1s[,first=5s]
    periodic: Periodic = "periodic" "up=TIME,down=TIME",
    /// Random outages, exponential lengths with these means: up=20s,down=2s
    onoff: OnOff = "onoff" "up=TIME,down=TIME",
    /// Scripted outages, start + length: 10s+2s,30s+500ms, or @FILE with `from,to` lines in seconds
    outages: Source<Spans> = "outages" "SPANS",
    /// Up only in these spans: 0s+600s,5400s+600s, or @FILE with `from,to` lines, or an ION contact plan
    contacts: Source<Spans> = "contacts" "SPANS",
    /// What an outage does to waiting packets: drop (sent into the void) or hold [default: drop]
    queued: Queued = "queued" "drop|hold",
    /// What an outage does to packets in flight: pass, drop or hold [default: pass]
    in_flight: InFlight = "in-flight" "pass|drop|hold",
}

/// Extra bytes for each packet, 0 to 1000.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Overhead(pub u16);

impl FromStr for Overhead {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let bytes = text.parse().ok().filter(|bytes| *bytes <= 1000);
        let error = || ValueError::new(text, "a number of bytes from 0 to 1000");
        bytes.map(Self).ok_or_else(error)
    }
}

impl fmt::Display for Overhead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl FromStr for PathOptions {
    type Err = OptionError;

    /// `key=value,key=value`; a part that begins with no key belongs to the value before it, so
    /// that `rate=1mbit,wink=p=0.4,i=100ms` means what it says.
    fn from_str(text: &str) -> Result<Self, OptionError> {
        let mut options = Self::default();
        let mut pairs: Vec<(&str, String)> = Vec::new();
        for part in text.split(',').filter(|part| !part.trim().is_empty()) {
            match (part.split_once('='), pairs.last_mut()) {
                (Some((key, value)), _) if Self::KEYS.contains(&key.trim()) => {
                    pairs.push((key.trim(), value.to_owned()));
                }
                (_, Some((_, value))) if takes_list(value, part) => {
                    value.push(',');
                    value.push_str(part);
                }
                (Some((key, _)), _) => {
                    return Err(OptionError::Unknown {
                        key: key.to_owned(),
                    });
                }
                (None, _) => {
                    return Err(OptionError::NoKey {
                        text: part.to_owned(),
                    });
                }
            }
        }
        for (key, value) in pairs {
            options.set(key, &value)?;
        }
        Ok(options)
    }
}

/// Whether `part` can continue `value`: names of lists are short, misspelt keys rarely.
fn takes_list(value: &str, part: &str) -> bool {
    const NAMES: [&str; 10] = [
        "p", "q", "i", "up", "down", "first", "bad", "good", "target", "interval",
    ];
    match part.split_once('=') {
        Some((name, _)) => NAMES.contains(&name.trim()),
        None => !value.is_empty(),
    }
}

/// Reads a trace file on behalf of [`LinkOptions::resolve`].
type Load<'a> = &'a mut dyn FnMut(&Path) -> io::Result<String>;

impl PathOptions {
    /// The checked configuration of a direction.
    ///
    /// # Errors
    /// When a file cannot be read by `load`, or holds no trace.
    pub fn resolve(&self, load: Load<'_>) -> Result<PathConfig, OptionError> {
        Ok(PathConfig {
            rate: self.resolve_rate(load)?,
            overhead_bytes: self.overhead.map_or(0, |bytes| bytes.0),
            queue: QueueConfig {
                limit: self.queue.unwrap_or_default(),
                aqm: self.aqm.unwrap_or_default(),
            },
            outages: self.resolve_outages(load)?,
            queued: self.queued.unwrap_or_default(),
            in_flight: self.in_flight.unwrap_or_default(),
            loss: self.resolve_loss(load)?,
            delay: DelayConfig {
                base: self.resolve_delay(load)?,
                jitter: self.jitter.unwrap_or_default(),
                reorder: self.reorder.unwrap_or_default(),
            },
            duplicate: self.duplicate.unwrap_or_default(),
            corrupt: self.corrupt.unwrap_or_default(),
        })
    }

    fn resolve_rate(&self, load: Load<'_>) -> Result<RateModel, OptionError> {
        Ok(match &self.rate {
            None | Some(Source::Value(RateLimit(None))) => RateModel::Unlimited,
            Some(Source::Value(RateLimit(Some(rate)))) => RateModel::Fixed(*rate),
            Some(Source::File(path)) => {
                RateModel::Trace(read("rate", path, load, trace::parse_rates)?)
            }
        })
    }

    fn resolve_delay(&self, load: Load<'_>) -> Result<DelayModel, OptionError> {
        let span = |text: &str| Some(nanos(text.parse::<Span>().ok()?.0));
        Ok(match &self.delay {
            None => DelayModel::default(),
            Some(Source::Value(delay)) => DelayModel::Fixed(delay.0),
            Some(Source::File(path)) => DelayModel::Trace(read("delay", path, load, |text| {
                trace::parse_steps(text, span)
            })?),
        })
    }

    fn resolve_loss(&self, load: Load<'_>) -> Result<LossConfig, OptionError> {
        let mut loss = LossConfig {
            bit_errors: self.ber.unwrap_or_default(),
            burst: self.gilbert,
            ..LossConfig::default()
        };
        match &self.loss {
            None => {}
            Some(Source::Value(share)) => loss.packet = *share,
            Some(Source::File(path)) => {
                loss.trace = Some(read("loss", path, load, trace::parse_losses)?.into());
            }
        }
        Ok(loss)
    }

    fn resolve_outages(&self, load: Load<'_>) -> Result<Vec<Outage>, OptionError> {
        let mut outages = Vec::new();
        outages.extend(self.wink.map(Outage::Wink));
        outages.extend(self.periodic.map(Outage::Periodic));
        outages.extend(self.onoff.map(Outage::OnOff));
        if let Some(source) = &self.outages {
            outages.push(Outage::Down(spans("outages", source, load)?.0));
        }
        if let Some(source) = &self.contacts {
            outages.push(Outage::Contacts(spans("contacts", source, load)?.0));
        }
        Ok(outages)
    }
}

fn spans(key: &'static str, source: &Source<Spans>, load: Load<'_>) -> Result<Spans, OptionError> {
    match source {
        Source::Value(spans) => Ok(spans.clone()),
        Source::File(path) => {
            read(key, path, load, trace::parse_spans).map(|spans| Spans(spans.into()))
        }
    }
}

fn read<T>(
    key: &'static str,
    path: &Path,
    load: Load<'_>,
    parse: impl Fn(&str) -> Result<T, TraceError>,
) -> Result<T, OptionError> {
    let file = |error| OptionError::File {
        key,
        path: path.to_owned(),
        error,
    };
    let text = load(path).map_err(file)?;
    // Some editors begin with a byte order mark.
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
    parse(text).map_err(|error| OptionError::Trace {
        key,
        path: path.to_owned(),
        error,
    })
}

/// What may be said about a link: about both directions, then about each.
///
/// In TOML the keys of both directions stand at the top, those of one in tables `ab` and `ba`:
/// `{ rate = "10mbit", delay = "300ms", ab = { loss = "1%" } }`. On the command line, see
/// `winkemu link --help`.
#[derive(Debug, Clone, Default, PartialEq, clap::Args)]
pub struct LinkOptions {
    /// Both directions.
    #[command(flatten)]
    pub both: PathOptions,
    /// Overrides for the direction from A to B: key=value,...
    #[arg(long, value_name = "KEY=VALUE,...")]
    pub ab: Option<PathOptions>,
    /// Overrides for the direction from B to A: key=value,...
    #[arg(long, value_name = "KEY=VALUE,...")]
    pub ba: Option<PathOptions>,
}

impl LinkOptions {
    /// These options, and where they say nothing, those of `base`.
    pub fn over(self, base: Self) -> Self {
        let [ab, ba] = [(self.ab, base.ab), (self.ba, base.ba)].map(|(mine, theirs)| {
            let theirs = theirs.unwrap_or_default().over(base.both.clone());
            mine.unwrap_or_default()
                .over(self.both.clone())
                .over(theirs)
        });
        Self {
            both: PathOptions::default(),
            ab: Some(ab),
            ba: Some(ba),
        }
    }

    /// The checked configuration; trace files are read by `load`.
    ///
    /// # Errors
    /// When a file cannot be read, or holds no trace.
    pub fn resolve(&self, load: Load<'_>) -> Result<LinkConfig, OptionError> {
        let path = |options: &Option<PathOptions>| {
            options.clone().unwrap_or_default().over(self.both.clone())
        };
        Ok(LinkConfig {
            id: 0,
            ab: path(&self.ab).resolve(load)?,
            ba: path(&self.ba).resolve(load)?,
        })
    }

    /// The checked configuration of a link without trace files.
    ///
    /// # Errors
    /// When an option names a file.
    pub fn resolve_without_files(&self) -> Result<LinkConfig, OptionError> {
        self.resolve(&mut |_| Err(io::Error::from(io::ErrorKind::Unsupported)))
    }
}

impl FromStr for LinkOptions {
    type Err = OptionError;

    /// The options of both directions, as `key=value,...`.
    fn from_str(text: &str) -> Result<Self, OptionError> {
        let both = text.parse()?;
        Ok(Self {
            both,
            ..Self::default()
        })
    }
}
