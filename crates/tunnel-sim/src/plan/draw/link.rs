//! Random links.

use std::{fmt::Write, time::Duration};

use super::Scope;
use crate::rng::Rng;

/// Drawn properties of the link that other choices depend on.
pub(super) struct Link {
    pub options: String,
    pub only: [String; 2],
    pub rate: u64,
    /// Rate from end 1 to end 0.
    pub back: u64,
    pub delay: Duration,
    pub quiet_from: Duration,
    /// Approximate lower bound of the share of packets that get through.
    pub through: f64,
}

impl Link {
    pub fn draw(rng: &mut Rng, scope: &Scope) -> Self {
        let rate = rng.sized(scope.rate_min, 100_000_000);
        let delay_max = scope.delay_max.as_secs_f64() * 1000.0;
        let delay = Duration::from_micros((rng.scale(0.1, delay_max) * 1000.0) as u64);
        let mut link = Self {
            options: format!("rate={rate},delay={}us", delay.as_micros()),
            only: [String::new(), String::new()],
            rate,
            back: rate,
            delay,
            quiet_from: Duration::ZERO,
            through: 1.0,
        };
        link.queue(rng);
        link.loss(rng);
        link.disorder(rng);
        link.outages(rng);
        link
    }

    fn queue(&mut self, rng: &mut Rng) {
        let queue = rng.one(&["100%bdp", "100%bdp", "20p", "400%bdp", "1MB", "5p"]);
        let _ = write!(self.options, ",queue={queue}");
        if rng.happens(0.1) {
            self.options.push_str(",aqm=codel");
        } else if rng.happens(0.1) {
            self.options.push_str(",aqm=head");
        }
        // A much slower return path, as over satellites.
        if rng.happens(0.1) {
            self.back = (self.rate / rng.between(2, 50)).max(20_000);
            let _ = write!(self.only[1], "rate={}", self.back);
        }
    }

    fn loss(&mut self, rng: &mut Rng) {
        let loss = match rng.between(0, 9) {
            0..=3 => return,
            4..=7 => rng.scale(0.001, 0.1),
            _ => rng.scale(0.1, 0.4),
        };
        self.through *= (1.0 - loss) * (1.0 - loss);
        let place = match rng.between(0, 4) {
            0 => &mut self.only[0],
            1 => &mut self.only[1],
            _ => &mut self.options,
        };
        let comma = if place.is_empty() { "" } else { "," };
        let _ = match rng.between(0, 3) {
            0 => {
                let burst = rng.scale(1.5, 20.0);
                let to_bad = (loss / (1.0 - loss) / burst).min(1.0);
                write!(place, "{comma}gilbert={to_bad:.6},{:.6}", 1.0 / burst)
            }
            1 => write!(place, "{comma}ber={:.9}", loss / 12_000.0),
            _ => write!(place, "{comma}loss={loss:.6}"),
        };
    }

    fn disorder(&mut self, rng: &mut Rng) {
        if rng.happens(0.3) {
            let jitter = self.delay.mul_f64(rng.scale(0.01, 2.0)) + Duration::from_micros(10);
            let _ = write!(self.options, ",jitter={}us", jitter.as_micros());
            if rng.happens(0.7) {
                self.options.push_str(",reorder=true");
            }
        }
        if rng.happens(0.2) {
            let _ = write!(self.options, ",duplicate={:.4}", rng.scale(0.001, 0.5));
        }
        if rng.happens(0.2) {
            let corrupt = rng.scale(0.001, 0.2);
            self.through *= (1.0 - corrupt) * (1.0 - corrupt);
            let _ = write!(self.options, ",corrupt={corrupt:.4}");
        }
    }

    fn outages(&mut self, rng: &mut Rng) {
        match rng.between(0, 9) {
            0..=4 => {}
            5..=6 => self.spans(rng),
            7 => {
                let p = rng.one(&[0.1, 0.2, 0.4, 0.8]);
                let interval = rng.one(&[1_u64, 10, 40, 100, 260]);
                self.through *= 1.0 - p;
                // Data larger than one up period needs two of them in a row.
                if Duration::from_millis(interval) < 4 * self.delay {
                    self.through *= 1.0 - p;
                }
                let _ = write!(self.options, ",wink=p={p},i={interval}ms");
            }
            8 => {
                self.spans(rng);
                let held = rng.one(&["queued=hold", "in-flight=drop", "in-flight=hold"]);
                let _ = write!(self.options, ",{held}");
            }
            _ => self.one_way(rng),
        }
    }

    fn spans(&mut self, rng: &mut Rng) {
        let (text, end) = spans(rng);
        let _ = write!(self.options, ",outages={text}");
        self.quiet_from = end;
    }

    fn one_way(&mut self, rng: &mut Rng) {
        let (text, end) = spans(rng);
        let which = rng.between(0, 1) as usize;
        let comma = if self.only[which].is_empty() { "" } else { "," };
        let _ = write!(self.only[which], "{comma}outages={text}");
        self.quiet_from = end;
    }
}

fn spans(rng: &mut Rng) -> (String, Duration) {
    let (mut text, mut end) = (String::new(), 0);
    for i in 0..rng.between(1, 3) {
        let begin = end + rng.sized(1, 800);
        let length = rng.sized(5, 4000);
        let _ = write!(
            text,
            "{}{begin}ms+{length}ms",
            if i == 0 { "" } else { "," }
        );
        end = begin + length;
    }
    (text, Duration::from_millis(end))
}
