//! State machine of held SYNs.

use std::{collections::VecDeque, net::IpAddr, sync::Arc, time::Duration};

use super::{
    FlowTuple,
    packet::{self, IcmpError, Parsed, Syn},
    quota::{Full, Limits, Quota},
};
use crate::expiring::Expiring;

/// Number of the LAN interface on which a SYN came, in the order of `intercept.lan`.
pub type Lan = usize;

/// Limits and times of a holder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HolderConfig {
    /// SYNs held at one time.
    pub held_max: u32,
    /// Of all held SYNs, for one source: an IPv4 address or an IPv6 /64.
    pub held_per_source_max: u32,
    /// Of all held SYNs, for one destination address.
    pub held_per_destination_max: u32,
    /// Maximum silence of the client before the server has answered.
    pub lease: Duration,
    /// Maximum silence of the client after its SYN was released to the listener.
    pub orphan: Duration,
    /// Time for which a passed flow is remembered.
    pub passed: Duration,
    /// Maximum number of passed flows remembered; a new one replaces the oldest.
    pub passed_max: usize,
    /// Time for which a flow taken by the listener is remembered.
    pub taken: Duration,
}

impl HolderConfig {
    /// Returns a configuration with these limits and this lease, and times that follow from TCP:
    ///
    /// - `orphan` 10 s: the kernel repeats its SYN-ACK after 1, 3 and 7 s. A live client repeats
    ///   its SYN as soon, which renews the time.
    /// - `passed` 130 s: a client gives up after 127 s (tcp_syn_retries = 6).
    /// - `taken` 2 s: a repeated SYN may be behind the client's ACK in a queue, not by more.
    pub const fn new(
        held_max: u32,
        held_per_source_max: u32,
        held_per_destination_max: u32,
        lease: Duration,
    ) -> Self {
        Self {
            held_max,
            held_per_source_max,
            held_per_destination_max,
            lease,
            orphan: Duration::from_secs(10),
            passed: Duration::from_secs(130),
            passed_max: 65_536,
            taken: Duration::from_secs(2),
        }
    }
}

/// Actions for the shell, to be performed in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Start to connect the server leg, then report [`handle_connected`](Holder::handle_connected)
    /// or [`handle_failed`](Holder::handle_failed).
    Connect {
        /// Client and destination.
        flow: FlowTuple,
        /// The DSCP of the SYN.
        dscp: u8,
        /// LAN interface of the SYN.
        lan: Lan,
    },
    /// Reinject the SYN by the TUN of its LAN interface, so that it reaches the listener.
    Release {
        /// The interface.
        lan: Lan,
        /// The SYN.
        packet: Arc<[u8]>,
    },
    /// Forward the packet unchanged to its destination.
    Pass {
        /// Destination of the packet.
        to: IpAddr,
        /// The packet.
        packet: Arc<[u8]>,
    },
    /// Send a forged packet to the client.
    Answer {
        /// The client.
        to: IpAddr,
        /// The packet.
        packet: Vec<u8>,
    },
    /// Reset the server leg: no client waits for it any more.
    Abort {
        /// Flow of the leg.
        flow: FlowTuple,
    },
}

/// Reason why there is no server leg.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// The server answered with RST.
    Refused,
    /// An ICMP error, received or to be sent in a router's place.
    Icmp(IcmpError),
    /// The server never answered.
    TimedOut,
    /// A local cause, unrelated to the client's connection: its port is in use here, or descriptors
    /// or memory are short.
    Ours,
}

/// Details of an accepted flow for the listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Taken {
    /// The DSCP of the SYN.
    pub dscp: u8,
    /// LAN interface of the SYN.
    pub lan: Lan,
}

/// Counters. Each SYN that is held ends in exactly one of the outcomes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HolderStats {
    /// SYNs held, repeated ones not counted.
    pub held: u64,
    /// Maximum number held at one time.
    pub held_now_max: u64,
    /// Repeated SYNs of flows that are held, released or just taken.
    pub repeated: u64,
    /// SYNs released because the server answered; these end as taken or orphaned.
    pub released: u64,
    /// Outcome: the listener accepted the flow.
    pub taken: u64,
    /// Outcome: the server refused, the client got RST.
    pub refused: u64,
    /// Outcome: unreachable, the client got an ICMP error.
    pub unreachable: u64,
    /// Outcome: the server never answered.
    pub timed_out: u64,
    /// Outcome: the client fell silent before the server answered.
    pub expired: u64,
    /// Outcome: the client fell silent, or reset, after the server had answered.
    pub orphaned: u64,
    /// Outcome: passed because no leg could be made.
    pub passed_failed: u64,
    /// Never held: the total is at its limit.
    pub passed_full: u64,
    /// Never held: the source is at its limit.
    pub passed_source_full: u64,
    /// Never held: the destination is at its limit.
    pub passed_destination_full: u64,
    /// Repeated SYNs of flows that passed.
    pub passed_again: u64,
    /// Passed because they cannot be held: fragments, IPv6 extension headers, long ones.
    pub passed_odd: u64,
    /// Packets that no host sent through pepd; dropped.
    pub noise: u64,
}

impl HolderStats {
    /// Number of held SYNs that have ended.
    pub fn ended(&self) -> u64 {
        self.taken
            + self.refused
            + self.unreachable
            + self.timed_out
            + self.expired
            + self.orphaned
            + self.passed_failed
    }

    /// Number of SYNs, including repeated ones, that passed unaccelerated.
    pub fn passed(&self) -> u64 {
        self.passed_failed
            + self.passed_full
            + self.passed_source_full
            + self.passed_destination_full
            + self.passed_again
            + self.passed_odd
    }
}

#[derive(Debug)]
struct Held {
    syn: Syn,
    /// Latest copy: its timestamp gives the client the more accurate round-trip time.
    packet: Arc<[u8]>,
    lan: Lan,
    released: bool,
}

/// Held SYNs.
///
/// ```text
///              SYN
///               |------------- full ----------------> passed
///               v                                       ^
///          connecting ---- no leg possible -------------+
///     SYN: renew|  |------ refused, ICMP: answer ----> (removed)
///               |  |------ timed out -----------------> passed, in silence
///               |  '------ client silent: abort ------> (removed)
///      connected|
///               v
///           released ----- client silent: abort ------> (removed)
///   SYN: release|again
///          taken|by the listener
///               v
///             taken ------ after a while -------------> (removed)
///   SYN: release again
/// ```
///
/// A repeated SYN of a passed flow passes again, and renews the memory of it. A SYN with another
/// sequence number is a new flow, after one that was taken or passed.
///
/// Inputs are the `handle_*` methods and [`take`](Self::take). After each, the caller calls
/// [`poll_action`](Self::poll_action) until it returns `None`. Times are since an epoch of the
/// caller's choice and never go back.
#[derive(Debug)]
pub struct Holder {
    config: HolderConfig,
    quota: Quota,
    held: Expiring<FlowTuple, Held>,
    /// Flows with the sequence number and LAN interface of the SYN.
    taken: Expiring<FlowTuple, (u32, Lan)>,
    /// Flows with the sequence number of the SYN.
    passed: Expiring<FlowTuple, u32>,
    actions: VecDeque<Action>,
    stats: HolderStats,
}

impl Holder {
    /// Returns an empty holder.
    pub fn new(config: HolderConfig) -> Self {
        Self {
            config,
            quota: Quota::new(Limits {
                all: config.held_max,
                per_source: config.held_per_source_max,
                per_destination: config.held_per_destination_max,
            }),
            held: Expiring::new(),
            taken: Expiring::new(),
            passed: Expiring::new(),
            actions: VecDeque::new(),
            stats: HolderStats::default(),
        }
    }

    /// Counters so far.
    pub fn stats(&self) -> &HolderStats {
        &self.stats
    }

    /// Number of SYNs held now, including released ones.
    pub fn held_now(&self) -> usize {
        self.held.len()
    }

    /// Flows whose server has not answered yet, in no order.
    pub fn connecting(&self) -> impl Iterator<Item = FlowTuple> {
        let flows = self.held.iter().filter(|(_, held)| !held.released);
        flows.map(|(flow, _)| *flow)
    }

    /// Handles a packet that came by the TUN of this LAN interface.
    pub fn handle_packet(&mut self, packet: &[u8], lan: Lan, now: Duration) {
        match packet::parse(packet) {
            Parsed::Syn(syn) => self.handle_syn(syn, packet.into(), lan, now),
            Parsed::Pass(to) => {
                self.stats.passed_odd += 1;
                self.pass(to, packet.into());
            }
            Parsed::Noise => self.stats.noise += 1,
        }
    }

    fn handle_syn(&mut self, syn: Syn, packet: Arc<[u8]>, lan: Lan, now: Duration) {
        let flow = syn.flow;
        if let Some(held) = self.held.get_mut(&flow) {
            (held.syn, held.packet, held.lan) = (syn, packet, lan);
            self.stats.repeated += 1;
            self.on_repeated(flow, now);
        } else if let Some(&(sequence, lan)) = self.taken.get(&flow)
            && sequence == syn.sequence
        {
            // The kernel has the socket, and answers it.
            self.stats.repeated += 1;
            self.actions.push_back(Action::Release { lan, packet });
        } else if self.passed.get(&flow) == Some(&syn.sequence) {
            self.stats.passed_again += 1;
            self.remember_passed(&syn, now);
            self.pass(flow.destination.ip(), packet);
        } else {
            self.hold(syn, packet, lan, now);
        }
    }

    fn on_repeated(&mut self, flow: FlowTuple, now: Duration) {
        let held = self.held.get(&flow).expect("the caller found it");
        if held.released {
            self.actions.push_back(release(held));
            self.held.renew(flow, now + self.config.orphan);
        } else {
            self.held.renew(flow, now + self.config.lease);
        }
    }

    fn hold(&mut self, syn: Syn, packet: Arc<[u8]>, lan: Lan, now: Duration) {
        let flow = syn.flow;
        if let Err(full) = self.quota.add(&flow) {
            match full {
                Full::All => self.stats.passed_full += 1,
                Full::Source => self.stats.passed_source_full += 1,
                Full::Destination => self.stats.passed_destination_full += 1,
            }
            self.remember_passed(&syn, now);
            self.pass(flow.destination.ip(), packet);
            return;
        }
        self.taken.remove(&flow);
        self.passed.remove(&flow);
        let dscp = syn.dscp;
        let held = Held {
            syn,
            packet,
            lan,
            released: false,
        };
        self.held.insert(flow, held, now + self.config.lease);
        self.stats.held += 1;
        self.stats.held_now_max = self.stats.held_now_max.max(self.held.len() as u64);
        self.actions.push_back(Action::Connect { flow, dscp, lan });
    }

    /// Handles a connected server leg: the server answered, and the listener may take the flow from
    /// now on. Returns whether a client still waits for it.
    pub fn handle_connected(&mut self, flow: FlowTuple, now: Duration) -> bool {
        let Some(held) = self.held.get_mut(&flow) else {
            return false;
        };
        held.released = true;
        self.actions.push_back(release(held));
        self.stats.released += 1;
        self.held.renew(flow, now + self.config.orphan);
        true
    }

    /// Handles a failed server leg. Ignored for a flow whose server has answered.
    pub fn handle_failed(&mut self, flow: FlowTuple, failure: Failure, now: Duration) {
        if self.held.get(&flow).is_none_or(|held| held.released) {
            return;
        }
        let held = self.forget(&flow).expect("found just now");
        match failure {
            Failure::Refused => {
                self.stats.refused += 1;
                self.answer(flow, Some(packet::reset(&held.syn)));
            }
            Failure::Icmp(error) => {
                self.stats.unreachable += 1;
                let client = flow.client.ip();
                self.answer(flow, packet::icmp(&error, &held.packet, client));
            }
            Failure::TimedOut => {
                self.stats.timed_out += 1;
                self.remember_passed(&held.syn, now);
            }
            Failure::Ours => {
                self.stats.passed_failed += 1;
                self.remember_passed(&held.syn, now);
                self.pass(flow.destination.ip(), held.packet);
            }
        }
    }

    /// Takes a flow that the listener accepted. `None` when its server has not answered, or the
    /// flow is unknown: the caller then resets it.
    pub fn take(&mut self, flow: &FlowTuple, now: Duration) -> Option<Taken> {
        if !self.held.get(flow)?.released {
            return None;
        }
        let held = self.forget(flow)?;
        self.stats.taken += 1;
        if self.taken.len() >= self.config.passed_max {
            self.taken.pop_first();
        }
        let memory = (held.syn.sequence, held.lan);
        self.taken.insert(*flow, memory, now + self.config.taken);
        Some(Taken {
            dscp: held.syn.dscp,
            lan: held.lan,
        })
    }

    /// Handles elapsed time. To be called at [`poll_timeout`](Self::poll_timeout); earlier or later
    /// calls are harmless.
    pub fn handle_timeout(&mut self, now: Duration) {
        while let Some((flow, held)) = self.held.pop_expired(now) {
            self.quota.remove(&flow);
            if held.released {
                self.stats.orphaned += 1;
            } else {
                self.stats.expired += 1;
            }
            self.actions.push_back(Action::Abort { flow });
        }
        while self.taken.pop_expired(now).is_some() {}
        while self.passed.pop_expired(now).is_some() {}
    }

    /// Next time at which [`handle_timeout`](Self::handle_timeout) has work; to be polled after
    /// every input.
    pub fn poll_timeout(&self) -> Option<Duration> {
        let deadlines = [
            self.held.next_deadline(),
            self.taken.next_deadline(),
            self.passed.next_deadline(),
        ];
        deadlines.into_iter().flatten().min()
    }

    /// Next action; to be polled after every input until it is `None`.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    fn forget(&mut self, flow: &FlowTuple) -> Option<Held> {
        let held = self.held.remove(flow)?;
        self.quota.remove(flow);
        Some(held)
    }

    fn pass(&mut self, to: IpAddr, packet: Arc<[u8]>) {
        self.actions.push_back(Action::Pass { to, packet });
    }

    fn answer(&mut self, flow: FlowTuple, packet: Option<Vec<u8>>) {
        let to = flow.client.ip();
        let answer = packet.map(|packet| Action::Answer { to, packet });
        self.actions.extend(answer);
    }

    fn remember_passed(&mut self, syn: &Syn, now: Duration) {
        let flow = syn.flow;
        if self.passed.get(&flow).is_none() && self.passed.len() >= self.config.passed_max {
            self.passed.pop_first();
        }
        self.passed
            .insert(flow, syn.sequence, now + self.config.passed);
    }
}

fn release(held: &Held) -> Action {
    Action::Release {
        lan: held.lan,
        packet: Arc::clone(&held.packet),
    }
}

#[cfg(test)]
#[path = "holder_tests.rs"]
mod tests;
