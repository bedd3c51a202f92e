//! How long the loop may stay awake to be on time.

use crate::link::Nanos;

/// How long before a deadline the loop stops sleeping. Sleeping misses by 57 us at the median
/// on a machine with ordinary timers.
const SPIN_NS: Nanos = 60_000;

/// At ordinary priority, at most one part in so many of the time is spent awake.
const SHARE: Nanos = 20;

/// Enough for a train of 40 packets after a silence.
const CREDIT_NS_MAX: Nanos = 40 * SPIN_NS;

/// How much of the time may be spent awake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Spin {
    /// Nothing: processors are for others.
    Never,
    /// One part in so many of the run.
    Sometimes,
    /// Before every deadline.
    Always,
}

/// The time that may be spent awake.
#[derive(Debug)]
pub(super) struct SpinBudget {
    spin: Spin,
    credit: Nanos,
    seen: Nanos,
}

impl SpinBudget {
    pub(super) fn new(spin: Spin) -> Self {
        Self {
            spin,
            credit: CREDIT_NS_MAX,
            seen: 0,
        }
    }

    /// How long before the next deadline to stop sleeping; 0 when there is no time to spend.
    pub(super) fn allowance(&mut self, now: Nanos) -> Nanos {
        let earned = now.saturating_sub(self.seen) / SHARE;
        self.credit = (self.credit + earned).min(CREDIT_NS_MAX);
        self.seen = now;
        match self.spin {
            Spin::Always => SPIN_NS,
            Spin::Sometimes if self.credit >= SPIN_NS => SPIN_NS,
            Spin::Sometimes | Spin::Never => 0,
        }
    }

    /// So much has been spent.
    pub(super) fn spend(&mut self, awake: Nanos) {
        self.credit = self.credit.saturating_sub(awake);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_twentieth_of_the_time_may_be_spent_awake() {
        let mut budget = SpinBudget::new(Spin::Sometimes);
        let mut spent = 0;
        // A deadline every 100 us for a second.
        for k in 0..10_000 {
            let allowance = budget.allowance(k * 100_000);
            budget.spend(allowance);
            spent += allowance;
        }
        assert!(spent <= 50_000_000 + CREDIT_NS_MAX, "{spent}");
        assert!(spent >= 49_000_000, "{spent}");
    }

    #[test]
    fn rare_deadlines_are_all_met_awake() {
        let mut budget = SpinBudget::new(Spin::Sometimes);
        for k in 0..1000 {
            assert_eq!(budget.allowance(k * 2_000_000), SPIN_NS);
            budget.spend(SPIN_NS);
        }
    }

    #[test]
    fn many_links_at_once_spend_nothing() {
        let mut budget = SpinBudget::new(Spin::Never);
        assert_eq!(budget.allowance(1_000_000_000), 0);
    }

    #[test]
    fn real_time_spends_without_end() {
        let mut budget = SpinBudget::new(Spin::Always);
        for _ in 0..1000 {
            assert_eq!(budget.allowance(0), SPIN_NS);
            budget.spend(SPIN_NS);
        }
    }
}
