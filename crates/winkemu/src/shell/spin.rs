//! Budget for spinning before deadlines.

use crate::link::Nanos;

/// Time before a deadline at which the loop starts to spin. Sleeping misses a deadline by 57 us at
/// the median on a machine with ordinary timers.
const SPIN_NS: Nanos = 60_000;

/// Inverse of the maximum share of time spent spinning at ordinary priority.
const SHARE: Nanos = 20;

/// Maximum credit: a train of 40 packets after a silence.
const CREDIT_NS_MAX: Nanos = 40 * SPIN_NS;

/// Share of the time that may be spent spinning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Spin {
    /// None: the CPUs are for other programs.
    Never,
    /// A share of 1 / [`SHARE`] of the run.
    Sometimes,
    /// Before every deadline.
    Always,
}

/// Budget of spinning time.
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

    /// Time before the next deadline at which to start spinning; 0 when the budget is spent.
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

    /// Charges the time spent spinning.
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
