//! CUBIC (RFC 9438), the kernel's default, as a competitor on shared links; only its bandwidth
//! share is modelled.

use crate::program::View;

const BETA: f64 = 0.7;
const C: f64 = 0.4;

/// A window that grows with the cube of the time since the last loss.
#[derive(Debug)]
pub struct Cubic {
    window: f64,
    threshold: f64,
    most: f64,
    epoch: Option<f64>,
    /// The window that Reno would have.
    friendly: f64,
    /// Losses within one round trip count as one.
    recovers: u32,
}

impl Default for Cubic {
    fn default() -> Self {
        Self {
            window: 10.0,
            threshold: f64::INFINITY,
            most: 0.0,
            epoch: None,
            friendly: 10.0,
            recovers: 0,
        }
    }
}

impl Cubic {
    /// The window after an acknowledgement.
    pub fn acknowledge(&mut self, view: &View) -> u32 {
        if view.lost > 0 && view.delivered >= self.recovers {
            self.reduce(view);
        } else if view.delivered >= self.recovers {
            self.grow(view);
        }
        self.window as u32
    }

    pub fn time_out(&mut self, view: &View) {
        self.reduce(view);
        self.window = 1.0;
    }

    fn reduce(&mut self, view: &View) {
        self.recovers = view.delivered + self.window as u32;
        self.most = if self.window < self.most {
            self.window * (1.0 + BETA) / 2.0
        } else {
            self.window
        };
        self.window = (self.window * BETA).max(2.0);
        self.threshold = self.window;
        self.epoch = None;
    }

    fn grow(&mut self, view: &View) {
        let acked = f64::from(view.acked);
        if self.window < self.threshold {
            self.window += acked;
            return;
        }
        let now = view.now_us as f64 / 1e6;
        let rtt = f64::from(view.srtt_us) / 8e6;
        let began = *self.epoch.get_or_insert_with(|| {
            self.friendly = self.window;
            now
        });
        self.most = self.most.max(self.window);
        let bend = ((self.most - self.most.min(self.threshold)) / C).cbrt();
        let target = self.most + C * (now + rtt - began - bend).powi(3);
        let target = target.min(1.5 * self.window);
        self.friendly += 3.0 * (1.0 - BETA) / (1.0 + BETA) * acked / self.window;
        self.window += ((target - self.window).max(0.01) / self.window * acked).min(acked / 2.0);
        self.window = self.window.max(self.friendly);
    }
}
