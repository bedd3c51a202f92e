//! Evidence of flows for the link's state: in an outage none of them gets an answer.
//!
//! One silent server is no silent link. So nothing may be heard on any flow, and either two of them
//! wait for an answer, or one has waited for long.

use std::{net::IpAddr, time::Duration};

/// Round trips without an answer after which a flow waits in vain, and the time if that is longer.
const PATIENCE: (u32, Duration) = (3, Duration::from_secs(2));
/// Time for which the flows of a single server must wait.
const ALONE: Duration = Duration::from_secs(10);
/// Time without flows that wait after which the link's state is unknown again.
const FORGET: Duration = Duration::from_secs(10);
/// Age up to which a worker's observation counts: it makes one a second.
const FRESH: Duration = Duration::from_secs(3);

/// Observation of the flows of one worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    /// Time since something came over the link; `None` if nothing has.
    heard: Option<Duration>,
    /// Time since any worker has heard something, before this observation.
    all_heard: Option<Duration>,
    /// Server whose flows wait in vain for an answer, if any do.
    server: Option<IpAddr>,
    /// True if there is another such server.
    several: bool,
    /// Longest wait among these flows.
    longest: Duration,
    /// Shortest time among them after which a flow waits in vain.
    patience: Duration,
}

impl Default for Seen {
    fn default() -> Self {
        Self {
            heard: None,
            all_heard: None,
            server: None,
            several: false,
            longest: Duration::ZERO,
            patience: Duration::MAX,
        }
    }
}

impl Seen {
    /// Begins an observation, by the time since any worker has [heard](Flows::heard_ago) something.
    pub fn new(all_heard: Option<Duration>) -> Self {
        Self {
            all_heard,
            ..Self::default()
        }
    }

    /// Adds that something came over the link, so long ago.
    pub fn hear(&mut self, ago: Duration) {
        self.heard = Some(self.heard.map_or(ago, |least| least.min(ago)));
    }

    /// Returns how long a flow of this round trip time must wait to be [counted](Self::wait). An
    /// answer is due after `limit`.
    pub fn patience(rtt: Duration, limit: Duration) -> Duration {
        PATIENCE.1.max(PATIENCE.0 * rtt).max(limit)
    }

    /// Adds a flow of that server that has waited longer than its `patience`. If it waited already
    /// when others were last answered, its server is silent, not the link.
    pub fn wait(&mut self, server: IpAddr, waited: Duration, patience: Duration) {
        if self.all_heard.is_some_and(|ago| waited > ago + patience) {
            return;
        }
        self.join(&Self {
            server: Some(server),
            longest: waited,
            patience,
            ..Self::default()
        });
    }

    fn join(&mut self, other: &Self) {
        let others = other.server.filter(|server| self.server != Some(*server));
        self.several |= other.several || self.server.is_some() && others.is_some();
        self.server = self.server.or(other.server);
        self.longest = self.longest.max(other.longest);
        self.patience = self.patience.min(other.patience);
        if let Some(ago) = other.heard {
            self.hear(ago);
        }
    }
}

/// State of the link as the flows show it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shown {
    /// Nothing comes over the link.
    Silent,
    /// Something does, or no flow waits.
    Nothing,
    /// As before.
    Same,
}

/// Observations of all workers.
#[derive(Debug, Clone, Default)]
pub struct Flows {
    workers: Vec<(Duration, Seen)>,
    heard_at: Option<Duration>,
    waited_at: Duration,
    silent: bool,
}

impl Flows {
    /// Continues from an earlier process, for which the link was silent.
    pub fn resume(&mut self, now: Duration) {
        (self.silent, self.waited_at) = (true, now);
    }

    /// Adds the observation of a worker, by its number, at `now` of a monotonic clock.
    pub fn note(&mut self, worker: usize, now: Duration, seen: Seen) -> Shown {
        if self.workers.len() <= worker {
            self.workers
                .resize(worker + 1, (Duration::ZERO, Seen::default()));
        }
        self.workers[worker] = (now, seen);
        let heard_at = seen.heard.map(|ago| now.saturating_sub(ago));
        self.heard_at = self.heard_at.max(heard_at);
        self.look(now)
    }

    /// Returns the time since something came over the link.
    pub fn heard_ago(&self, now: Duration) -> Option<Duration> {
        self.heard_at.map(|at| now.saturating_sub(at))
    }

    /// Lets time pass: workers without flows note nothing.
    pub fn look(&mut self, now: Duration) -> Shown {
        if self.is_silent(now) {
            (self.silent, self.waited_at) = (true, now);
            return Shown::Silent;
        }
        let is_heard = self.heard_at.is_some_and(|at| at > self.waited_at);
        let is_over = is_heard || now >= self.waited_at + FORGET;
        if self.silent && is_over {
            self.silent = false;
            return Shown::Nothing;
        }
        Shown::Same
    }

    fn is_silent(&self, now: Duration) -> bool {
        let mut all = Seen::default();
        let fresh = self.workers.iter().filter(|(at, _)| now < *at + FRESH);
        fresh.for_each(|(_, seen)| all.join(seen));
        let unheard = self
            .heard_at
            .is_none_or(|at| now >= at.saturating_add(all.patience));
        all.server.is_some() && unheard && (all.several || all.longest >= ALONE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RTT: Duration = Duration::from_millis(600);

    fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// Observation of flows (number of the server, seconds of waiting), and of something heard that
    /// many seconds ago.
    fn seen(flows: &[(u8, u64)], heard: Option<u64>) -> Seen {
        let mut seen = Seen::default();
        let patience = Seen::patience(RTT, Duration::ZERO);
        for (server, waited) in flows.iter().filter(|(_, waited)| s(*waited) >= patience) {
            seen.wait([192, 0, 2, *server].into(), s(*waited), patience);
        }
        if let Some(ago) = heard {
            seen.hear(s(ago));
        }
        seen
    }

    #[test]
    fn when_no_flow_is_answered_the_link_is_silent_until_one_is() {
        let mut flows = Flows::default();
        let mut note = |now, waited, heard| {
            let seen = seen(&[(1, waited), (2, waited)], heard);
            flows.note(0, s(now), seen)
        };
        assert_eq!(note(1, 1, Some(0)), Shown::Same);
        assert_eq!(note(2, 2, Some(1)), Shown::Same);
        assert_eq!(note(3, 3, Some(2)), Shown::Silent);
        assert_eq!(note(4, 4, Some(3)), Shown::Silent);
        assert_eq!(note(5, 0, Some(0)), Shown::Nothing);
        assert_eq!(note(6, 0, Some(1)), Shown::Same);
    }

    #[test]
    fn one_server_that_is_silent_is_no_silent_link() {
        let mut flows = Flows::default();
        for now in 1..60 {
            // Another worker hears something all the time.
            flows.note(1, s(now), seen(&[], Some(0)));
            let shown = flows.note(0, s(now), seen(&[(1, now), (2, now)], None));
            assert_eq!(shown, Shown::Same, "{now}");
        }
        // Without others it is, after a while, however many flows it has.
        let mut flows = Flows::default();
        let mut first = None;
        for now in 1..60 {
            let shown = flows.note(0, s(now), seen(&[(1, now), (1, now)], None));
            if shown == Shown::Silent {
                first = first.or(Some(now));
            }
        }
        assert_eq!(first, Some(10));
    }

    #[test]
    fn servers_that_were_silent_before_others_answered_make_no_outage() {
        let mut flows = Flows::default();
        let patience = Seen::patience(RTT, Duration::ZERO);
        for now in 1..60 {
            let mut seen = Seen::new(flows.heard_ago(s(now)));
            // Two servers that died ten seconds ago, and one that answers now and then.
            for server in [1, 2].into_iter().filter(|_| now > 1) {
                seen.wait([192, 0, 2, server].into(), s(now + 10), patience);
            }
            if now % 4 == 1 {
                seen.hear(Duration::ZERO);
            }
            assert_eq!(flows.note(0, s(now), seen), Shown::Same, "{now}");
        }
    }

    #[test]
    fn workers_count_together() {
        let mut flows = Flows::default();
        assert_eq!(flows.note(0, s(5), seen(&[(1, 5)], None)), Shown::Same);
        assert_eq!(flows.note(1, s(5), seen(&[(1, 5)], None)), Shown::Same);
        assert_eq!(flows.note(1, s(6), seen(&[(2, 5)], None)), Shown::Silent);
    }

    #[test]
    fn a_silence_known_before_a_restart_ends_as_others_do() {
        let mut flows = Flows::default();
        flows.resume(s(100));
        let shown = flows.note(0, s(101), Seen::default());
        assert_eq!(shown, Shown::Same);
        let shown = flows.note(0, s(102), seen(&[(1, 2)], Some(0)));
        assert_eq!(shown, Shown::Nothing);
    }

    #[test]
    fn once_no_flow_is_left_the_state_is_unknown_again() {
        let mut flows = Flows::default();
        flows.note(0, s(9), seen(&[(1, 9), (2, 9)], None));
        flows.note(0, s(10), Seen::default());
        let shown = (11..40).map(|now| (now, flows.look(s(now))));
        let over: Vec<_> = shown.filter(|it| it.1 != Shown::Same).collect();
        assert_eq!(over, [(19, Shown::Nothing)]);
    }
}
