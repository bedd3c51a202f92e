//! Measurements of a running pepd over the last hours.
//!
//! Values per second are kept for [`FINE`], and values per ten seconds for [`COARSE`]. Seconds
//! without a sample are missing; a gap is not a zero. Times are seconds since an arbitrary moment,
//! and never decrease.
//!
//! Memory is bounded by about 250 kB: 2,042 bins of 120 bytes, and [`OUTAGES_MAX`] outages of 24
//! bytes.

use std::{collections::VecDeque, time::Duration};

/// Retention of values per second.
pub const FINE: Duration = Duration::from_secs(10 * 60);
/// Retention of values per ten seconds, and of outages.
pub const COARSE: Duration = Duration::from_secs(4 * 3600);
/// Lengths of bins in seconds.
pub const STEPS: [u64; 2] = [1, 10];
/// Maximum number of outages kept. Older ones of a link with frequent short outages are counted
/// when dropped.
pub const OUTAGES_MAX: usize = 500;

/// Aggregation of several values of one column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fold {
    /// Mean.
    Mean,
    /// Maximum.
    Max,
    /// Sum.
    Sum,
}

/// Columns in storage order, with their aggregation.
///
/// With several peers, `loss`, `fec_overhead` and `rtt_s` are the values of the peer with most
/// traffic; `packets` and `resent` are sums.
pub const COLUMNS: [(&str, Fold); 11] = [
    ("up_rate", Fold::Mean),
    ("down_rate", Fold::Mean),
    ("flows", Fold::Max),
    ("link_up", Fold::Mean),
    ("loss", Fold::Max),
    ("fec_overhead", Fold::Max),
    ("packets", Fold::Sum),
    ("retransmitted", Fold::Sum),
    ("custody_memory", Fold::Max),
    ("custody_disk", Fold::Max),
    ("rtt_s", Fold::Mean),
];

/// Values of one moment, in the order of [`COLUMNS`]; `None` where there is no measurement.
pub type Sample = [Option<f64>; COLUMNS.len()];

/// Aggregated samples of one span.
#[derive(Debug, Clone, Copy)]
struct Bin {
    /// Number of the span.
    span: u64,
    /// Number of values by column.
    counts: [u16; COLUMNS.len()],
    /// Sums or maxima by column.
    values: [f64; COLUMNS.len()],
}

impl Bin {
    fn add(&mut self, sample: &Sample) {
        for (column, value) in sample.iter().enumerate() {
            let Some(value) = value.filter(|value| value.is_finite()) else {
                continue;
            };
            let (kept, count) = (&mut self.values[column], &mut self.counts[column]);
            *kept = match COLUMNS[column].1 {
                Fold::Max if *count > 0 => kept.max(value),
                Fold::Max => value,
                Fold::Mean | Fold::Sum => *kept + value,
            };
            *count = count.saturating_add(1);
        }
    }

    fn sample(&self) -> Sample {
        let mut sample = [None; COLUMNS.len()];
        for (column, value) in sample.iter_mut().enumerate() {
            let (kept, count) = (self.values[column], self.counts[column]);
            *value = match COLUMNS[column].1 {
                _ if count == 0 => None,
                Fold::Mean => Some(kept / f64::from(count)),
                Fold::Max | Fold::Sum => Some(kept),
            };
        }
        sample
    }
}

/// Bins of one length.
#[derive(Debug)]
struct Series {
    step: u64,
    kept: u64,
    bins: VecDeque<Bin>,
}

impl Series {
    fn new(step: u64, kept: Duration) -> Self {
        Self {
            step,
            kept: kept.as_secs() / step,
            bins: VecDeque::new(),
        }
    }

    fn add(&mut self, now: u64, sample: &Sample) {
        let last = self.bins.back().map_or(0, |bin| bin.span);
        let span = (now / self.step).max(last);
        if self.bins.back().is_none_or(|bin| bin.span != span) {
            self.bins.push_back(Bin {
                span,
                counts: [0; COLUMNS.len()],
                values: [0.0; COLUMNS.len()],
            });
        }
        let bin = self.bins.back_mut();
        bin.expect("the last bin").add(sample);
        let is_old = |bin: &Bin| span - bin.span >= self.kept;
        while self.bins.front().is_some_and(is_old) {
            self.bins.pop_front();
        }
    }
}

/// An outage of the link. Start in seconds of Unix time, duration in seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Outage {
    /// Start.
    pub began: f64,
    /// Duration; `None` while it lasts.
    pub lasted: Option<f64>,
}

/// Samples and outages of the last hours.
#[derive(Debug)]
pub struct History {
    series: [Series; 2],
    outages: VecDeque<Outage>,
    forgotten: u64,
}

impl Default for History {
    fn default() -> Self {
        Self {
            series: [Series::new(STEPS[0], FINE), Series::new(STEPS[1], COARSE)],
            outages: VecDeque::new(),
            forgotten: 0,
        }
    }
}

impl History {
    /// Records a sample of second `now`. A sample older than the last one counts for the second of
    /// the last one.
    pub fn on_sample(&mut self, now: u64, sample: &Sample) {
        for series in &mut self.series {
            series.add(now, sample);
        }
    }

    /// Updates outages from those known at `now`, the latest last: adds new ones, and closes one
    /// that has ended. Drops those that ended longer ago than [`COARSE`].
    pub fn on_outages(&mut self, now: f64, known: impl IntoIterator<Item = Outage>) {
        let begin = now - COARSE.as_secs_f64();
        let is_old = |outage: &Outage| {
            let end = outage.lasted.map(|lasted| outage.began + lasted);
            end.is_some_and(|end| end < begin)
        };
        for outage in known.into_iter().filter(|outage| !is_old(outage)) {
            let mut kept = self.outages.iter_mut().rev();
            // Compared to the millisecond. When Unix time is set meanwhile, starts differ.
            match kept.find(|kept| (kept.began - outage.began).abs() < 1e-3) {
                Some(kept) => kept.lasted = outage.lasted,
                None => self.outages.push_back(outage),
            }
        }
        self.outages.retain(|outage| !is_old(outage));
        while self.outages.len() > OUTAGES_MAX {
            self.outages.pop_front();
            self.forgotten += 1;
        }
    }

    /// Returns start and values of each span of [`STEPS`] `which` that ends after `since`.
    ///
    /// # Panics
    /// When [`STEPS`] has no such entry.
    pub fn spans(&self, which: usize, since: u64) -> impl Iterator<Item = (u64, Sample)> {
        let series = &self.series[which];
        let bins = series.bins.iter();
        let bins = bins.map(|bin| (bin.span * series.step, bin.sample()));
        bins.filter(move |(begin, _)| begin + series.step > since)
    }

    /// Outages, the latest last.
    pub fn outages(&self) -> impl Iterator<Item = &Outage> {
        self.outages.iter()
    }

    /// Number of outages of the last hours that were dropped to make room.
    pub fn forgotten(&self) -> u64 {
        self.forgotten
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    /// Reference: keeps all samples, and aggregates on request.
    fn naive(all: &[(u64, Sample)], step: u64, kept: Duration) -> Vec<(u64, Sample)> {
        let mut spans: BTreeMap<u64, Vec<Sample>> = BTreeMap::new();
        for (at, sample) in all {
            spans.entry(at / step).or_default().push(*sample);
        }
        let last = spans.keys().last().copied().unwrap_or(0);
        spans.retain(|span, _| last - span < kept.as_secs() / step);
        let fold = |samples: &[Sample], column: usize| {
            let values: Vec<_> = samples.iter().filter_map(|sample| sample[column]).collect();
            let sum: f64 = values.iter().sum();
            let maximum = values.iter().copied().reduce(f64::max)?;
            Some(match COLUMNS[column].1 {
                Fold::Mean => sum / values.len() as f64,
                Fold::Max => maximum,
                Fold::Sum => sum,
            })
        };
        let spans = spans.iter().map(|(span, samples)| {
            let sample = std::array::from_fn(|column| fold(samples, column));
            (span * step, sample)
        });
        spans.collect()
    }

    fn samples() -> impl Strategy<Value = Vec<(u64, Sample)>> {
        let pause = prop_oneof![20 => 0..3u64, 2 => 3..100u64, 1 => 100..9_000u64];
        let value = prop::option::weighted(0.8, (0..1_000_000u32).prop_map(f64::from));
        let sample = prop::array::uniform11(value);
        prop::collection::vec((pause, sample), 0..400).prop_map(|steps| {
            let mut now = 0;
            let steps = steps.into_iter().map(|(pause, sample)| {
                now += pause;
                (now, sample)
            });
            steps.collect()
        })
    }

    proptest! {
        #[test]
        fn it_is_as_a_model_that_forgets_nothing_has_it(all in samples(), since in 0..20_000u64) {
            let mut history = History::default();
            for (at, sample) in &all {
                history.on_sample(*at, sample);
            }
            for (which, kept) in [FINE, COARSE].into_iter().enumerate() {
                let mut expected = naive(&all, STEPS[which], kept);
                expected.retain(|(begin, _)| begin + STEPS[which] > since);
                let reported: Vec<_> = history.spans(which, since).collect();
                prop_assert_eq!(reported, expected);
            }
        }
    }

    #[test]
    fn it_does_not_grow_without_bound() {
        let mut history = History::default();
        for now in 0..100_000 {
            history.on_sample(now, &[Some(1.0); COLUMNS.len()]);
        }
        let kept = [0, 1].map(|which| history.spans(which, 0).count());
        assert_eq!(kept, [600, 1440]);
    }

    #[test]
    fn outages_are_opened_closed_and_forgotten() {
        let mut history = History::default();
        let outage = |began, lasted| Outage { began, lasted };
        history.on_outages(10.0, [outage(9.0, None)]);
        history.on_outages(20.0, [outage(9.0, Some(2.5)), outage(19.0, None)]);
        let reported: Vec<_> = history.outages().copied().collect();
        assert_eq!(reported, [outage(9.0, Some(2.5)), outage(19.0, None)]);
        // An outage that lasts never expires.
        history.on_outages(50_000.0, []);
        let reported: Vec<_> = history.outages().copied().collect();
        assert_eq!(reported, [outage(19.0, None)]);
        assert_eq!(history.forgotten(), 0);
        for began in 0..OUTAGES_MAX as u32 {
            let began = 50_000.0 + f64::from(began);
            history.on_outages(began, [outage(began, Some(0.5))]);
        }
        assert_eq!(history.outages().count(), OUTAGES_MAX);
        assert_eq!(history.forgotten(), 1);
    }
}
