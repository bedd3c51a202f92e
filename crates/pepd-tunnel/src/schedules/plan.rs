//! Events of a schedule, drawn from its seed.

use std::time::Duration;

use splitmix::SplitMix64;

use super::{end::EXTENT, hosts::Closes};

/// Kinds of events in a schedule.
#[derive(Debug, Clone, Copy)]
pub(super) struct Scope {
    /// Processes end at any step.
    pub(super) crashes: bool,
    /// Bytes go to disk while the link is down, and the disk fails.
    pub(super) disk: bool,
    /// Memory is short.
    pub(super) pressure: bool,
    /// The link has frequent short outages, and both ends may crash at once.
    pub(super) short_outages: bool,
    /// Special subject.
    pub(super) special: Option<Special>,
}

/// Special subjects of some schedules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Special {
    /// Chunks on disk cannot be read for a while.
    Reads,
    /// Bytes that have waited for too long are dropped.
    Expiry,
    /// Flows are compressed.
    Compressed,
}

/// One host of a flow.
#[derive(Debug, Clone)]
pub(super) struct HostPlan {
    pub(super) len: u64,
    pub(super) closes: Closes,
    pub(super) resets_at: Option<u64>,
    pub(super) pace: u64,
}

/// A flow.
#[derive(Debug, Clone)]
pub(super) struct FlowPlan {
    pub(super) begins: Duration,
    pub(super) hosts: [HostPlan; 2],
    /// Delay of the server's answer, which may be a refusal.
    pub(super) answers_after: Duration,
    pub(super) refused: bool,
}

/// A crash of one end.
#[derive(Debug, Clone, Copy)]
pub(super) struct Crash {
    pub(super) end: usize,
    pub(super) at: Duration,
    /// Number of further steps before the crash.
    pub(super) steps: u64,
    /// Delay of the next start.
    pub(super) downtime: Duration,
}

/// A change of one kind of disk fault at an end.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fault {
    pub(super) end: usize,
    pub(super) at: Duration,
    pub(super) what: usize,
    pub(super) fails: bool,
}

/// A schedule.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    pub(super) seed: u64,
    pub(super) rate: u64,
    pub(super) delay: Duration,
    /// Loss, in the unit of the link's options.
    pub(super) loss: f64,
    pub(super) queue: u64,
    /// Times without connectivity.
    pub(super) outages: Vec<(Duration, Duration)>,
    /// The far end knows the near end's address.
    pub(super) far_calls: bool,
    pub(super) crashes: Vec<Crash>,
    pub(super) flows: Vec<FlowPlan>,
    /// Memory of each end's process in bytes.
    pub(super) memory: u64,
    /// Custody limits of each end in memory and on disk, in bytes.
    pub(super) custody: u64,
    pub(super) disk: Option<u64>,
    pub(super) faults: Vec<Fault>,
    pub(super) buffers: [u64; 2],
    /// Extent of each direction of a flow, in bytes.
    pub(super) extent: u64,
    /// Both ends are notified of outages.
    pub(super) notified: bool,
    /// Hold time of hosts' bytes.
    pub(super) hold: Duration,
    /// The link is down for longer than that.
    pub(super) expires: bool,
    /// Reads fail for so long that flows may be lost.
    pub(super) damages: bool,
    /// Flows are compressed, and hosts' bytes are compressible.
    pub(super) compress: bool,
    pub(super) text: bool,
    /// A deliberate fault that the checks must find.
    pub(super) broken: Option<Broken>,
}

/// Deliberate faults.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Broken {
    /// Some stores to the record are skipped.
    Stores,
    /// The kernel counts one byte too many as read.
    Counters,
}

const HOUR: Duration = Duration::from_secs(3600);

fn millis(count: u64) -> Duration {
    Duration::from_millis(count)
}

fn below_one_of<const N: usize>(draw: &mut SplitMix64, ends: [u64; N]) -> u64 {
    let end = draw.one_of(&ends);
    draw.below(end)
}

impl Plan {
    /// Draws the schedule of that seed.
    pub(super) fn draw(seed: u64, scope: Scope) -> Self {
        let mut draw = SplitMix64::new(seed);
        let draw = &mut draw;
        let rate = draw.one_of(&[300_000, 1_000_000, 4_000_000, 20_000_000]);
        let delay = millis(1 + below_one_of(draw, [10, 40, 300]));
        let loss = draw.one_of(&[0, 0, 1, 3, 8]) as f64 / 100.0;
        let last = draw.one_of(&[3_000, 20_000]);
        let flows: Vec<_> = (0..1 + draw.below(4))
            .map(|_| Self::flow(draw, last / 2))
            .collect();
        let disk = scope.disk.then(|| (2 + draw.below(60)) << 16);
        let mut plan = Self {
            seed,
            rate,
            delay,
            loss,
            queue: (rate / 16).max(30_000),
            extent: EXTENT,
            outages: Self::outages(draw, last),
            far_calls: draw.below(2) == 0,
            crashes: if scope.crashes {
                Self::crashes(draw, last)
            } else {
                Vec::new()
            },
            flows,
            memory: if scope.pressure {
                (20 + draw.below(40)) << 16
            } else {
                16 << 20
            },
            custody: if scope.disk || scope.pressure {
                (1 + draw.below(16)) << 16
            } else {
                4 << 20
            },
            disk,
            faults: if scope.disk {
                Self::faults(draw, last)
            } else {
                Vec::new()
            },
            notified: draw.below(3) == 0,
            hold: 8 * HOUR,
            expires: false,
            damages: false,
            compress: false,
            text: false,
            broken: None,
            buffers: [8 << 10 << draw.below(5), 8 << 10 << draw.below(5)],
        };
        if scope.short_outages {
            plan.add_short_outages(last);
        }
        if scope.disk {
            plan.flood();
        }
        match scope.special {
            Some(Special::Reads) => plan.fail_reads(),
            Some(Special::Expiry) => plan.expire(),
            Some(Special::Compressed) => plan.compress(),
            None => {}
        }
        plan
    }

    /// Lets hosts send more than memory takes, while the link is down for long. Drawn separately,
    /// too.
    fn flood(&mut self) {
        let draw = &mut SplitMix64::new(self.seed ^ 0xd15c);
        self.rate = self.rate.max(4_000_000);
        for flow in &mut self.flows {
            let host = &mut flow.hosts[draw.below(2) as usize];
            (host.len, host.pace) = (500_000 + draw.below(3_000_000), 3);
        }
        let from = 500 + draw.below(10_000);
        let until = from + 5_000 + draw.below(60_000);
        self.outages.push((millis(from), millis(until)));
        self.disk = Some((10 + draw.below(120)) << 16);
    }

    /// Makes reads fail at one end when the link is up again: for less than four seconds, which
    /// five attempts take, or for longer.
    fn fail_reads(&mut self) {
        let draw = &mut SplitMix64::new(self.seed ^ 0x4ead);
        let back = self.outages.iter().map(|(_, until)| *until).max();
        let from = back.unwrap_or_default() + millis(draw.below(2_000));
        self.damages = draw.below(2) == 0;
        let len = if self.damages {
            8_000 + draw.below(30_000)
        } else {
            1 + draw.below(3_900)
        };
        let first = draw.below(3) as usize;
        for end in if first == 2 { 0..2 } else { first..first + 1 } {
            for (at, fails) in [(from, true), (from + millis(len), false)] {
                let what = 3;
                self.faults.push(Fault {
                    end,
                    at,
                    what,
                    fails,
                });
            }
        }
        self.faults.sort_by_key(|fault| fault.at);
    }

    /// Takes the link down once, for less than the hold time or for longer.
    fn expire(&mut self) {
        let draw = &mut SplitMix64::new(self.seed ^ 0xe49d);
        let hold = 10_000 + draw.below(30_000);
        self.hold = millis(hold);
        self.expires = draw.below(2) == 0;
        let from = 500 + draw.below(8_000);
        let len = if self.expires {
            hold + 2_000 + draw.below(60_000)
        } else {
            draw.below(hold / 3)
        };
        self.outages = vec![(millis(from), millis(from + len))];
    }

    fn compress(&mut self) {
        let draw = &mut SplitMix64::new(self.seed ^ 0xc03b);
        (self.compress, self.text) = (true, draw.below(2) == 0);
    }

    /// Adds frequent short outages, and makes half of the crashes hit both ends. Drawn separately,
    /// so that other schedules stay the same.
    fn add_short_outages(&mut self, last: u64) {
        let draw = &mut SplitMix64::new(!self.seed);
        let interval = draw.one_of(&[100, 500]);
        self.outages = Self::short_outages(draw, 2 * last, interval);
        let both: Vec<_> = self.crashes.iter().filter(|_| draw.below(2) == 0).collect();
        let other = |crash: &Crash| Crash {
            end: 1 - crash.end,
            ..*crash
        };
        let others: Vec<_> = both.into_iter().map(other).collect();
        self.crashes.extend(others);
        self.crashes.sort_by_key(|crash| crash.at);
    }

    /// Makes each interval an outage with a fixed probability.
    fn short_outages(draw: &mut SplitMix64, last: u64, interval: u64) -> Vec<(Duration, Duration)> {
        let intervals = (0..last / interval).filter(|_| draw.below(10) < 4);
        let intervals: Vec<_> = intervals.collect();
        let intervals = intervals
            .into_iter()
            .map(|n| (n * interval, (n + 1) * interval));
        intervals
            .map(|(from, to)| (millis(from), millis(to)))
            .collect()
    }

    fn flow(draw: &mut SplitMix64, last: u64) -> FlowPlan {
        let begins = millis(draw.below(last));
        let hosts = [0, 1].map(|_| {
            let most = draw.one_of(&[0, 100, 3000, 60_000, 500_000]);
            let len = draw.below(most + 1);
            let resets = draw.below(16) == 0;
            HostPlan {
                len,
                closes: if draw.below(2) == 0 {
                    Closes::AtOnce
                } else {
                    Closes::Second
                },
                resets_at: resets.then(|| draw.below(100_000)),
                pace: draw.one_of(&[3, 30, 300]),
            }
        });
        let mut flow = FlowPlan {
            begins,
            hosts,
            answers_after: millis(draw.below(60)),
            refused: draw.below(30) == 0,
        };
        if flow.hosts.iter().all(|host| host.closes == Closes::Second) {
            flow.hosts[draw.below(2) as usize].closes = Closes::AtOnce;
        }
        flow
    }

    /// Draws no outage, short outages, or a long one.
    fn outages(draw: &mut SplitMix64, last: u64) -> Vec<(Duration, Duration)> {
        match draw.below(4) {
            0 => Vec::new(),
            1 | 2 => {
                let interval = draw.one_of(&[40, 500, 2000]);
                Self::short_outages(draw, last, interval)
            }
            _ => {
                let from = draw.below(last);
                let len = draw.one_of(&[3000, 20_000, 200_000]);
                vec![(millis(from), millis(from + 1 + draw.below(len)))]
            }
        }
    }

    fn crashes(draw: &mut SplitMix64, last: u64) -> Vec<Crash> {
        let mut crashes: Vec<_> = (0..draw.below(6))
            .map(|_| Crash {
                end: draw.below(2) as usize,
                at: millis(draw.below(last)),
                steps: 1 + below_one_of(draw, [1, 30, 300]),
                downtime: millis(below_one_of(draw, [2, 300, 5000])),
            })
            .collect();
        crashes.sort_by_key(|crash| crash.at);
        crashes
    }

    fn faults(draw: &mut SplitMix64, last: u64) -> Vec<Fault> {
        let mut faults: Vec<_> = (0..draw.below(6))
            .map(|_| Fault {
                end: draw.below(2) as usize,
                at: millis(draw.below(last)),
                what: draw.below(3) as usize,
                fails: draw.below(2) == 0,
            })
            .collect();
        faults.sort_by_key(|fault| fault.at);
        faults
    }

    /// Returns the time after which nothing fails any more and all flows have begun.
    pub(super) fn calm(&self) -> Duration {
        let outages = self.outages.iter().map(|(_, until)| *until);
        let crashes = self.crashes.iter().map(|crash| crash.at + crash.downtime);
        let flows = self.flows.iter().map(|flow| flow.begins);
        let faults = self.faults.iter().map(|fault| fault.at);
        let last = outages.chain(crashes).chain(flows).chain(faults).max();
        last.unwrap_or_default()
    }

    /// Returns the time by which everything must have been delivered.
    pub(super) fn deadline(&self) -> Duration {
        let lens = self.flows.iter().flat_map(|flow| &flow.hosts);
        let bytes: u64 = lens.clone().map(|host| host.len).sum();
        let by_link = Duration::from_secs_f64(bytes as f64 * 8.0 / self.rate as f64);
        // Each turn of a host moves some bytes.
        let minimum = self.buffers[0].min(self.buffers[1]).min(20_000);
        let turns = lens.map(|host| millis(2 * host.pace * (host.len / minimum + 2)));
        let by_hosts = turns.max().unwrap_or_default();
        self.calm() + 8 * by_link + 4 * by_hosts + 200 * self.delay + Duration::from_secs(60)
    }
}
