//! Pace of the log lines on ended flows, by host: a host's short connections must not fill the
//! disk, or hide the lines on others.

use std::{
    hash::{BuildHasher as _, RandomState},
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use pep_core::{
    hosts::Host,
    pace::{Line, Lines, Pace},
};

/// Pace of a host: 7 kB/s, after a burst.
const PACE: Pace = Pace::new(Duration::from_millis(50), 200);
/// Pace of all hosts together: 35 kB/s, after a burst of 0.7 MB. Addresses can be forged.
const TOTAL: Pace = Pace::new(Duration::from_millis(10), 2000);
/// Places for hosts, which share one by chance.
const PLACES: usize = 256;

/// Lines on ended flows.
#[derive(Debug)]
pub struct EndLines {
    places: Box<[Mutex<Lines>]>,
    total: Mutex<Pace>,
    keys: RandomState,
    began: Instant,
}

impl Default for EndLines {
    fn default() -> Self {
        Self {
            places: (0..PLACES).map(|_| Mutex::new(Lines::new(PACE))).collect(),
            total: Mutex::new(TOTAL),
            keys: RandomState::new(),
            began: Instant::now(),
        }
    }
}

/// Returns whether the log has a line for each flow, whatever their number: at level `debug`.
pub fn tells_all() -> bool {
    tracing::enabled!(tracing::Level::DEBUG)
}

impl EndLines {
    /// Permits a line on a flow of this host, or counts it as left out. At level `debug` all lines
    /// are permitted.
    pub(super) fn next(&self, host: Host) -> Option<Line> {
        if tells_all() {
            return Some(Line { left_out: None });
        }
        self.next_at(host, self.began.elapsed())
    }

    fn next_at(&self, host: Host, now: Duration) -> Option<Line> {
        let place = self.keys.hash_one(host) as usize % PLACES;
        let mut lines = self.places[place].lock();
        lines.next_within(now, &mut self.total.lock())
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn all_hosts_together_get_a_hundred_lines_a_second() {
        let lines = EndLines::default();
        let flows = (0..100_000_u32).filter(|flow| {
            let host = Host::from_address(Ipv4Addr::from(flow % 1000).into());
            let now = Duration::from_secs(10) * *flow / 100_000;
            lines.next_at(host, now).is_some()
        });
        assert!((2990..=3001).contains(&flows.count()));
    }

    #[test]
    fn a_host_gets_twenty_lines_a_second_and_hides_nobody_elses() {
        let lines = EndLines::default();
        let host = |number: u32| Host::from_address(Ipv4Addr::from(number).into());
        let mut told = [0; 51];
        for step in 0..10_000_u32 {
            let now = Duration::from_millis(step.into());
            // Beside it, 50 hosts with ten flows each.
            let other = (step % 20 == 0).then_some(1 + step / 20 % 50);
            for number in [Some(0), other].into_iter().flatten() {
                told[number as usize] += u32::from(lines.next_at(host(number), now).is_some());
            }
        }
        assert!((390..=410).contains(&told[0]), "{told:?}");
        let others = told[1..].iter().filter(|told| **told == 10);
        assert!(others.count() > 40, "{told:?}");
    }
}
