//! Limits on the number of flows, and the gate that keeps further ones out.
//!
//! The gate is in the kernel: closed, it lets new connections pass unaccelerated. Flows whose
//! client the kernel has already answered for pepd are still served.

pub mod descriptors;

use std::{
    collections::BTreeSet,
    io,
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use pep_core::{
    budget::{MemoryBudget, MemoryPart},
    config::Config,
    hosts::{Begun, Host, HostFlows},
    parties::{Parts, Party},
    receive::ReceivePart,
};
use pepd_sys::{gate::Gate, site_counters::SiteCounters, stats::Counters};
use tokio::{
    sync::{Notify, watch},
    time::timeout,
};

/// Resources that flows need and that the machine may run out of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resource {
    /// EMFILE, ENFILE.
    Descriptors,
    /// ENOMEM, ENOBUFS, EFAULT of a page, `limits.memory`, slots of the arena.
    Memory,
}

impl Resource {
    /// Returns the resource that an error reports as exhausted, if any.
    pub fn short(err: &io::Error) -> Option<Self> {
        match err.raw_os_error()? {
            libc::EMFILE | libc::ENFILE => Some(Self::Descriptors),
            libc::ENOMEM | libc::ENOBUFS | libc::EFAULT => Some(Self::Memory),
            _ => None,
        }
    }
}

/// State machine of the gate. It closes at the cap and opens again some way below it, since each
/// change costs an nft transaction.
#[derive(Debug)]
struct Gatekeeper {
    open_flows: u32,
    cap: u32,
    /// True where a resource was short, or legs could not be made, since the last tick but one.
    short: [bool; 2],
    /// Time of the last warning that legs cannot be made.
    warned: Option<Instant>,
    stopped: bool,
    gate: Gate,
    hosts: HostFlows,
}

impl Gatekeeper {
    /// Minimum interval between two such warnings.
    const WARN_EVERY: Duration = Duration::from_secs(60);

    fn new(cap: u32) -> Self {
        Self {
            open_flows: 0,
            cap,
            short: [false; 2],
            warned: None,
            stopped: false,
            gate: Gate::Open,
            hosts: HostFlows::new(u32::MAX),
        }
    }

    fn decide(&mut self) -> Gate {
        let reopens_at = self.cap - self.cap.div_ceil(16);
        let room = match self.gate {
            Gate::Open => self.open_flows < self.cap,
            Gate::Closed => self.open_flows <= reopens_at,
        };
        let open = room && !self.stopped && self.short == [false; 2];
        self.gate = if open { Gate::Open } else { Gate::Closed };
        self.gate
    }

    /// Returns whether the warning that legs cannot be made is due again.
    fn is_to_warn(&mut self, now: Instant) -> bool {
        let reported = |last: Instant| now.saturating_duration_since(last) < Self::WARN_EVERY;
        let due = !self.warned.is_some_and(reported);
        if due {
            self.warned = Some(now);
        }
        due
    }

    /// Without memory the kernel would still answer a new flow, and it would wait: the gate lets it
    /// pass instead.
    fn on_tick(&mut self, next_flow_fits: bool) {
        self.short = [!next_flow_fits, self.short[0]];
    }
}

/// Open flows, against the limits.
#[derive(Debug)]
pub struct Admission {
    keeper: Mutex<Gatekeeper>,
    gate: watch::Sender<Gate>,
    hosts_at_cap: watch::Sender<BTreeSet<Host>>,
    /// Notified when a flow ends.
    ended: Notify,
    receive_parts: Mutex<Parts<ReceivePart>>,
    memory_parts: Mutex<Parts<MemoryPart>>,
    counters: Arc<Counters>,
}

impl Admission {
    /// Maximum time that a wait for a free resource lasts.
    const RETRY: Duration = Duration::from_millis(50);

    /// Allows up to `cap` flows in all, 1 or more.
    pub fn new(cap: u32, counters: Arc<Counters>) -> Arc<Self> {
        Arc::new(Self {
            keeper: Mutex::new(Gatekeeper::new(cap.max(1))),
            gate: watch::Sender::new(Gate::Open),
            hosts_at_cap: watch::Sender::default(),
            ended: Notify::new(),
            receive_parts: Mutex::default(),
            memory_parts: Mutex::default(),
            counters,
        })
    }

    /// Counts a flow for as long as the permit lives: with `site_counters` of its site, and as one
    /// of `host` if that is local. Never refuses: the kernel has already answered the client.
    pub fn admit(
        self: &Arc<Self>,
        site_counters: &Arc<SiteCounters>,
        host: Option<Host>,
    ) -> Permit {
        let (open, begun) = self.change(|keeper| {
            keeper.open_flows += 1;
            let begun = host.map(|host| keeper.hosts.begin(host));
            (keeper.open_flows, begun)
        });
        self.counters.update(|stats| {
            stats.flows_accepted += 1;
            stats.flows_open += 1;
            stats.flows_open_max = stats.flows_open_max.max(open.into());
            stats.host_cap_reached += u64::from(begun == Some(Begun::Reached));
            stats.host_cap_exceeded += u64::from(begun == Some(Begun::Beyond));
        });
        site_counters.begin();
        Permit {
            admission: Arc::clone(self),
            site_counters: Arc::clone(site_counters),
            host,
        }
    }

    /// Returns the part of the kernel's receive buffers that a party has, where flows may take
    /// `memory` in all.
    pub fn receive_part(&self, party: Party, memory: u64) -> Arc<ReceivePart> {
        let mut parts = self.receive_parts.lock();
        parts.of(party, || ReceivePart::new(memory))
    }

    /// Returns what a party has of the memory for growing rings.
    pub fn memory_part(&self, party: Party, budget: &Arc<MemoryBudget>) -> Arc<MemoryPart> {
        let mut parts = self.memory_parts.lock();
        parts.of(party, || MemoryPart::new(budget))
    }

    /// Changes the limits to `cap` flows, 1 or more, and up to `per_host` of each host.
    pub fn set_caps(&self, cap: u32, per_host: Option<u32>) {
        self.change(|keeper| {
            keeper.cap = cap.max(1);
            keeper.hosts.set_cap(per_host.unwrap_or(u32::MAX));
        });
    }

    /// Closes the gate for a while, since a resource was short.
    pub fn on_short(&self, resource: Resource) {
        self.change(|keeper| keeper.short[0] = true);
        self.counters.update(|stats| match resource {
            Resource::Descriptors => stats.descriptors_short += 1,
            Resource::Memory => stats.memory_short += 1,
        });
    }

    /// Closes the gate because the system refused a server leg although no resource was short. It
    /// opens once the system accepts legs again.
    pub fn on_leg_failed(&self, site: &str, err: &io::Error) {
        let warn = self.change(|keeper| {
            keeper.short[0] = true;
            keeper.is_to_warn(Instant::now())
        });
        self.counters.update(|stats| stats.legs_failed += 1);
        if warn {
            tracing::warn!(
                site,
                error = %err,
                "cannot open connections to servers: new flows pass unaccelerated meanwhile; \
                 check pepd's capabilities (`pepd check`) and the site's `congestion`"
            );
        }
    }

    /// Waits until a flow has ended or some time has passed.
    pub async fn relief(&self) {
        // Which of the two it was makes no difference.
        let _ = timeout(Self::RETRY, self.ended.notified()).await;
    }

    /// Updates the gate; call it about once a second. A shortage is forgotten after one to two
    /// calls, but not before the next flow fits into memory.
    pub fn on_tick(&self, next_flow_fits: bool) {
        self.change(|keeper| keeper.on_tick(next_flow_fits));
    }

    /// Refuses all further flows.
    pub fn stop(&self) {
        self.change(|keeper| keeper.stopped = true);
    }

    /// Returns whether pepd drains and admits no further flows.
    pub fn is_stopping(&self) -> bool {
        self.keeper.lock().stopped
    }

    /// Returns the maximum number of flows.
    pub fn cap(&self) -> u32 {
        self.keeper.lock().cap
    }

    /// Returns the maximum number of flows of one host, if lower than the total.
    pub fn cap_per_host(&self) -> Option<u32> {
        Some(self.keeper.lock().hosts.cap()).filter(|cap| *cap < u32::MAX)
    }

    /// Returns the hosts at their cap, each with its number of flows.
    pub fn hosts_at_cap(&self) -> Vec<(Host, u32)> {
        let keeper = self.keeper.lock();
        let hosts = keeper.hosts.at_cap().iter();
        hosts
            .map(|host| (*host, keeper.hosts.open(*host)))
            .collect()
    }

    /// Returns a receiver of the hosts at their cap. It starts with none, and is notified at each
    /// difference from what the subscriber knows.
    pub fn watch_hosts(&self) -> watch::Receiver<BTreeSet<Host>> {
        let mut hosts = self.hosts_at_cap.subscribe();
        if !hosts.borrow().is_empty() {
            hosts.mark_changed();
        }
        hosts
    }

    /// Returns the number of open flows.
    pub fn open_flows(&self) -> u32 {
        self.keeper.lock().open_flows
    }

    /// Waits until no flow is open.
    pub async fn all_ended(&self) {
        while self.open_flows() > 0 {
            self.relief().await;
        }
    }

    /// Returns a receiver of the gate's state. It starts with an open gate, and is notified at each
    /// difference from what the subscriber knows: flows may have closed the gate before the first
    /// subscription.
    pub fn gate(&self) -> watch::Receiver<Gate> {
        let mut gate = self.gate.subscribe();
        if *gate.borrow() == Gate::Closed {
            gate.mark_changed();
        }
        gate
    }

    fn change<T>(&self, change: impl FnOnce(&mut Gatekeeper) -> T) -> T {
        let mut keeper = self.keeper.lock();
        let result = change(&mut keeper);
        let gate = keeper.decide();
        // Sent under the lock, so that the last state sent is the last one decided.
        let changed = self
            .gate
            .send_if_modified(|sent| std::mem::replace(sent, gate) != gate);
        self.hosts_at_cap.send_if_modified(|sent| {
            let changed = sent != keeper.hosts.at_cap();
            if changed {
                sent.clone_from(keeper.hosts.at_cap());
            }
            changed
        });
        let stopped = keeper.stopped;
        drop(keeper);
        if changed && gate == Gate::Closed && !stopped {
            self.counters.update(|stats| stats.gate_closed += 1);
        }
        result
    }
}

/// Admission of one flow.
#[derive(Debug)]
pub struct Permit {
    admission: Arc<Admission>,
    site_counters: Arc<SiteCounters>,
    host: Option<Host>,
}

impl Drop for Permit {
    fn drop(&mut self) {
        let Self {
            admission,
            site_counters,
            host,
        } = self;
        site_counters.close();
        admission.counters.update(|stats| stats.flows_open -= 1);
        admission.change(|keeper| {
            keeper.open_flows -= 1;
            if let Some(host) = host {
                keeper.hosts.end(*host);
            }
        });
        admission.ended.notify_waiters();
    }
}

/// Returns the number of flows allowed by the configured limits and by `descriptors`, the
/// descriptors available to this process. `others` are those in use without flows and held SYNs; no
/// fewer than `limits.descriptors` are left to them.
pub fn flow_cap(config: &Config, descriptors: u64, others: u64) -> u32 {
    let limits = &config.limits;
    let room = descriptors.saturating_sub(others.max(limits.descriptors.into()));
    // The descriptors of a held SYN become those of its flow: when descriptors are scarce, flows
    // come first. If they still run short, the gate closes.
    let held = u64::from(config.held_most()).min(room / 3);
    let by_descriptors = (room - held) / 2;
    u32::try_from(by_descriptors)
        .unwrap_or(u32::MAX)
        .clamp(1, limits.flows)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keeper(open_flows: u32, gate: Gate) -> Gatekeeper {
        Gatekeeper {
            open_flows,
            gate,
            ..Gatekeeper::new(32)
        }
    }

    #[test]
    fn closes_at_the_cap_and_opens_below_it() {
        assert_eq!(keeper(31, Gate::Open).decide(), Gate::Open);
        assert_eq!(keeper(32, Gate::Open).decide(), Gate::Closed);
        assert_eq!(keeper(31, Gate::Closed).decide(), Gate::Closed);
        assert_eq!(keeper(30, Gate::Closed).decide(), Gate::Open);
    }

    #[test]
    fn a_cap_of_one_opens_when_there_is_no_flow() {
        let mut one = Gatekeeper::new(1);
        one.open_flows = 1;
        assert_eq!(one.decide(), Gate::Closed);
        one.open_flows = 0;
        assert_eq!(one.decide(), Gate::Open);
    }

    #[test]
    fn a_shortage_is_forgotten_after_two_ticks() {
        let mut keeper = keeper(0, Gate::Open);
        keeper.short[0] = true;
        assert_eq!(keeper.decide(), Gate::Closed);
        keeper.on_tick(true);
        assert_eq!(keeper.decide(), Gate::Closed);
        keeper.on_tick(true);
        assert_eq!(keeper.decide(), Gate::Open);
    }

    #[test]
    fn while_the_next_flow_does_not_fit_it_stays_closed() {
        let mut keeper = keeper(0, Gate::Open);
        for _ in 0..3 {
            keeper.on_tick(false);
            assert_eq!(keeper.decide(), Gate::Closed);
        }
        keeper.on_tick(true);
        assert_eq!(keeper.decide(), Gate::Closed);
        keeper.on_tick(true);
        assert_eq!(keeper.decide(), Gate::Open);
    }

    #[test]
    fn failed_legs_close_the_gate_and_are_logged_now_and_then() {
        let admission = Admission::new(10, Arc::default());
        let now = Instant::now();
        for after in [0, 1, 59] {
            let due = admission
                .keeper
                .lock()
                .is_to_warn(now + Duration::from_secs(after));
            assert_eq!(due, after == 0);
        }
        assert!(
            admission
                .keeper
                .lock()
                .is_to_warn(now + Duration::from_secs(60))
        );
        admission.on_leg_failed("a", &io::ErrorKind::PermissionDenied.into());
        assert_eq!(*admission.gate().borrow(), Gate::Closed);
        admission.on_tick(true);
        admission.on_tick(true);
        assert_eq!(*admission.gate().borrow(), Gate::Open);
    }

    #[test]
    fn permits_drive_the_gate_and_the_counters() {
        let counters = Arc::new(Counters::default());
        let admission = Admission::new(2, Arc::clone(&counters));
        let site_counters = Arc::<SiteCounters>::default();
        let gate = admission.gate();
        let permits = [
            admission.admit(&site_counters, None),
            admission.admit(&site_counters, None),
        ];
        assert_eq!(*gate.borrow(), Gate::Closed);
        let tallied = site_counters.now();
        assert_eq!((tallied.accepted, tallied.open), (2, 2));
        drop(permits);
        assert_eq!(site_counters.now().open, 0);
        assert_eq!(*gate.borrow(), Gate::Open);
        let stats = counters.snapshot();
        assert_eq!((stats.flows_accepted, stats.flows_open), (2, 0));
        assert_eq!((stats.flows_open_max, stats.gate_closed), (2, 1));
        admission.stop();
        assert_eq!(*gate.borrow(), Gate::Closed);
    }

    #[test]
    fn hosts_at_their_cap_are_reported_and_excess_flows_counted() {
        let counters = Arc::new(Counters::default());
        let (admission, site_counters) =
            (Admission::new(100, Arc::clone(&counters)), Arc::default());
        let [one, other] = [1, 2].map(|number| Host::from_address([10, 0, 0, number].into()));
        let admit = |host| admission.admit(&site_counters, Some(host));
        let mut flows: Vec<_> = (0..3).map(|_| admit(one)).collect();
        flows.push(admit(other));
        assert_eq!(admission.cap_per_host(), None);
        admission.set_caps(100, Some(4));
        let hosts = admission.watch_hosts();
        assert!(!hosts.has_changed().expect("open channel"));
        flows.extend([admit(one), admit(one)]);
        assert!(hosts.has_changed().expect("open channel"));
        assert!(admission.watch_hosts().has_changed().expect("open channel"));
        assert_eq!(admission.hosts_at_cap(), [(one, 5)]);
        let stats = counters.snapshot();
        assert_eq!((stats.host_cap_reached, stats.host_cap_exceeded), (1, 1));
        drop(flows);
        assert!(hosts.borrow().is_empty());
        assert_eq!(*admission.gate().borrow(), Gate::Open);
    }

    #[test]
    fn who_subscribes_late_learns_that_the_gate_is_closed() {
        let (admission, site_counters) = (Admission::new(1, Arc::default()), Arc::default());
        let news = |gate: watch::Receiver<Gate>| gate.has_changed().expect("open channel");
        assert!(!news(admission.gate()));
        let permit = admission.admit(&site_counters, None);
        assert!(news(admission.gate()));
        drop(permit);
        assert!(!news(admission.gate()));
    }

    #[test]
    fn descriptors_bound_the_cap() {
        let config = |syn: &str| {
            let text = format!("[intercept]\nlan = [\"eth0\"]\nsyn = \"{syn}\"\n");
            pep_core::config::parse(&text).expect("valid")
        };
        let (spoof, defer) = (config("spoof"), config("defer"));
        assert_eq!(flow_cap(&spoof, 20_000, 0), 8192);
        assert_eq!(flow_cap(&spoof, 1024, 10), (1024 - 64) / 2);
        assert_eq!(flow_cap(&spoof, 1024, 100), (1024 - 100) / 2);
        assert_eq!(flow_cap(&spoof, 10, 0), 1);
        assert_eq!(flow_cap(&defer, 10_000, 10), (10_000 - 2048 - 64) / 2);
        assert_eq!(flow_cap(&defer, 1024, 10), (1024 - 64) / 3);
        assert_eq!(flow_cap(&defer, 10, 0), 1);
    }

    #[test]
    fn a_lower_cap_holds_at_once() {
        let (admission, site_counters) = (Admission::new(100, Arc::default()), Arc::default());
        let _permits = [
            admission.admit(&site_counters, None),
            admission.admit(&site_counters, None),
        ];
        assert_eq!(*admission.gate().borrow(), Gate::Open);
        admission.set_caps(2, None);
        assert_eq!(*admission.gate().borrow(), Gate::Closed);
    }
}
