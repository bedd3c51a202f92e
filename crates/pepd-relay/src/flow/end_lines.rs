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

/// 7 kB/s, after a burst.
const PACE: Pace = Pace::new(Duration::from_millis(50), 200);
/// Places for hosts, which share one by chance.
const PLACES: usize = 256;

/// Lines on ended flows.
#[derive(Debug)]
pub struct EndLines {
    places: Box<[Mutex<Lines>]>,
    keys: RandomState,
    began: Instant,
}

impl Default for EndLines {
    fn default() -> Self {
        Self {
            places: (0..PLACES).map(|_| Mutex::new(Lines::new(PACE))).collect(),
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
        self.places[place].lock().next(now)
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn a_host_gets_twenty_lines_a_second_and_hides_nobody_elses() {
        let lines = EndLines::default();
        let host = |number: u32| Host::from_address(Ipv4Addr::from(number).into());
        let told = |host, count: u32| {
            let flows = (0..count).map(|flow| Duration::from_secs(10) * flow / count);
            flows.filter_map(|now| lines.next_at(host, now)).count()
        };
        assert!((390..=410).contains(&told(host(1), 10_000)));
        let others = (2..50).filter(|number| told(host(*number), 100) == 100);
        assert!(others.count() > 40);
    }
}
