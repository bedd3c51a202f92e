//! Whether the link is there: who is asked, what follows, who is told. What follows is decided by
//! [`pep_core::outage`].
//!
//! ```text
//!   operator (admin socket) --.                         .--> new flows of sites: `while_down`
//!   interface (rtnetlink) -----+                        |
//!   gateway (ICMP echo) -------+--> LinkWatch, its task +--> rules: sites that are bypassed
//!   contact plan (file) -------+                        '--> tunnels: hints
//!   tunnels: who is heard ----'
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
    outage::{Knowledge, Now, Order, Source, State, Told, Witness, probing::Probing},
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

/// The clock of plans may be set, so the plan is looked at so often in any case.
const LOOK: Duration = Duration::from_secs(1);
/// What was sent before the link went away is heard for a round trip; where none is stated, for so long.
const ECHO: Duration = Duration::from_secs(2);

/// What is known of the link, for whoever asks.
#[derive(Debug)]
pub struct LinkWatch {
    knowledge: Mutex<Knowledge>,
    /// Where it is kept for the process to come.
    arena: Option<Arc<Arena>>,
    clock: Clock,
    /// For tunnels.
    told: watch::Sender<Told>,
    /// For new flows and rules: whether it is away.
    away: watch::Sender<bool>,
    /// Somebody has said something.
    said: Notify,
    /// Who is asked whether it is there, and whether it has not answered for long enough to say so.
    gateway: Option<IpAddr>,
    gateway_is_mute: AtomicBool,
    /// Whose flows the kernel forwards while the link is away.
    bypassing: BTreeSet<SiteId>,
}

impl LinkWatch {
    /// Of a configuration's link, with what is kept in the arena of what an operator has said to the process before, and of what that
    /// one knew. A plan that cannot be read is told of, and not followed until it can.
    pub fn new(config: &Config, arena: Option<Arc<Arena>>) -> Arc<Self> {
        let link = config.link.as_ref();
        let contacts = link.and_then(|link| link.contacts.as_ref());
        let contacts = contacts.and_then(|path| contacts::read_or_warn(path));
        let rtt = link.and_then(|link| link.rtt);
        let sites = config.sites.iter();
        let bypassing = sites.filter(|(_, site)| site.while_down == WhileDown::Bypass);
        let echo = rtt.map_or(ECHO, |rtt| 2 * rtt);
        let clock = Clock::new();
        let mut knowledge = Knowledge::new(clock.now(), contacts, echo);
        let carrier = link.and_then(|link| interface::is_up(&link.interface));
        if let Some(arena) = &arena {
            go_on(&mut knowledge, arena, (config, carrier), clock.now());
        }
        if carrier == Some(false) {
            knowledge.carrier(clock.now(), false);
        }
        tell(knowledge.poll(clock.now()));
        let (told, away) = (knowledge.told(), knowledge.is_away());
        let watch = Self {
            knowledge: Mutex::new(knowledge),
            arena,
            clock,
            told: watch::Sender::new(told),
            away: watch::Sender::new(away),
            said: Notify::new(),
            gateway: link.and_then(|link| link.gateway),
            gateway_is_mute: AtomicBool::new(false),
            bypassing: bypassing.map(|(id, _)| id).collect(),
        };
        watch.keep(&watch.knowledge.lock());
        Arc::new(watch)
    }

    /// Whether new flows have to do without it ([`Knowledge::is_away`]).
    pub fn is_away(&self) -> bool {
        *self.away.borrow()
    }

    /// The same, as it changes.
    pub fn away(&self) -> watch::Receiver<bool> {
        self.away.subscribe()
    }

    /// Waits until that is not so any more.
    pub(crate) async fn is_back(&self) {
        // The sender is ours.
        let _ = self.away().wait_for(|away| !away).await;
    }

    /// What tunnels are told of it ([`Knowledge::told`]), as it changes.
    pub fn told(&self) -> watch::Receiver<Told> {
        self.told.subscribe()
    }

    /// Sites whose flows the kernel is to forward now.
    pub fn bypassed(&self) -> BTreeSet<SiteId> {
        if self.is_away() {
            self.bypassing.clone()
        } else {
            BTreeSet::new()
        }
    }

    /// An operator says how it is, for that long or until further notice; `None`: others know better. Returns that for
    /// [the next process](Self::new).
    pub fn order(&self, up: Option<bool>, lasting: Option<Duration>) -> Option<Order> {
        let lasts = lasting.map(duration::format);
        match up {
            Some(up) => tracing::info!(up, lasts, "an operator says how the link is"),
            None => tracing::info!("an operator leaves to others how the link is"),
        }
        self.with(|knowledge, now| knowledge.order(now, up, lasting));
        self.said.notify_one();
        let until = lasting.map(|lasting| since_boot().saturating_add(lasting));
        up.map(|up| Order { up, until })
    }

    /// Some peer was heard so long ago (`Some`), or none is any more.
    pub fn hear(&self, ago: Option<Duration>) {
        self.with(|knowledge, now| {
            let at = now.steady.saturating_sub(ago.unwrap_or_default());
            knowledge.testify(Witness::Tunnel, ago.is_some(), at);
        });
    }

    /// No peer has a session any more: what was heard of them says nothing of the link now.
    pub fn hear_nothing(&self) {
        self.with(|knowledge, _| knowledge.withdraw(Witness::Tunnel));
    }

    /// Whether it has ever answered, a process before this one.
    fn gateway_has_answered(&self, gateway: IpAddr) -> bool {
        let arena = self.arena.as_ref();
        arena.is_some_and(|arena| arena.gateway_answers(gateway))
    }

    /// The gateway answers, or does not any more.
    fn probe(&self, up: bool) {
        if let (true, Some(arena), Some(gateway)) = (up, &self.arena, self.gateway) {
            arena.keep_gateway(gateway);
        }
        self.with(|knowledge, now| knowledge.testify(Witness::Probe, up, now.steady));
    }

    /// The gateway has never answered, or does by now. Told once.
    fn gateway_is_mute(&self, mute: bool) {
        if self.gateway_is_mute.swap(mute, Relaxed) == mute {
            return;
        }
        let gateway = self.gateway.map(tracing::field::display);
        if mute {
            tracing::warn!(
                gateway,
                questions = Probing::MUTE,
                "the gateway (`link.gateway`) has never answered, so its silence says nothing of the link: is the address \
                 right, is it reached through `link.interface`, does anything on the way drop ICMP echo?"
            );
        } else {
            tracing::info!(gateway, "the gateway answers now");
        }
    }

    /// For people and programs.
    pub fn report(&self) -> LinkReport {
        let report = self.with(|knowledge, now| LinkReport::of(knowledge, now));
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
                self.with(|knowledge, now| knowledge.replan(now, Some(contacts)));
            }
            let deadline = self.with(|knowledge, now| {
                let deadline = knowledge.deadline(now);
                deadline.map(|at| at.saturating_sub(now.steady))
            });
            let pause = deadline.map_or(LOOK, |pause| pause.min(LOOK));
            tokio::select! {
                () = sleep(pause.max(Duration::from_millis(1))) => {}
                () = self.said.notified() => {}
            }
        }
    }

    /// The interface has come or gone.
    fn carrier(&self, up: bool) {
        self.with(|knowledge, now| knowledge.carrier(now, up));
    }

    /// Changes what is known, and tells of what follows.
    fn with<T>(&self, change: impl FnOnce(&mut Knowledge, Now) -> T) -> T {
        let mut knowledge = self.knowledge.lock();
        let now = self.clock.now();
        let before = tell(knowledge.poll(now));
        let result = change(&mut knowledge, now);
        if tell(knowledge.poll(now)) || before {
            self.keep(&knowledge);
        }
        // Under the lock, so that the last one told is the last one known.
        tell_change(&self.told, knowledge.told());
        tell_change(&self.away, knowledge.is_away());
        result
    }

    /// For the process to come.
    fn keep(&self, knowledge: &Knowledge) {
        if let (Some(arena), Some(latest)) = (&self.arena, knowledge.latest(self.clock.now())) {
            arena.keep_outage(&latest, since_boot());
        }
    }
}

fn tell_change<T: Copy + PartialEq>(listeners: &watch::Sender<T>, now: T) {
    listeners.send_if_modified(|told| std::mem::replace(told, now) != now);
}

/// Goes on with what the process before knew.
fn go_on(
    knowledge: &mut Knowledge,
    arena: &Arena,
    (config, carrier): (&Config, Option<bool>),
    now: Now,
) {
    let link = config.link.as_ref();
    let past = arena.outages(since_boot());
    let order = Order::from_word(arena.order()).map(|order| {
        let left = order.until.map(|until| until.saturating_sub(since_boot()));
        tracing::info!(
            up = order.up,
            for_another = left.map(|left| duration::format(Duration::from_secs(left.as_secs()))),
            "what an operator said of the link counts on"
        );
        let until = left.map(|left| now.steady + left);
        Order { until, ..order }
    });
    knowledge.resume(now, past, order, carrier);
    // Who was not heard then is not yet.
    let answers = |gateway| arena.gateway_answers(gateway);
    let is_asked = link.and_then(|link| link.gateway).is_some_and(answers);
    let State { up, by, .. } = knowledge.state();
    match (up, by) {
        (false, Source::Probe) if is_asked => {
            knowledge.testify(Witness::Probe, false, now.steady);
        }
        (false, Source::Tunnel) if !config.peers.is_empty() => {
            knowledge.testify(Witness::Tunnel, false, now.steady);
        }
        _ => {}
    }
}

/// Whether there was something to tell.
fn tell(news: Option<State>) -> bool {
    match news {
        Some(State {
            up: true,
            by: Source::Nobody,
            ..
        }) => tracing::info!(
            "the link is back, as far as known: nobody says any more that it is away"
        ),
        Some(State { up: true, by, .. }) => tracing::info!(by = by.as_str(), "the link is back"),
        Some(State { by, .. }) => tracing::warn!(by = by.as_str(), "the link is away"),
        None => {}
    }
    news.is_some()
}

/// By the machine's clock that only goes forward: the same for all processes.
fn since_boot() -> Duration {
    let clock = nix::time::ClockId::CLOCK_BOOTTIME;
    clock.now().map(Duration::from).unwrap_or_default()
}

/// Its steady time began with the machine's, so that outages of before this process have their places in it.
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

/// A link for tests, of which nothing is known.
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
    async fn an_order_is_told_at_once_and_ends_by_itself() {
        let site = "[[site]]\nname = \"a\"\nwhile_down = \"bypass\"\n";
        let config = Arc::new(config(site));
        let link = LinkWatch::new(&config, None);
        let mut told = link.told();
        tokio::spawn(Arc::clone(&link).run(config));
        assert!(!link.is_away() && link.bypassed().is_empty());
        link.order(Some(false), Some(Duration::from_millis(20)));
        assert!(link.is_away() && *told.borrow_and_update() == Told::Off);
        assert_eq!(link.bypassed(), BTreeSet::from([SiteId(0)]));
        link.is_back().await;
        assert_eq!(link.report().outages, 1);
    }

    #[tokio::test]
    async fn tunnels_that_hear_nothing_are_not_told_so() {
        let link = unknown_link();
        link.hear(None);
        assert!(!link.report().up && !link.is_away());
        link.hear(Some(Duration::ZERO));
        assert!(link.report().up);
        link.carrier(false);
        assert!(!link.report().up && link.is_away());
    }

    #[tokio::test]
    async fn a_gateway_that_never_answers_is_told_of_and_means_nothing() {
        let link = LinkWatch::new(&config("gateway = \"192.0.2.1\"\n"), None);
        assert!(link.report().to_string().contains("gateway: 192.0.2.1\n"));
        link.gateway_is_mute(true);
        let told = link.report();
        assert!(told.up && told.gateway_never_answered, "{told:?}");
        let text = told.to_string();
        assert!(text.contains("192.0.2.1, has never answered: "), "{text}");
        link.gateway_is_mute(false);
        assert!(!link.report().gateway_never_answered);
    }

    #[tokio::test]
    async fn a_gateway_that_is_silent_is_told_to_flows_and_not_to_tunnels() {
        let link = unknown_link();
        link.probe(false);
        assert!(link.is_away() && *link.told().borrow() == Told::There);
        link.hear(Some(Duration::ZERO));
        assert!(!link.is_away(), "something is heard from beyond the link");
    }
}
