//! State of the link: its sources, its effects and its subscribers. [`pep_core::outage`] makes the
//! decisions.
//!
//! ```text
//!   operator (admin socket) --.                         .--> new flows of sites: `while_down`
//!   interface (rtnetlink) -----+                        |
//!   gateway (ICMP echo) -------+--> LinkWatch, its task +--> rules: sites that are bypassed
//!   contact plan (file) -------+                        '--> tunnels: hints
//!   tunnels: peers heard ------+
//!   flows: all unanswered -----'
//! ```

mod contacts;
mod gateway;
mod interface;

use std::{
    collections::BTreeSet,
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, SystemTime},
};

use parking_lot::Mutex;
use pep_core::{
    config::Config,
    outage::{
        Detector, LinkMonitor, Now, Order, Source, State, TunnelLink,
        flows::{Flows, Seen, Shown},
        probing::Probing,
    },
    site::{SiteId, WhileDown},
};
use pepd_api::link::LinkReport;
use tokio::{
    sync::{Notify, watch},
    time::{Instant, sleep},
};
use units::duration;

use crate::arena::Arena;
use contacts::ContactsFile;
pub use contacts::{ContactsError, read as read_contacts};

/// The clock of plans may be set, so the plan is looked at this often in any case.
const LOOK: Duration = Duration::from_secs(1);
/// Time for which a link's routes, addresses and next hops may be missing once it is up again.
const SETTLES: Duration = Duration::from_secs(60);
/// Time after which packets sent before an outage still arrive: a round trip, or this value if none
/// is configured.
const ECHO: Duration = Duration::from_secs(2);

/// Known state of the link, shared by all users.
#[derive(Debug)]
pub struct LinkWatch {
    monitor: Mutex<LinkMonitor>,
    flows: Mutex<Flows>,
    /// Storage of the state for the next process.
    arena: Option<Arc<Arena>>,
    clock: Clock,
    /// State for tunnels.
    reported: watch::Sender<TunnelLink>,
    /// State for new flows and rules: true while the link is down.
    is_down: watch::Sender<bool>,
    /// Time at which new flows last had to do without the link.
    last_down: Mutex<Option<Duration>>,
    /// Notified when a source has reported.
    changed: Notify,
    /// Gateway to probe; the second field is true once it has been silent for long enough to be
    /// called mute.
    gateway: Option<IpAddr>,
    gateway_is_mute: AtomicBool,
    /// Sites whose flows the kernel forwards while the link is down.
    bypassing: BTreeSet<SiteId>,
}

impl LinkWatch {
    /// Creates the watch of a configuration's link. It restores from the arena the operator's last
    /// order and the state known to the predecessor. An unreadable plan is logged, and ignored
    /// until it can be read.
    pub fn new(config: &Config, arena: Option<Arc<Arena>>) -> Arc<Self> {
        let link = config.link.as_ref();
        let contacts = link.and_then(|link| link.contacts.as_ref());
        let contacts = contacts.and_then(|path| contacts::read_or_warn(path));
        let rtt = link.and_then(|link| link.rtt);
        let sites = config.sites.iter();
        let bypassing = sites.filter(|(_, site)| site.while_down == WhileDown::Bypass);
        let echo = rtt.map_or(ECHO, |rtt| 2 * rtt);
        let clock = Clock::new();
        let mut monitor = LinkMonitor::new(clock.now(), contacts, echo);
        let mut flows = Flows::default();
        let carrier = link.and_then(|link| interface::is_up(&link.interface));
        if let Some(arena) = &arena {
            restore(
                &mut monitor,
                &mut flows,
                arena,
                (config, carrier),
                clock.now(),
            );
        }
        if carrier == Some(false) {
            monitor.carrier(clock.now(), false);
        }
        log_news(monitor.poll(clock.now()));
        let (reported, is_down) = (monitor.tunnel_link(), monitor.is_down());
        let watch = Self {
            monitor: Mutex::new(monitor),
            flows: Mutex::new(flows),
            arena,
            reported: watch::Sender::new(reported),
            is_down: watch::Sender::new(is_down),
            last_down: Mutex::new(is_down.then(|| clock.now().steady)),
            clock,
            changed: Notify::new(),
            gateway: link.and_then(|link| link.gateway),
            gateway_is_mute: AtomicBool::new(false),
            bypassing: bypassing.map(|(id, _)| id).collect(),
        };
        watch.keep(&watch.monitor.lock());
        Arc::new(watch)
    }

    /// Returns whether new flows must do without the link ([`LinkMonitor::is_down`]).
    pub fn is_down(&self) -> bool {
        *self.is_down.borrow()
    }

    /// Returns whether any source reports the link down, also one that is not sufficient for new
    /// flows.
    pub(crate) fn is_known_down(&self) -> bool {
        !self.monitor.lock().state().up
    }

    /// Returns a receiver of [`is_down`](Self::is_down).
    pub fn down(&self) -> watch::Receiver<bool> {
        self.is_down.subscribe()
    }

    /// Returns whether new flows must do without the link, or had to until a minute ago: its routes
    /// and next hops may return later than the link itself.
    pub fn is_unsettled(&self) -> bool {
        let is_new = |at: Duration| self.clock.now().steady.saturating_sub(at) < SETTLES;
        self.is_down() || self.last_down.lock().is_some_and(is_new)
    }

    /// Waits until the link is up.
    pub(crate) async fn wait_until_up(&self) {
        // Never fails: this struct owns the sender.
        let _ = self.down().wait_for(|is_down| !is_down).await;
    }

    /// Returns a receiver of the state reported to tunnels ([`LinkMonitor::tunnel_link`]).
    pub fn tunnel_link(&self) -> watch::Receiver<TunnelLink> {
        self.reported.subscribe()
    }

    /// Returns the sites whose flows the kernel forwards now.
    pub fn bypassed(&self) -> BTreeSet<SiteId> {
        if self.is_down() {
            self.bypassing.clone()
        } else {
            BTreeSet::new()
        }
    }

    /// Sets the operator's order for `lasting`, or until further notice; `None` withdraws it.
    /// Returns the order for [the next process](Self::new).
    pub fn order(&self, up: Option<bool>, lasting: Option<Duration>) -> Option<Order> {
        let lasts = lasting.map(duration::format);
        match up {
            Some(up) => tracing::info!(up, lasts, "state of the link set by an operator"),
            None => tracing::info!("state of the link no longer set by an operator"),
        }
        self.with(|monitor, now| monitor.order(now, up, lasting));
        self.changed.notify_one();
        let until = lasting.map(|lasting| since_boot().saturating_add(lasting));
        up.map(|up| Order { up, until })
    }

    /// Notes when a peer was last heard; `None` if none is heard any more.
    pub fn hear(&self, ago: Option<Duration>) {
        self.with(|monitor, now| {
            let at = now.steady.saturating_sub(ago.unwrap_or_default());
            monitor.testify(Detector::Tunnel, ago.is_some(), at);
        });
    }

    /// Notes that no peer has a session: when they were last heard no longer reflects the link.
    pub fn hear_nothing(&self) {
        self.with(|monitor, _| monitor.withdraw(Detector::Tunnel));
    }

    /// Notes what a worker sees of the flows over the link.
    pub(crate) fn see(&self, worker: usize, seen: Seen) {
        let now = self.clock.now().steady;
        let shown = self.flows.lock().note(worker, now, seen);
        self.show(shown);
    }

    /// Returns the time since something came over the link, as far as split flows show it.
    pub(crate) fn heard_ago(&self) -> Option<Duration> {
        let now = self.clock.now().steady;
        self.flows.lock().heard_ago(now)
    }

    fn show(&self, shown: Shown) {
        match shown {
            Shown::Silent => {
                self.with(|monitor, now| monitor.testify(Detector::Flows, false, now.steady));
            }
            Shown::Nothing => self.with(|monitor, _| monitor.forget(Detector::Flows)),
            Shown::Same => {}
        }
    }

    /// Returns whether the gateway has ever answered a predecessor.
    fn gateway_has_answered(&self, gateway: IpAddr) -> bool {
        let arena = self.arena.as_ref();
        arena.is_some_and(|arena| arena.gateway_answers(gateway))
    }

    /// Notes whether the gateway answers.
    fn probe(&self, up: bool) {
        if let (true, Some(arena), Some(gateway)) = (up, &self.arena, self.gateway) {
            arena.keep_gateway(gateway);
        }
        self.with(|monitor, now| monitor.testify(Detector::Probe, up, now.steady));
    }

    /// Notes whether the gateway has never answered. Logs each change once.
    fn gateway_is_mute(&self, mute: bool) {
        if self.gateway_is_mute.swap(mute, Relaxed) == mute {
            return;
        }
        let gateway = self.gateway.map(tracing::field::display);
        if mute {
            tracing::warn!(
                gateway,
                probes = Probing::MUTE,
                "gateway never answered a ping, so pepd does not detect outages by it: check `link.gateway`, \
                 `link.interface` and filters of ICMP echo"
            );
        } else {
            tracing::info!(gateway, "gateway answers");
        }
    }

    /// Returns the state for the status command and the API.
    pub fn report(&self) -> LinkReport {
        let report = self.with(|monitor, now| LinkReport::from_monitor(monitor, now));
        LinkReport {
            gateway: self.gateway.map(|gateway| gateway.to_string()),
            gateway_never_answered: self.gateway_is_mute.load(Relaxed),
            ..report
        }
    }

    /// Follows time, plan and interface for as long as it is polled.
    pub async fn run(self: Arc<Self>, config: Arc<Config>) {
        let Some(link) = &config.link else {
            return self.follow_time(None).await;
        };
        let mut file = link.contacts.clone().map(ContactsFile::new);
        let gateway = async {
            if let Some(gateway) = link.gateway {
                gateway::watch(&self, link, gateway).await;
            }
        };
        tokio::join!(
            self.follow_time(file.as_mut()),
            interface::watch(&self, &link.interface),
            gateway
        );
    }

    async fn follow_time(&self, mut file: Option<&mut ContactsFile>) {
        loop {
            if let Some(contacts) = file.as_mut().and_then(|file| file.changed()) {
                self.with(|monitor, now| monitor.replan(now, Some(contacts)));
            }
            let shown = self.flows.lock().look(self.clock.now().steady);
            self.show(shown);
            let deadline = self.with(|monitor, now| {
                let deadline = monitor.deadline(now);
                deadline.map(|at| at.saturating_sub(now.steady))
            });
            let pause = deadline.map_or(LOOK, |pause| pause.min(LOOK));
            tokio::select! {
                () = sleep(pause.max(Duration::from_millis(1))) => {}
                () = self.changed.notified() => {}
            }
        }
    }

    /// Notes that the interface has gone up or down.
    fn carrier(&self, up: bool) {
        self.with(|monitor, now| monitor.carrier(now, up));
    }

    /// Changes the state and publishes the effects.
    fn with<T>(&self, change: impl FnOnce(&mut LinkMonitor, Now) -> T) -> T {
        let mut monitor = self.monitor.lock();
        let now = self.clock.now();
        let before = log_news(monitor.poll(now));
        let result = change(&mut monitor, now);
        if log_news(monitor.poll(now)) || before {
            self.keep(&monitor);
        }
        // Under the lock, so that the last state sent is the last one known.
        log_change(&self.reported, monitor.tunnel_link());
        if self.is_down() || monitor.is_down() {
            *self.last_down.lock() = Some(now.steady);
        }
        log_change(&self.is_down, monitor.is_down());
        result
    }

    /// Stores the latest outage for the next process.
    fn keep(&self, monitor: &LinkMonitor) {
        if let (Some(arena), Some(latest)) = (&self.arena, monitor.latest(self.clock.now())) {
            arena.keep_outage(&latest, since_boot());
        }
    }
}

fn log_change<T: Copy + PartialEq>(listeners: &watch::Sender<T>, now: T) {
    listeners.send_if_modified(|reported| std::mem::replace(reported, now) != now);
}

/// Continues from the predecessor's state.
fn restore(
    monitor: &mut LinkMonitor,
    flows: &mut Flows,
    arena: &Arena,
    (config, carrier): (&Config, Option<bool>),
    now: Now,
) {
    let link = config.link.as_ref();
    let past = arena.outages(since_boot());
    let order = Order::from_word(arena.order());
    let order = order.filter(|order| order.until.is_none_or(|until| until > since_boot()));
    let order = order.map(|order| {
        let left = order.until.map(|until| until.saturating_sub(since_boot()));
        tracing::info!(
            up = order.up,
            remaining = left.map(|left| duration::format(Duration::from_secs(left.as_secs()))),
            "state of the link set by an operator before the restart still applies"
        );
        let until = left.map(|left| now.steady + left);
        Order { until, ..order }
    });
    monitor.resume(now, past, order, carrier);
    // A gateway that had not answered then has not answered yet.
    let answers = |gateway| arena.gateway_answers(gateway);
    let is_asked = link.and_then(|link| link.gateway).is_some_and(answers);
    let State { up, by, .. } = monitor.state();
    match (up, by) {
        (false, Source::Probe) if is_asked => {
            monitor.testify(Detector::Probe, false, now.steady);
        }
        (false, Source::Tunnel) if !config.peers.is_empty() => {
            monitor.testify(Detector::Tunnel, false, now.steady);
        }
        (false, Source::Flows) => {
            monitor.testify(Detector::Flows, false, now.steady);
            flows.resume(now.steady);
        }
        _ => {}
    }
}

/// Logs a change of the link's state. Returns whether there was one.
fn log_news(news: Option<State>) -> bool {
    match news {
        Some(State {
            up: true,
            by: Source::Assumed,
            ..
        }) => tracing::info!("link up (assumed): no remaining source reports it down"),
        Some(State {
            up: false,
            by: Source::Flows,
            ..
        }) => tracing::warn!(
            by = "flows",
            "link down: no flow over it gets an answer; with `link.gateway` pepd can tell a silent \
             link from silent servers"
        ),
        Some(State { up: true, by, .. }) => tracing::info!(by = reporter(by), "link up"),
        Some(State { by, .. }) => tracing::warn!(by = reporter(by), "link down"),
        None => {}
    }
    news.is_some()
}

/// Returns the name of a source in the log, where `carrier` is that of a tunnel.
fn reporter(by: Source) -> &'static str {
    match by {
        Source::Carrier => "interface",
        _ => by.as_str(),
    }
}

/// Returns the machine's monotonic clock, the same for all processes.
fn since_boot() -> Duration {
    let clock = nix::time::ClockId::CLOCK_BOOTTIME;
    clock.now().map(Duration::from).unwrap_or_default()
}

/// Clock whose steady time starts at boot, so that it can place outages before this process.
#[derive(Debug)]
struct Clock {
    began: Instant,
    at: Duration,
}

impl Clock {
    fn new() -> Self {
        Self {
            began: Instant::now(),
            at: since_boot(),
        }
    }

    fn now(&self) -> Now {
        let wall = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        Now {
            steady: self.at + self.began.elapsed(),
            wall: wall.unwrap_or_default(),
        }
    }
}

/// Returns a link for tests, in an unknown state.
#[cfg(any(test, feature = "testing"))]
pub fn unknown_link() -> Arc<LinkWatch> {
    let text = "[intercept]\nlan = [\"eth0\"]\n[link]\ninterface = \"lo\"\n";
    LinkWatch::new(&pep_core::config::parse(text).expect("valid"), None)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(more: &str) -> Config {
        let text = format!("[intercept]\nlan = [\"eth0\"]\n[link]\ninterface = \"lo\"\n{more}");
        pep_core::config::parse(&text).expect("valid")
    }

    #[tokio::test]
    async fn an_order_applies_at_once_and_expires() {
        let site = "[[site]]\nname = \"a\"\nwhile_down = \"bypass\"\n";
        let config = Arc::new(config(site));
        let link = LinkWatch::new(&config, None);
        let mut reported = link.tunnel_link();
        tokio::spawn(Arc::clone(&link).run(config));
        assert!(!link.is_down() && link.bypassed().is_empty());
        link.order(Some(false), Some(Duration::from_millis(20)));
        assert!(link.is_down() && *reported.borrow_and_update() == TunnelLink::Off);
        assert_eq!(link.bypassed(), BTreeSet::from([SiteId(0)]));
        link.wait_until_up().await;
        assert_eq!(link.report().outages, 1);
    }

    #[tokio::test]
    async fn silence_of_tunnels_is_not_reported_to_them() {
        let link = unknown_link();
        link.hear(None);
        assert!(!link.report().up && !link.is_down());
        link.hear(Some(Duration::ZERO));
        assert!(link.report().up);
        link.carrier(false);
        assert!(!link.report().up && link.is_down());
    }

    #[tokio::test]
    async fn a_gateway_that_never_answers_is_reported_and_ignored() {
        let link = LinkWatch::new(&config("gateway = \"192.0.2.1\"\n"), None);
        assert!(link.report().to_string().contains("gateway: 192.0.2.1\n"));
        link.gateway_is_mute(true);
        let reported = link.report();
        assert!(
            reported.up && reported.gateway_never_answered,
            "{reported:?}"
        );
        let text = reported.to_string();
        assert!(text.contains("192.0.2.1, never answered: "), "{text}");
        link.gateway_is_mute(false);
        assert!(!link.report().gateway_never_answered);
    }

    #[tokio::test]
    async fn a_silent_gateway_is_reported_to_flows_and_not_to_tunnels() {
        let link = unknown_link();
        link.probe(false);
        assert!(link.is_down() && *link.tunnel_link().borrow() == TunnelLink::Up);
        link.hear(Some(Duration::ZERO));
        assert!(!link.is_down(), "a peer beyond the link was heard");
    }
}
