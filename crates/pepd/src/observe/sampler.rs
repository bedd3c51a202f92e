//! Periodic samples of values that are not available at once, or are costly: rates, and held bytes.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use pepd_api::status::Held;
use pepd_relay::limits::descriptors;
use tokio::{
    task::spawn_blocking,
    time::{Instant, MissedTickBehavior, interval},
};

use super::{Observer, custody};

/// Sampling interval of bytes. Flows count their bytes once a second, so a rate over one second may
/// be 0, or twice the true one; rates are means over several intervals.
const EVERY: Duration = Duration::from_secs(1);
const LOOKS: usize = 5;
/// Number of intervals between queries of the kernel for the bytes held of each flow.
const HELD_EVERY: u32 = 10;

/// Bytes relayed by all sites at the last samples.
#[derive(Debug, Default)]
pub(super) struct RecentSamples(VecDeque<(Instant, Vec<[u64; 2]>)>);

impl RecentSamples {
    fn push(&mut self, now: Instant, bytes: Vec<[u64; 2]>) {
        self.0.push_back((now, bytes));
        if self.0.len() > LOOKS + 1 {
            self.0.pop_front();
        }
    }

    /// Returns the rates up and down, in bit/s, of the site at that index.
    pub(super) fn rates(&self, place: usize) -> [f64; 2] {
        let (Some((begin, first)), Some((end, last))) = (self.0.front(), self.0.back()) else {
            return [0.0; 2];
        };
        let seconds = end.duration_since(*begin).as_secs_f64();
        let (Some(first), Some(last)) = (first.get(place), last.get(place)) else {
            return [0.0; 2];
        };
        if seconds == 0.0 {
            return [0.0; 2];
        }
        [0, 1].map(|direction| {
            8.0 * last[direction].saturating_sub(first[direction]) as f64 / seconds
        })
    }
}

/// Held bytes by site, `None` for flows sent by peers; and the number of open descriptors.
#[derive(Debug, Default)]
pub(super) struct SlowSamples {
    held: HashMap<Option<String>, Held>,
    pub(super) descriptors: u64,
}

impl SlowSamples {
    /// Returns the held bytes of a site's flows, or of those sent by peers.
    pub(super) fn held_of(&self, site: Option<&str>) -> Held {
        let held = self.held.get(&site.map(ToOwned::to_owned));
        held.copied().unwrap_or_default()
    }

    fn take(observer: &Observer) -> Self {
        let held = custody::by_site(&observer.context.arena, &observer.config);
        let held = held.into_iter().map(|(name, site)| {
            let held = Held {
                memory: site.memory,
                disk: site.disk,
                kernel: site.kernel,
                oldest_s: site.oldest_s,
            };
            (name, held)
        });
        Self {
            held: held.collect(),
            descriptors: descriptors::open(),
        }
    }
}

/// Samples for as long as it is polled.
pub(super) async fn run(observer: Arc<Observer>) {
    let mut tick = interval(EVERY);
    // At whole seconds since the start, so that the history misses none.
    tick.set_missed_tick_behavior(MissedTickBehavior::Skip);
    for look in 0u32.. {
        tick.tick().await;
        let bytes = observer.bytes();
        observer.looks().push(Instant::now(), bytes);
        let status = observer.status();
        let row = observer.past().take(&status);
        observer.listeners.publish(&status, &row);
        if look.is_multiple_of(HELD_EVERY) {
            let asked = Arc::clone(&observer);
            // Queries the kernel for each socket, which must not delay other tasks.
            match spawn_blocking(move || SlowSamples::take(&asked)).await {
                Ok(slow) => *observer.slow() = slow,
                Err(err) => tracing::debug!(error = %err, "cannot determine held bytes"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_means_of_the_last_looks() {
        let mut looks = RecentSamples::default();
        assert_eq!(looks.rates(0), [0.0; 2]);
        let begin = Instant::now();
        looks.push(begin, vec![[1000, 0]]);
        assert_eq!(looks.rates(0), [0.0; 2]);
        // Up: 100 bytes a second, in steps of two seconds; down: nothing at first.
        for second in 1..=20u64 {
            let down = 50 * second.saturating_sub(10);
            let up = 1000 + 200 * (second / 2);
            looks.push(begin + Duration::from_secs(second), vec![[up, down]]);
            assert_eq!(looks.rates(1), [0.0; 2]);
            let [up, down] = looks.rates(0);
            assert!(
                (up - 800.0).abs() <= 800.0 / LOOKS as f64 + 1.0 || second < 5,
                "{up}"
            );
            assert!(second > 10 || down == 0.0);
        }
        assert!((looks.rates(0)[1] - 400.0).abs() < 1e-6);
    }
}
