//! Watch for policy rules of other programs that come and go.
//!
//! A VPN that connects again takes its rules away for a moment only. That is when pepd's rules can
//! return to their place, so that a look every second is too late.

use std::{collections::VecDeque, io, time::Duration};

use netlink_packet_route::{RouteNetlinkMessage, rule::RuleMessage};
use pepd_sys::notices::{Group, Notices};
use tokio::time::{Instant, sleep_until};

use super::route::OURS;

/// Time for further changes of the same program.
const SETTLING: Duration = Duration::from_millis(20);
/// Maximum number of looks within [`SPAN`]. A program that always puts its rules first answers each
/// move of pepd's.
const LOOKS: usize = 10;
const SPAN: Duration = Duration::from_secs(10);

/// First and longest pause before the watch is opened again.
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// Watch for changes of policy rules.
#[derive(Debug)]
pub struct RuleWatch {
    notices: Option<Notices>,
    /// Time before which the watch is not opened again, and the pause after a further failure.
    closed: Option<Instant>,
    pause: Duration,
    /// Time of the next look, if one is due.
    due: Option<Instant>,
    /// Times of the latest looks.
    looks: VecDeque<Instant>,
}

impl Default for RuleWatch {
    fn default() -> Self {
        Self {
            notices: None,
            closed: None,
            pause: PAUSE_MIN,
            due: None,
            looks: VecDeque::new(),
        }
    }
}

impl RuleWatch {
    /// Waits until a rule of another program has been added or removed, and a look at all rules is
    /// due. Cancel-safe.
    pub async fn changed(&mut self) {
        let due = match self.due {
            Some(due) => due,
            None => {
                self.next().await;
                let due = self.next_look(Instant::now());
                *self.due.insert(due)
            }
        };
        sleep_until(due).await;
        self.due = None;
        self.looks.push_back(Instant::now());
    }

    /// Waits for a change.
    async fn next(&mut self) {
        loop {
            if let Some(until) = self.closed {
                sleep_until(until).await;
                self.closed = None;
            }
            let notices = match self.notices.take() {
                Some(notices) => Ok(notices),
                None => Notices::open(Group::Rule),
            };
            let seen = match notices {
                Ok(notices) => self.notices.insert(notices).next(of_another).await,
                Err(err) => Err(err),
            };
            match seen {
                Ok(_) => return,
                Err(err) => self.close(&err),
            }
        }
    }

    /// Closes the watch for a while.
    fn close(&mut self, err: &io::Error) {
        let pause = self.pause;
        tracing::warn!(
            error = %err,
            "no notifications of policy rules: retrying in {pause:?}; until then pepd looks every second"
        );
        self.notices = None;
        self.closed = Some(Instant::now() + pause);
        self.pause = (2 * pause).min(PAUSE_MAX);
    }

    fn next_look(&mut self, now: Instant) -> Instant {
        while self.looks.front().is_some_and(|look| *look + SPAN <= now) {
            self.looks.pop_front();
        }
        let settled = now + SETTLING;
        let is_full = self.looks.len() >= LOOKS;
        let oldest = self.looks.front().filter(|_| is_full);
        oldest.map_or(settled, |oldest| settled.max(*oldest + SPAN))
    }
}

/// Returns a changed rule of another program.
fn of_another(notice: &RouteNetlinkMessage) -> Option<()> {
    let is_other = |rule: &RuleMessage| !rule.attributes.contains(&OURS);
    match notice {
        RouteNetlinkMessage::NewRule(rule) | RouteNetlinkMessage::DelRule(rule) => {
            is_other(rule).then_some(())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_contest_gets_ten_looks_in_ten_seconds() {
        let (mut watch, mut now) = (RuleWatch::default(), Instant::now());
        let began = now;
        for _ in 0..LOOKS {
            now = watch.next_look(now);
            watch.looks.push_back(now);
        }
        assert_eq!(now, began + SETTLING * LOOKS as u32);
        assert_eq!(watch.next_look(now), began + SETTLING + SPAN);
        assert_eq!(watch.next_look(now + SPAN), now + SPAN + SETTLING);
    }
}
