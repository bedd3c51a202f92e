//! Waiting for company: while datagrams come and go in numbers, pepd looks for new ones once a
//! tick. One wake-up, one receive call and one send call of each flow then serve several.
//!
//! ```text
//!   woken by each arrival --several within a tick--> looking once a tick
//!                         <--fewer than 1.5 a tick--
//! ```
//!
//! The kernel's network drivers do the same (NAPI). A datagram that comes long after others does
//! not wait. Datagrams sent count as company, too: pepd is awake for them, and looks then.

use std::time::Duration;

/// Ticks shorter than this are not worth a timer.
const TICK_MIN: Duration = Duration::from_micros(250);
/// Datagrams a tick that pay for looking, times two.
const WORTHWHILE: u32 = 3;
/// Maximum of ticks without datagrams before arrivals wake pepd again.
const PAID_MAX: u32 = 2;

/// Decides when pepd looks for datagrams.
#[derive(Debug, Default)]
pub(super) struct Company {
    /// The next look; `None` while arrivals wake pepd.
    look: Option<Duration>,
    /// Time of looking that datagrams have paid for.
    paid: Duration,
    /// The last look.
    last: Duration,
    /// Datagrams sent since then.
    sent: u64,
}

impl Company {
    /// Returns whether arrivals shall wake pepd.
    pub(super) fn is_woken(&self) -> bool {
        self.look.is_none()
    }

    /// Returns the time of the next look, unless arrivals wake pepd.
    pub(super) fn deadline(&self) -> Option<Duration> {
        self.look
    }

    /// Returns whether to look now that pepd is awake: half of a tick suffices then.
    pub(super) fn is_due(&self, now: Duration) -> bool {
        self.look
            .is_some_and(|look| now + look.saturating_sub(self.last) / 2 >= look)
    }

    /// Handles datagrams sent.
    pub(super) fn on_sent(&mut self, count: u64) {
        self.sent = self.sent.saturating_add(count);
    }

    /// Handles a look that found `count` datagrams. No peer's datagrams may wait longer than
    /// `tick`.
    pub(super) fn on_look(&mut self, now: Duration, count: u64, tick: Duration) {
        let count = count.saturating_add(std::mem::take(&mut self.sent));
        let elapsed = now.saturating_sub(std::mem::replace(&mut self.last, now));
        let tick = if tick < TICK_MIN {
            Duration::ZERO
        } else {
            tick
        };
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        let paid = self.paid + (tick * 2 / WORTHWHILE).saturating_mul(count);
        // An arrival that wakes pepd long after the last look has not had company.
        let left = paid.checked_sub(elapsed);
        self.paid = left.unwrap_or_default().min(tick * PAID_MAX);
        // One arrival is not enough to begin with.
        let needed = if self.is_woken() {
            tick
        } else {
            Duration::ZERO
        };
        let stays = left.is_some() && !tick.is_zero() && self.paid >= needed;
        self.look = stays.then(|| now + tick);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const US: Duration = Duration::from_micros(1);

    /// Lets datagrams arrive at these times, and returns the wait of each and the number of looks.
    fn run(arrivals: &[Duration], tick: Duration) -> (Vec<Duration>, usize) {
        let mut company = Company::default();
        let (mut waits, mut looks) = (Vec::new(), 0);
        let mut left = arrivals;
        let mut look = |company: &mut Company, now: Duration, left: &mut &[Duration]| {
            let count = left.iter().take_while(|at| **at <= now).count();
            waits.extend(left[..count].iter().map(|at| now - *at));
            *left = &left[count..];
            looks += 1;
            company.on_look(now, count as u64, tick);
        };
        while let Some(first) = left.first() {
            let now = company.deadline().unwrap_or(*first);
            assert!(company.is_woken() || company.is_due(now));
            look(&mut company, now, &mut left);
        }
        // Nothing comes any more.
        for _ in 0..20 {
            if let Some(now) = company.deadline() {
                look(&mut company, now, &mut left);
            }
        }
        assert!(company.is_woken(), "pepd looks for ever");
        (waits, looks)
    }

    fn every(gap: Duration, count: u32) -> Vec<Duration> {
        (0..count).map(|number| MS * 100 + gap * number).collect()
    }

    #[test]
    fn many_datagrams_share_a_look() {
        let (waits, looks) = run(&every(US * 120, 1000), MS);
        assert!(looks < 160, "{looks}");
        assert!(waits.iter().all(|wait| *wait <= MS), "{waits:?}");
    }

    #[test]
    fn datagrams_without_company_never_wait() {
        for gap in [MS, MS * 5, MS * 600] {
            let (waits, looks) = run(&every(gap, 200), MS);
            assert!(waits.iter().all(Duration::is_zero), "{gap:?}: {waits:?}");
            assert_eq!(looks, 200);
        }
        // A question and its answer in turn.
        let pairs = (0..200).flat_map(|pair| [MS * 40 * pair, MS * 40 * pair + US]);
        let (waits, _) = run(&pairs.collect::<Vec<_>>(), MS);
        assert!(waits.iter().all(|wait| *wait <= US), "{waits:?}");
    }

    #[test]
    fn urgent_datagrams_never_wait() {
        let (waits, looks) = run(&every(US * 120, 1000), US * 200);
        assert!(waits.iter().all(Duration::is_zero));
        assert_eq!(looks, 1000);
    }

    /// A look is made when pepd is awake anyway, unless the last one was just before.
    #[test]
    fn datagrams_sent_are_company() {
        let mut company = Company::default();
        let batch = |company: &mut Company, now| {
            company.on_sent(9);
            company.on_look(now, 0, MS);
        };
        batch(&mut company, MS * 100);
        batch(&mut company, MS * 101);
        assert!(!company.is_woken());
        assert!(!company.is_due(MS * 101 + US * 499));
        assert!(company.is_due(MS * 101 + US * 500));
        assert_eq!(company.deadline(), Some(MS * 102));
    }

    /// Two and more a tick pay, fewer do not.
    #[test]
    fn sparse_datagrams_cost_no_timers() {
        for (gap, most) in [(US * 400, 420), (US * 500, 520), (US * 900, 1000)] {
            let (_, looks) = run(&every(gap, 1000), MS);
            assert!(looks <= most, "{gap:?}: {looks}");
        }
    }
}
