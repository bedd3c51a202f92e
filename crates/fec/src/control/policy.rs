use super::{
    Counts, Estimate,
    history::{History, News},
};
use crate::{
    code::SYMBOLS_MAX,
    overhead::Overhead,
    theory::{Channel, rows_needed_into},
};

/// Target share of failed blocks where retransmission backs up the code, as for streams.
pub const TARGET_STREAMS: f64 = 1e-3;

/// Target share of failed blocks where nothing does, as for datagrams.
pub const TARGET_PACKETS: f64 = 1e-5;

/// Maximum margin above the estimate, in rows. As the number of rows is whole, half a row above the
/// need absorbs estimation errors by half a row to either side. Slightly less, as estimates after a
/// rise tend to be too high.
const SPARE_ROWS: f64 = 0.42;

/// Extra margin before the number of rows changes again: a minimum, and as a share of the rows.
const FLUTTER_ROWS: f64 = 0.1;
const FLUTTER_SHARE: f64 = 0.02;

/// Standard errors by which the fit counts as worse in bursts, where errors exceed half a row:
/// averaged over these, failure is more frequent than for the best fit.
const FIT_ERRORS: f64 = 0.5;

/// Standard errors by which the channel counts as worse than the best fit, if that asks for less
/// than [`SPARE_ROWS`] do.
const CAUTION_ERRORS: f64 = 2.5;

/// Standard errors by which loss must exceed the threshold before repair packets are sent: 95 %,
/// one-sided.
const ON_ERRORS: f64 = 1.645;

/// Minimum bursts before repair packets are sent; a single one is not sufficient.
const ON_BURSTS: u64 = 2;

/// Share of the threshold below which repair packets stop.
const OFF: f64 = 0.5;

/// Packets for which the rows stay after a fall of loss. A link that alternates within that time
/// gets the rows of its bad phases.
const HOLD_PACKETS: u64 = 1500;

/// Relative difference below which fitted channels count as the same.
const SAME: f64 = 0.01;

/// Configuration of a [`Control`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ControlConfig {
    /// Target share of failed blocks: [`TARGET_STREAMS`], [`TARGET_PACKETS`] or any other.
    pub target: f64,
    /// Maximum FEC overhead, as a share of data: never more than `k * overhead_max` rows for k data
    /// packets, rounded down. Short blocks get no rows if that is less than one.
    pub overhead_max: f64,
    /// Maximum block length in data packets. For a sliding window, that of
    /// [`block_of_window`](crate::theory::block_of_window).
    pub block: u8,
    /// Distance between the packets of a block, in packets: the depth of interleaving, 1 without.
    pub depth: usize,
    /// Loss rate above which repair packets are sent; they stop below half of it. A threshold as in
    /// ramakrishnan2000 (section 5.5): on a clean link FEC only costs.
    pub threshold: f64,
    /// Minimum number of packets remembered while the link does not change; the maximum is twice as
    /// many. 1,000 or more, and never fewer than 2 divided by the threshold, which it takes to see
    /// that loss is below half the threshold.
    pub memory: u64,
}

impl Default for ControlConfig {
    /// Streams in blocks of 20, at most as many repair packets as data packets, a threshold of 1 in
    /// 2,000. The memory of 65,536 packets holds 33 losses at the threshold.
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

/// A number of rows that the operator has set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Manual {
    /// Data packets, 1 or more.
    pub k: u8,
    /// Rows for these; in proportion for fewer or more.
    pub h: u8,
}

impl Manual {
    /// 2 rows for 50 packets, as in ramakrishnan2000.
    pub const LIGHT: Self = Self { k: 50, h: 2 };
    /// 6 rows for 20 packets, as in ramakrishnan2000.
    pub const STRONG: Self = Self { k: 20, h: 6 };
}

/// Invalid configuration.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum ControlError {
    /// A value out of range, with the name of its field.
    #[error("{name} is {value}; accepted: {accepted}")]
    Range {
        /// Field of [`ControlConfig`] or [`Manual`].
        name: &'static str,
        /// Value given.
        value: f64,
        /// Accepted values, in words.
        accepted: &'static str,
    },
}

/// State of a [`Control`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// The link is clean: no repair packets.
    Clean,
    /// Repair packets are sent, and blocks of full length meet the target.
    Met,
    /// The overhead is at its maximum, and blocks of full length do not meet the target: because of
    /// `overhead_max`, or as no block has more than 256 packets.
    Capped,
    /// More rows would be needed, but congestion keeps them from growing.
    Congested,
    /// The operator has set the rows.
    Manual,
}

/// Control of the FEC overhead of a link.
///
/// The overhead is zero until loss exceeds the [`threshold`](ControlConfig::threshold). Then, for
/// each number of data packets, it is the minimum number of rows with which the fitted channel
/// meets the target, plus a margin for the estimate's error. The margin is two and a half standard
/// errors, but never more than half a row above the need of the best fit. So with a good estimate,
/// and between 3 and 20 rows, it is the minimum number or one more.
///
/// The control follows a rise of loss as soon as that is certain, from 1 to 8 % within 100 to 500
/// packets. It follows a fall 1,500 packets after that is certain. Otherwise it averages over all
/// that is remembered ([`memory`](ControlConfig::memory)). While the caller reports congestion, the
/// overhead never grows, as more packets would make it worse. Losses of that time do not count as
/// the link's loss afterwards.
///
/// The model is Gilbert's channel, whose good phases lose nothing and whose bad phases lose
/// everything. A link may alternate, every some hundred packets, between a little loss and much.
/// Each phase then counts as a change of the link, and repair packets come too late in the bad
/// ones: interleaving helps.
///
/// A packet costs 0.1 to 0.2 us. For every 64 packets, up to 64 possible places of a change are
/// tested, with a dozen logarithms each. If the fitted channel has moved by more than 1 %, two
/// passes of [`rows_needed`](crate::theory::rows_needed) over blocks of up to
/// [`block`](ControlConfig::block) packets follow. Memory is bounded: 64 counts, and two numbers
/// for each length of blocks.
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
///     assert_eq!(control.overhead().rows(20), rows, "{lost} of {packets} lost");
///     assert_eq!(control.standing(), standing);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Control {
    config: ControlConfig,
    history: History,
    /// History as of the start of the congestion.
    before_congestion: History,
    congested: bool,
    lossy: bool,
    needed: Needed,
    overhead: Overhead,
    changed: bool,
    manual: bool,
    /// Number of packets for which the rows do not decrease.
    hold_packets: u64,
}

impl Control {
    /// Returns a control without knowledge of the link, which sends no repair packets.
    ///
    /// # Errors
    ///
    /// If a value is invalid: a target or a threshold that is not between 0 and 1, an overhead that
    /// is negative or not a number, an empty block, a depth of zero, or a memory of less than 1,000
    /// packets.
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

    /// Returns a control with a manual overhead; loss is measured and estimated nevertheless.
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

    /// Adds the counts of the packets sent next.
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

    /// Sets whether loss looks like congestion from now on.
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

    /// Current overhead.
    #[must_use]
    pub fn overhead(&self) -> &Overhead {
        &self.overhead
    }

    /// Current overhead, if it has changed since the last call.
    pub fn poll_overhead(&mut self) -> Option<&Overhead> {
        std::mem::take(&mut self.changed).then_some(&self.overhead)
    }

    /// Current estimate of the link's loss.
    #[must_use]
    pub fn estimate(&self) -> Estimate {
        Estimate::new(self.history.total())
    }

    /// Estimate of the link's own loss: from before the present congestion, if any.
    #[must_use]
    pub fn link_estimate(&self) -> Estimate {
        match self.congested {
            true => Estimate::new(self.before_congestion.total()),
            false => self.estimate(),
        }
    }

    /// Current state.
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

    /// Drops the losses during congestion, which do not characterise the link, unless they were
    /// significantly fewer than before.
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

    /// Counts half a lost packet more, so that certainty takes a while.
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

    /// Rows for `k` data packets, at most `block`.
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

    /// Maximum number of rows for `k` data packets.
    fn rows_max(&self, k: usize) -> usize {
        // A share such as 0.7 allows 7 rows for 10 packets, whatever its last bit.
        let share = (k as f64 * self.config.overhead_max + 1e-9).floor();
        (share as usize).min(SYMBOLS_MAX - k)
    }
}

/// Rows that blocks need, by their number of data packets less one, as real numbers.
#[derive(Clone, Debug)]
struct Needed {
    /// On the channel that fits best.
    by_fit: Box<[f64]>,
    /// On the worst plausible channel.
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

    /// Computes again if the channel has moved.
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

    /// Rows for `k` data packets, if `rows` were used so far.
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
