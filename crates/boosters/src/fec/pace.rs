//! Estimate at the receiver of how soon FEC restores a loss.

/// Repair packets within which a restorable packet is nearly always restored: one more than a
/// single loss takes, for losses of repair packets and of others nearby.
const REPAIRS: f64 = 4.0;
/// Estimate before any repair packet has come.
const UNKNOWN: u16 = 32;
/// Maximum: neither blocks nor window spans are longer.
const MOST: f64 = 2048.0;
/// Weight of a new run in the means.
const SHARE: f64 = 0.125;

/// Counts data packets between runs of repair packets: a window sends single repair packets, a
/// block sends all of its own at its end.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// Data packets since the last run began, and repair packets in it.
    data: f64,
    repairs: f64,
    /// True if the last packet was a repair packet.
    is_run: bool,
    /// Means over the runs, once there has been one.
    mean: Option<(f64, f64)>,
}

impl Pace {
    pub(super) fn on_data(&mut self) {
        self.data += 1.0;
        self.is_run = false;
    }

    pub(super) fn on_repair(&mut self) {
        if !self.is_run && self.repairs > 0.0 {
            let (data, repairs) = self.mean.unwrap_or((self.data, self.repairs));
            let toward = |mean: f64, new: f64| mean + (new - mean) * SHARE;
            self.mean = Some((toward(data, self.data), toward(repairs, self.repairs)));
        }
        if !self.is_run {
            (self.data, self.repairs) = (0.0, 0.0);
        }
        self.is_run = true;
        self.repairs += 1.0;
    }

    /// Returns the number of packets within which a lost one is restored, if it can be.
    pub(super) fn packets(&self) -> u16 {
        let Some((data, repairs)) = self.mean else {
            return UNKNOWN;
        };
        let runs = (REPAIRS / repairs.max(1.0)).max(1.0);
        (data * runs).ceil().clamp(1.0, MOST) as u16
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_four_repair_packets_or_a_block() {
        for (data, repairs, packets) in [(20, 1, 80), (2, 1, 8), (20, 6, 20), (160, 48, 160)] {
            let mut pace = Pace::default();
            assert_eq!(pace.packets(), UNKNOWN);
            for _ in 0..50 {
                (0..data).for_each(|_| pace.on_data());
                (0..repairs).for_each(|_| pace.on_repair());
            }
            assert_eq!(pace.packets(), packets);
        }
        let mut pace = Pace::default();
        for _ in 0..3 {
            (0..100_000).for_each(|_| pace.on_data());
            pace.on_repair();
        }
        assert_eq!(pace.packets(), MOST as u16);
    }
}
