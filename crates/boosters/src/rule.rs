//! Rule of a booster: it is switched on when all conditions have held for long enough, and off when
//! one has been below half its value for as long.

use std::time::Duration;

pub use pep_core::site::boost::{Rule, When};

/// Known properties of the path to the peer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Path {
    /// Share of sent packets that the link loses, 0 to 1, without congestion losses.
    pub loss: f64,
    /// Counts for sent packets since the session began: expected by the peer, lost of these, loss
    /// bursts.
    pub counts: [u64; 3],
    /// Sent packets lost to congestion since the session began, by estimate.
    pub congested: u64,
    /// Rate of the forward path, in bit/s.
    pub rate: u64,
    /// Rate of the peer's path to this end; `None` if unknown.
    pub peer_rate: Option<u64>,
    /// Round trip time, or [`RTT_UNKNOWN`](Self::RTT_UNKNOWN).
    pub rtt: Duration,
    /// Current waiting time in the queue.
    pub queue: Duration,
    /// Maximum message length of the link, in bytes.
    pub room: usize,
    /// Abilities of the peer, if it has announced any ([`crate::wire::Abilities`]).
    pub abilities: u32,
}

impl Default for Path {
    fn default() -> Self {
        Self {
            loss: 0.0,
            counts: [0; 3],
            congested: 0,
            rate: 0,
            peer_rate: None,
            rtt: Duration::from_millis(100),
            queue: Duration::ZERO,
            room: 1300,
            abilities: 0,
        }
    }
}

/// Ratio of the lengths on the link of a full data packet and of an acknowledgement, both with
/// tunnel headers (52 bytes, plus some 53).
const PACKET_RATIO: f64 = 1500.0 / 105.0;

impl Path {
    /// The round trip time where it is unknown. Boosters then take their own minimum, or measure.
    pub const RTT_UNKNOWN: Duration = Duration::ZERO;

    /// Returns the normalised asymmetry k of the forward path, which carries the acknowledgements:
    /// the ratio of the rates divided by the ratio of packet lengths (ramakrishnan2000 §4.1). Above
    /// 1, acknowledgements for each packet do not fit. `None` if a rate is unknown.
    #[must_use]
    pub fn asymmetry(&self) -> Option<f64> {
        let peer = self.peer_rate.filter(|_| self.rate > 0)?;
        Some(peer as f64 / self.rate as f64 / PACKET_RATIO)
    }
}

/// Returns the lowest ratio of a value to its limit, over all conditions: at 1 all are just met. 0
/// without conditions.
fn excess(rule: &Rule, path: &Path) -> f64 {
    let over = |value: f64, limit: f64| {
        if limit > 0.0 {
            value / limit
        } else if value > 0.0 {
            f64::INFINITY
        } else {
            0.0
        }
    };
    let loss = rule.loss_above.map(|limit| over(path.loss, limit.get()));
    let asymmetry = rule
        .asymmetry_above
        .map(|limit| over(path.asymmetry().unwrap_or(0.0), limit));
    let queue = rule
        .queue_above
        .map(|limit| over(path.queue.as_secs_f64(), limit.as_secs_f64()));
    let all = [loss, asymmetry, queue].into_iter().flatten();
    all.reduce(f64::min).unwrap_or(0.0)
}

/// State of a rule.
#[derive(Clone, Copy, Debug)]
pub struct Switch {
    rule: Rule,
    on: bool,
    /// Time since when the path has called for the other state.
    against: Option<Duration>,
    /// Number of times it was switched on.
    pub switched_on: u64,
}

impl Switch {
    /// Creates the switch: off, unless the rule is always on.
    #[must_use]
    pub fn new(rule: Rule) -> Self {
        Self {
            rule,
            on: rule.when == When::Always,
            against: None,
            switched_on: 0,
        }
    }

    /// Returns whether it is on.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.on
    }

    /// Updates the switch for the current path.
    pub fn update(&mut self, now: Duration, path: &Path) {
        if self.rule.when != When::Rule {
            return;
        }
        let excess = excess(&self.rule, path);
        let other = if self.on { excess < 0.5 } else { excess > 1.0 };
        if !other {
            self.against = None;
            return;
        }
        let since = *self.against.get_or_insert(now);
        if now.saturating_sub(since) >= self.rule.after {
            self.on = !self.on;
            self.against = None;
            self.switched_on += u64::from(self.on);
        }
    }
}

#[cfg(test)]
mod tests {
    use units::Ratio;

    use super::*;

    /// Conditions without a holding time.
    const AT_ONCE: Rule = Rule {
        after: Duration::ZERO,
        ..Rule::ALWAYS
    };

    #[test]
    fn a_rule_waits_and_does_not_flutter() {
        let rule = Rule {
            when: When::Rule,
            loss_above: Ratio::new(0.01),
            after: Duration::from_secs(2),
            ..AT_ONCE
        };
        let mut switch = Switch::new(rule);
        let mut at = |second: u64, loss: f64| {
            let path = Path {
                loss,
                ..Path::default()
            };
            switch.update(Duration::from_secs(second), &path);
            switch.is_on()
        };
        assert!(!at(0, 0.02));
        assert!(!at(1, 0.02));
        assert!(at(2, 0.02));
        assert!(at(3, 0.008));
        assert!(at(9, 0.008), "not below half");
        assert!(at(10, 0.001));
        assert!(at(11, 0.02), "the holding time restarts");
        assert!(at(12, 0.001));
        assert!(!at(14, 0.001));
    }

    #[test]
    fn all_conditions_have_to_hold_and_what_is_not_known_does_not() {
        let ms = Duration::from_millis;
        let slow = |rate, peer_rate| Path {
            rate,
            peer_rate,
            ..Path::default()
        };
        let waits = |queue| Path {
            queue,
            ..Path::default()
        };
        let both = Rule {
            queue_above: Some(ms(50)),
            loss_above: Ratio::new(0.01),
            ..AT_ONCE
        };
        let asymmetry = Rule {
            asymmetry_above: Some(4.0),
            ..AT_ONCE
        };
        let queue = Rule {
            queue_above: Some(ms(50)),
            ..AT_ONCE
        };
        let any_loss = Rule {
            loss_above: Ratio::new(0.0),
            ..AT_ONCE
        };
        let cases = [
            (asymmetry, slow(100_000, Some(10_000_000)), true),
            (asymmetry, slow(1_000_000, Some(10_000_000)), false),
            (asymmetry, slow(0, Some(10_000_000)), false),
            (asymmetry, slow(100_000, None), false),
            (queue, waits(ms(60)), true),
            (queue, waits(ms(50)), false),
            (both, waits(ms(60)), false),
            (
                both,
                Path {
                    loss: 0.02,
                    ..waits(ms(60))
                },
                true,
            ),
            (
                both,
                Path {
                    loss: 0.02,
                    ..waits(ms(0))
                },
                false,
            ),
            (any_loss, Path::default(), false),
            (
                any_loss,
                Path {
                    loss: 1e-9,
                    ..Path::default()
                },
                true,
            ),
            (
                AT_ONCE,
                Path {
                    loss: 1.0,
                    ..waits(ms(60))
                },
                false,
            ),
        ];
        for (number, (rule, path, expected)) in cases.into_iter().enumerate() {
            let mut switch = Switch::new(Rule {
                when: When::Rule,
                ..rule
            });
            switch.update(ms(0), &path);
            assert_eq!(switch.is_on(), expected, "case {number}");
            assert_eq!(switch.switched_on, u64::from(expected), "case {number}");
        }
    }

    #[test]
    fn acknowledgements_for_each_packet_fit_up_to_the_ratio_of_lengths() {
        let path = |rate| Path {
            rate,
            peer_rate: Some(10_000_000),
            ..Path::default()
        };
        assert!(path(1_000_000).asymmetry().unwrap() < 1.0);
        // With tunnel headers, ACKs of 960 kbit/s do not fit in 56 kbit/s; without they would.
        assert!(path(10_000_000 / 17).asymmetry().unwrap() > 1.0);
        assert!(path(100_000).asymmetry().unwrap() > 6.0);
        assert_eq!(path(0).asymmetry(), None);
    }
}
