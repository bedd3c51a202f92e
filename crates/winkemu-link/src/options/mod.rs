//! Text form of a link: options on the command line, in `key=value,...` lists and in TOML.

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

/// Rejection of a link's options.
#[derive(Debug, thiserror::Error)]
pub enum OptionError {
    /// Unknown key.
    #[error("unknown link option `{key}`; valid options are {}", PathOptions::KEYS.join(", "))]
    Unknown {
        /// Key as found.
        key: String,
    },
    /// Unacceptable value of a key.
    #[error("{key}: {message}")]
    Value {
        /// Key.
        key: &'static str,
        /// Value as found, and the accepted form.
        message: String,
    },
    /// Text without a key.
    #[error("`{text}` is not key=value")]
    NoKey {
        /// Text as found.
        text: String,
    },
    /// Unreadable trace file.
    #[error("{key}: cannot read {}", path.display())]
    File {
        /// Key that names the file.
        key: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// Cause.
        #[source]
        error: io::Error,
    },
    /// Trace file with invalid content.
    #[error("{key}: {}", path.display())]
    Trace {
        /// Key that names the file.
        key: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// Error in its content.
        #[source]
        error: TraceError,
    },
}

/// Value, or a file that holds it over time.
#[derive(Debug, Clone, PartialEq)]
pub enum Source<T> {
    /// Value itself.
    Value(T),
    /// File, written `@FILE`.
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

/// Rate limit, or none: `10mbit` or `unlimited`.
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
        /// Options of one direction, or of both; options left out keep their defaults.
        ///
        /// Parses from `key=value,key=value` and from TOML, where a value is a string, a number or
        /// a boolean.
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
            /// Unknown key, or unacceptable value.
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

            /// Takes unset options from `base`.
            pub fn over(self, base: Self) -> Self {
                Self { $($field: self.$field.or(base.$field),)+ }
            }

            /// Options that are set, as text.
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
    /// Rate: 10mbit, unlimited, or @FILE with `seconds,rate` lines or in mahimahi format
    rate: Source<RateLimit> = "rate" "RATE",
    /// Bytes added to each packet on the wire: 0 to 1000
    overhead: Overhead = "overhead" "BYTES",
    /// Size of the queue: 660kB, 1000p or 100%bdp [default: 100%bdp, 15kB or more]
    queue: QueueLimit = "queue" "SIZE",
    /// Drop policy of the queue: tail, head, or codel[:target=5ms,interval=100ms] [default: tail]
    aqm: Aqm = "aqm" "DISCIPLINE",
    /// One-way delay: 264ms, or @FILE with `seconds,delay` lines
    delay: Source<Span> = "delay" "DELAY",
    /// Random extra delay: 20ms (uniform from 0 to 20 ms) or 5ms,exponential (mean)
    jitter: Jitter = "jitter" "JITTER",
    /// Let jitter reorder packets: true or false [default: false]
    reorder: bool = "reorder" "BOOL",
    /// Packet error ratio: 1%, 0.01, or @FILE with a 0 or 1 for each packet
    loss: Source<Ratio> = "loss" "SHARE",
    /// Bit error ratio: a packet of n bytes is lost with probability 1 - (1 - BER)^(8n)
    ber: Ratio = "ber" "BER",
    /// Burst loss: P(good to bad),P(bad to good)[,loss in bad[,loss in good]]
    gilbert: Gilbert = "gilbert" "P,Q",
    /// Share of packets delivered twice
    duplicate: Ratio = "duplicate" "SHARE",
    /// Share of packets with one bit flipped
    corrupt: Ratio = "corrupt" "SHARE",
    /// Short outages: down with probability p in each interval i: p=0.4,i=100ms
    wink: Wink = "wink" "p=P,i=TIME",
    /// Periodic outages: up=9s,down=1s[,first=5s]
    periodic: Periodic = "periodic" "up=TIME,down=TIME",
    /// Random outages with exponentially distributed lengths of these means: up=20s,down=2s
    onoff: OnOff = "onoff" "up=TIME,down=TIME",
    /// Scripted outages, start + length: 10s+2s,30s+500ms; none; or @FILE with `from,to` lines in
    /// seconds
    outages: Source<Spans> = "outages" "SPANS",
    /// Up in these spans only: 0s+600s,5400s+600s, or @FILE (`from,to` lines or ION contact plan)
    contacts: Source<Spans> = "contacts" "SPANS",
    /// Treatment of waiting packets in an outage: drop (sent and lost) or hold [default: drop]
    queued: Queued = "queued" "drop|hold",
    /// Treatment of packets in flight in an outage: pass, drop or hold [default: pass]
    in_flight: InFlight = "in-flight" "pass|drop|hold",
}

/// Extra bytes per packet, 0 to 1000.
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

    /// Parses `key=value,key=value`. A part without a known key belongs to the value before it: in
    /// `rate=1mbit,wink=p=0.4,i=100ms`, `i=100ms` is part of `wink`.
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

/// Reports whether `part` can continue `value`. The names in a list are short; misspelt keys rarely
/// are.
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
    /// Checks the options and returns the configuration of a direction.
    ///
    /// # Errors
    /// A file that `load` cannot read, or that holds no valid trace.
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
    // Some editors write a byte order mark.
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
    parse(text).map_err(|error| OptionError::Trace {
        key,
        path: path.to_owned(),
        error,
    })
}

/// Options of a link: those of both directions, then those of each.
///
/// In TOML the keys of both directions stand at the top level, those of one in the tables `ab` and
/// `ba`: `{ rate = "10mbit", delay = "300ms", ab = { loss = "1%" } }`. For the command line, see
/// `winkemu link --help`.
#[derive(Debug, Clone, Default, PartialEq, clap::Args)]
pub struct LinkOptions {
    /// Options of both directions.
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
    /// Takes unset options from `base`.
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

    /// Checks the options and returns the configuration of the link; `load` reads trace files.
    ///
    /// # Errors
    /// A file that cannot be read, or that holds no valid trace.
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

    /// Checks the options of a link without trace files.
    ///
    /// # Errors
    /// An option that names a file.
    pub fn resolve_without_files(&self) -> Result<LinkConfig, OptionError> {
        self.resolve(&mut |_| Err(io::Error::from(io::ErrorKind::Unsupported)))
    }
}

impl FromStr for LinkOptions {
    type Err = OptionError;

    /// Parses the options of both directions from `key=value,...`.
    fn from_str(text: &str) -> Result<Self, OptionError> {
        let both = text.parse()?;
        Ok(Self {
            both,
            ..Self::default()
        })
    }
}
