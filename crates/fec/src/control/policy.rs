use super::{
    Counts, Estimate,
    history::{History, News},
};
use crate::{
    code::SYMBOLS_MAX,
    overhead::Overhead,
    theory::{Channel, rows_needed_into},
};

/// The share of blocks that may fail where repetition stands behind the code, as for streams.
pub const TARGET_STREAMS: f64 = 1e-3;

/// The share of blocks that may fail where nothing does, as for single packets.
pub const TARGET_PACKETS: f64 = 1e-5;

/// How far the estimate may be exceeded at most, in rows: as a whole number of rows is sent, half a
/// row above what is needed makes errors of the estimate by half a row to either side harmless. A
/// little less, as what follows a rise is rather estimated too high.
const SPARE_ROWS: f64 = 0.42;

/// How much more than that it takes to change the number of rows again, at least and as a share of
/// the rows.
const FLUTTER_ROWS: f64 = 0.1;
const FLUTTER_SHARE: f64 = 0.02;

/// Standard errors by which the fit is taken to be worse in bursts, where errors are larger than half
/// a row: averaged over these, failure is more frequent than it is for the best fit.
const FIT_ERRORS: f64 = 0.5;

/// Standard errors by which the channel is taken to be worse than the best fit, if that asks for
/// less than [`SPARE_ROWS`] do.
const CAUTION_ERRORS: f64 = 2.5;

/// Standard errors by which loss must exceed the threshold before there is any overcode: 95 %,
/// one-sided.
const ON_ERRORS: f64 = 1.645;

/// Bursts before there is any overcode; one is no reason.
const ON_BURSTS: u64 = 2;

/// Below this share of the threshold there is no overcode any more.
const OFF: f64 = 0.5;

/// For how many packets the rows stay after a fall of loss. A link that changes to and fro within that
/// time gets what its bad times ask for.
const HOLD_PACKETS: u64 = 1500;

/// Fitted channels that differ by less, relatively, are the same.
const SAME: f64 = 0.01;

/// What a [`Control`] aims at.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ControlConfig {
    /// The share of blocks that may fail: [`TARGET_STREAMS`], [`TARGET_PACKETS`] or any other.
    pub target: f64,
    /// The most overcode, as a share of data: never more than `k * overhead_max` rows for k
    /// data packets, rounded down. Short blocks get none at all if that is less than one.
    pub overhead_max: f64,
    /// The longest block whose overcode is asked for, in data packets. For a sliding window, what
    /// [`block_of_window`](crate::theory::block_of_window) says.
    pub block: u8,
    /// How many packets the packets of a block are apart: the depth of interleaving, one without.
    pub depth: usize,
    /// The loss rate above which there is overcode at all; below half of it there is none again.
    /// A threshold as of ramakrishnan2000 (section 5.5): on a clean link overcode only costs.
    pub threshold: f64,
    /// How many packets are remembered if the link does not change, at least; twice as many at most.
    /// From 1,000; never fewer than it takes to see that loss is below half the threshold, which
    /// is two divided by the threshold.
    pub memory: u64,
}

impl Default for ControlConfig {
    /// Streams in blocks of 20, at most as much overcode as data, a threshold of 1 in 2,000, and
    /// 65,536 packets of memory, which holds 33 losses at the threshold.
    fn default() -> Self {
        Self {
            target: TARGET_STREAMS,
            overhead_max: 1.0,
            block: 20,
            depth: 1,
            threshold: 5e-4,
            memory: 1 << 16,
        }
    }
}

/// A number of rows that somebody has chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Manual {
    /// Data packets, at least one.
    pub k: u8,
    /// Rows of overcode for these; in proportion for fewer or more.
    pub h: u8,
}

impl Manual {
    /// 2 rows for 50 packets, as in ramakrishnan2000.
    pub const LIGHT: Self = Self { k: 50, h: 2 };
    /// 6 rows for 20 packets, as in ramakrishnan2000.
    pub const STRONG: Self = Self { k: 20, h: 6 };
}

/// Why nothing can be controlled like that.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum ControlError {
    /// A value out of range; its name is the field's.
    #[error("{name} is {value}, where {accepted} is possible")]
    Range {
        /// The field of [`ControlConfig`] or [`Manual`].
        name: &'static str,
        /// The value given.
        value: f64,
        /// What is possible, in words.
        accepted: &'static str,
    },
}

/// How things stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// The link is clean: no overcode.
    Clean,
    /// There is overcode, and blocks of full length meet the target.
    Met,
    /// There is as much overcode as is allowed, and blocks of full length do not meet the target:
    /// because of `overhead_max`, or as no block has more than 256 packets.
    Capped,
    /// More would be needed, but as long as there is congestion there is none.
    Congested,
    /// Somebody has chosen.
    Manual,
}

/// Chooses the overcode for a link.
///
/// There is none until loss exceeds the [`threshold`](ControlConfig::threshold). Then, for each
/// number of data packets, there are the least rows with which the fitted channel meets the target,
/// with a margin for the estimate's error: two and a half standard errors, but never more than half a
/// row above what the best fit asks for. So with a good estimate, and between 3 and 20 rows, it is the
/// least number or one more.
///
/// It follows a rise of loss as soon as that is beyond doubt, from 1 to 8 % within 100 to 500 packets; a fall
/// as soon as that is, plus 1,500 packets. Otherwise it averages over all that is remembered
/// ([`memory`](ControlConfig::memory)). While the caller says that loss looks like congestion the
/// overcode never grows, as more packets would make it worse; what was lost then does not count as the
/// link's loss afterwards.
///
/// It assumes Gilbert's channel, whose good times lose nothing and whose bad times lose everything. On
/// a link that changes for some hundred packets between loss of a little and of much, each time is
/// taken for a change of the link, and overcode comes too late in the bad ones: interleaving helps.
///
/// A packet costs 0.1 to 0.2 us. For every 64 packets, places where the link may have changed are
/// tested (up to 64, a dozen logarithms each), and if the fitted channel has moved by more than
/// 1 %, two passes of [`rows_needed`](crate::theory::rows_needed) over blocks of up to
/// [`block`](ControlConfig::block) packets follow. Memory is bounded: 64 counts, and two numbers for each
/// length of blocks.
///
/// ```
/// use fec::control::{Control, ControlConfig, Counts, Standing};
///
/// let mut control = Control::new(ControlConfig::default())?;
/// for (packets, lost, bursts, rows, standing) in [
///     (5000, 0, 0, 0, Standing::Clean),
///     (5000, 100, 98, 4, Standing::Met),
///     (5000, 400, 368, 8, Standing::Met),
///     (5000, 0, 0, 0, Standing::Clean),
/// ] {
///     control.on_counts(Counts::new(packets, lost, bursts)?);
///     assert_eq!(control.overcode().rows(20), rows, "{lost} of {packets} lost");
///     assert_eq!(control.standing(), standing);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Control {
    config: ControlConfig,
    history: History,
    /// As it was when congestion began.
    before_congestion: History,
    congested: bool,
    lossy: bool,
    needed: Needed,
    overhead: Overhead,
    changed: bool,
    manual: bool,
    /// For how many packets the rows do not become fewer.
    hold_packets: u64,
}

impl Control {
    /// A control that knows nothing of the link yet, and sends no overcode.
    ///
    /// # Errors
    ///
    /// If a value makes no sense: a target or a threshold that is not between 0 and 1, an overhead
    /// that is negative or no number, an empty block, a depth of zero, or a memory of less than
    /// 1,000 packets.
    pub fn new(config: ControlConfig) -> Result<Self, ControlError> {
        let share = |name, value: f64| {
            let inside = value > 0.0 && value < 1.0;
            in_range(name, inside, value, "more than 0 and less than 1")
        };
        share("target", config.target)?;
        share("threshold", config.threshold)?;
        let overhead = config.overhead_max;
        in_range("overhead_max", overhead >= 0.0, overhead, "0 or more")?;
        for (name, value, minimum, accepted) in [
            ("block", config.block.into(), 1.0, "1 to 255"),
            ("depth", config.depth as f64, 1.0, "1 or more"),
            ("memory", config.memory as f64, 1000.0, "1000 or more"),
        ] {
            in_range(name, value >= minimum, value, accepted)?;
        }
        let memory = config.memory.max((1.0 / (OFF * config.threshold)) as u64);
        Ok(Self {
            history: History::new(memory),
            before_congestion: History::new(memory),
            congested: false,
            lossy: false,
            needed: Needed::new(config.block),
            overhead: Overhead::none(),
            changed: false,
            manual: false,
            hold_packets: 0,
            config,
        })
    }

    /// Overcode that somebody has chosen; loss is measured and estimated nevertheless.
    ///
    /// # Errors
    ///
    /// If there is no data to protect.
    pub fn manual(manual: Manual) -> Result<Self, ControlError> {
        let config = ControlConfig {
            block: manual.k,
            ..ControlConfig::default()
        };
        in_range("k", manual.k > 0, manual.k.into(), "1 to 255")?;
        let mut control = Self::new(config)?;
        control.manual = true;
        control.overhead = Overhead::of_block(manual.k, manual.h);
        control.changed = true;
        Ok(control)
    }

    /// What became of the packets that were sent next.
    pub fn on_counts(&mut self, counts: impl Into<Counts>) {
        let counts = counts.into();
        self.hold_packets = self.hold_packets.saturating_sub(counts.packets());
        match self.history.add(counts) {
            News::None => return,
            News::Piece => {}
            News::Fall => self.hold_packets = HOLD_PACKETS,
        }
        self.decide();
    }

    /// Whether loss looks like congestion from now on.
    pub fn on_congestion(&mut self, congested: bool) {
        if congested == self.congested {
            return;
        }
        self.congested = congested;
        if congested {
            self.before_congestion.restore(&self.history);
        } else {
            self.forget_congestion();
            self.decide();
        }
    }

    /// How much overcode to send.
    #[must_use]
    pub fn overhead(&self) -> &Overhead {
        &self.overhead
    }

    /// How much overcode to send, if that has changed since this was asked last.
    pub fn poll_overhead(&mut self) -> Option<&Overhead> {
        std::mem::take(&mut self.changed).then_some(&self.overhead)
    }

    /// How the link loses packets, as far as is known.
    #[must_use]
    pub fn estimate(&self) -> Estimate {
        Estimate::new(self.history.total())
    }

    /// The same as it was before the congestion that there is, if there is any: how the link by itself loses packets.
    #[must_use]
    pub fn link_estimate(&self) -> Estimate {
        match self.congested {
            true => Estimate::new(self.before_congestion.total()),
            false => self.estimate(),
        }
    }

    /// How things stand.
    #[must_use]
    pub fn standing(&self) -> Standing {
        let block = self.config.block.into();
        let rows = self.overhead.rows(block);
        if self.manual {
            Standing::Manual
        } else if !self.lossy {
            Standing::Clean
        } else if rows as f64 >= self.needed.by_fit[block - 1] {
            Standing::Met
        } else if rows >= self.rows_max(block) {
            Standing::Capped
        } else {
            Standing::Congested
        }
    }

    /// What was lost in congestion says nothing of the link, unless it was significantly less than
    /// before.
    fn forget_congestion(&mut self) {
        let before = Estimate::new(self.before_congestion.total()).loss();
        if self.estimate().loss().high >= before.value {
            self.history.restore(&self.before_congestion);
        }
    }

    fn decide(&mut self) {
        if self.manual {
            return;
        }
        let estimate = self.estimate();
        self.lossy = if self.lossy {
            !self.is_clean(&estimate)
        } else {
            !self.congested && self.is_lossy(&estimate)
        };
        if self.lossy {
            self.needed.follow(&estimate, &self.config);
        }
        self.apply();
    }

    fn is_lossy(&self, estimate: &Estimate) -> bool {
        let certain = estimate.loss_at(-ON_ERRORS) > self.config.threshold;
        certain && estimate.counts().bursts() >= ON_BURSTS
    }

    /// As if half a packet more had been lost, so that it takes a while to be sure.
    fn is_clean(&self, estimate: &Estimate) -> bool {
        let counts = estimate.counts();
        let loss = (counts.lost() as f64 + 0.5) / (counts.packets() as f64 + 1.0);
        loss < OFF * self.config.threshold
    }

    fn apply(&mut self) {
        let block = usize::from(self.config.block);
        if (1..=block).any(|k| self.rows(k) != self.overhead.rows(k)) {
            self.overhead = Overhead::from_fn(|k| match k.checked_sub(block) {
                None | Some(0) => self.rows(k),
                Some(_) => (k * self.rows(block)).div_ceil(block).min(self.rows_max(k)),
            });
            self.changed = true;
        }
    }

    /// The rows for `k` data packets, `block` at most.
    fn rows(&self, k: usize) -> usize {
        let rows = self.overhead.rows(k);
        if !self.lossy {
            return 0;
        }
        let wanted = self.needed.rows(k, rows).min(self.rows_max(k));
        if self.congested {
            wanted.min(rows)
        } else if self.hold_packets > 0 {
            wanted.max(rows)
        } else {
            wanted
        }
    }

    /// The most rows that are allowed for `k` data packets.
    fn rows_max(&self, k: usize) -> usize {
        // A share such as 0.7 is meant to allow 7 rows for 10 packets, whatever its last bit says.
        let share = (k as f64 * self.config.overhead_max + 1e-9).floor();
        (share as usize).min(SYMBOLS_MAX - k)
    }
}

/// How many rows blocks need, by their number of data packets less one, as real numbers.
#[derive(Clone, Debug)]
struct Needed {
    /// On the channel that fits best.
    by_fit: Box<[f64]>,
    /// On the worst channel that is plausible.
    by_caution: Box<[f64]>,
    /// Loss and burst of both channels.
    of: [f64; 4],
}

impl Needed {
    fn new(block: u8) -> Self {
        let none = vec![0.0; block.into()].into_boxed_slice();
        Self {
            by_fit: none.clone(),
            by_caution: none,
            of: [0.0; 4],
        }
    }

    /// Computed again if the channel has moved.
    fn follow(&mut self, estimate: &Estimate, config: &ControlConfig) {
        let errors = if estimate.is_bursty() {
            FIT_ERRORS
        } else {
            0.0
        };
        let fit = estimate.channel_at(errors);
        let cautious = estimate.channel_at(CAUTION_ERRORS);
        let of = [fit.loss(), fit.burst(), cautious.loss(), cautious.burst()];
        let same = |(new, old): (&f64, &f64)| (new - old).abs() <= SAME * old;
        if of.iter().zip(&self.of).all(same) {
            return;
        }
        self.of = of;
        let compute = |channel: &Channel, needed: &mut [f64]| {
            rows_needed_into(channel, config.depth, config.target, needed);
        };
        compute(&fit, &mut self.by_fit);
        compute(&cautious, &mut self.by_caution);
    }

    /// For `k` data packets, if so far there were `rows`.
    fn rows(&self, k: usize, rows: usize) -> usize {
        let (fit, cautious) = (self.by_fit[k - 1], self.by_caution[k - 1]);
        let flutter = FLUTTER_ROWS.max(FLUTTER_SHARE * fit);
        let wanted = |flutter: f64| {
            let spare = fit + SPARE_ROWS + flutter;
            spare.min((cautious + flutter).max(fit)).max(fit).ceil() as usize
        };
        rows.clamp(wanted(-flutter), wanted(flutter))
    }
}

fn in_range(
    name: &'static str,
    inside: bool,
    value: f64,
    accepted: &'static str,
) -> Result<(), ControlError> {
    if inside {
        return Ok(());
    }
    Err(ControlError::Range {
        name,
        value,
        accepted,
    })
}
