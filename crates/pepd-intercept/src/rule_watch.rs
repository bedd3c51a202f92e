//! Watch for policy rules of other programs that come and go.
//!
//! A VPN that connects again takes its rules away for a moment only. That is when pepd's rules can
//! return to their place, so that a look every second is too late.

use std::{collections::VecDeque, time::Duration};

use netlink_packet_route::{RouteNetlinkMessage, rule::RuleMessage};
use pepd_sys::notices::{Group, Notices, Retry};
use tokio::time::{Instant, sleep_until};

use super::route::OURS;

/// Time for further changes of the same program.
const SETTLING: Duration = Duration::from_millis(20);
/// Maximum number of looks within [`SPAN`]. A program that always puts its rules first answers each
/// move of pepd's.
const LOOKS: usize = 10;
const SPAN: Duration = Duration::from_secs(10);

/// Watch for changes of policy rules.
#[derive(Debug)]
pub struct RuleWatch {
    notices: Option<Notices>,
    retry: Retry,
    /// Time of the next look, if one is due.
    due: Option<Instant>,
    /// Times of the latest looks.
    looks: VecDeque<Instant>,
}

impl Default for RuleWatch {
    fn default() -> Self {
        Self {
            notices: None,
            retry: Retry::new("pepd looks at policy rules every second"),
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
            let notices = match &self.notices {
                Some(notices) => notices,
                None => match Notices::open(Group::Rule) {
                    Ok(notices) => &*self.notices.insert(notices),
                    Err(err) => {
                        self.retry.wait(&err).await;
                        continue;
                    }
                },
            };
            match notices.next(of_another).await {
                Ok(_) => return,
                Err(err) => {
                    self.notices = None;
                    self.retry.wait(&err).await;
                }
            }
        }
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
