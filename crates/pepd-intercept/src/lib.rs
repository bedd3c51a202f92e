//! Interception of connections: packet filter rules, routes and TUN devices.
//!
//! - [`rules`]: contents of the table; [`nft`] and [`iptables`]: its two forms, and the programs
//!   that install them; [`filter`]: choice of the program
//! - [`route`]: policy rules and routes
//! - [`defer`]: held SYNs
//! - [`neigh`]: next hops that do not answer
//! - [`tun`]: devices into which held SYNs are routed
//! - `bypass`: temporary bypass of a site
//! - `clear_hold`: holds on packets that must not leave outside of a tunnel
//! - `forwarding`: SYNs that this machine does not forward
//! - `full_hosts`: bypass of hosts that have reached their flow limit
//! - [`hops`]: routes with several next hops
//! - [`lost`]: bypass of sites whose redirected SYNs do not arrive
//! - [`other_marks`]: marks of other programs, which server legs copy; `near`: networks that hosts
//!   reach past tunnels
//! - [`upkeep`]: repair of what other programs have removed
//! - [`setup`]: checks before the installation, and diagnosis of a failed one
//!
//! `docs/interception.md` has a diagram.
#![deny(unsafe_code)]

mod bypass;
mod clear_hold;
pub mod defer;
pub mod filter;
mod forwarding;
mod full_hosts;
mod hop;
pub mod hops;
mod icmp;
pub mod iptables;
mod lan;
pub mod lost;
mod midway;
mod near;
pub mod neigh;
pub mod netlink;
pub mod nft;
pub mod other_marks;
pub mod program;
mod raw;
mod render;
pub mod route;
pub mod rule_watch;
pub mod rules;
pub mod setup;
mod time_wait;
pub mod tun;
pub mod upkeep;
mod watcher;

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{self, ErrorKind},
    sync::Arc,
    time::Duration,
};

use pep_core::{config::Config, hosts::Host, site::Clear};
use pepd_sys::{
    gate::Gate, leg::SiteRuntime, marks::MarkSet, packet_log::PacketLog, stats::Counters,
};
use tracing::{debug, warn};

use bypass::Bypass;
pub use bypass::LeftAlone;
use clear_hold::ClearHold;
pub use clear_hold::HoldState;
use defer::DeferTask;
use filter::{Filter, FilterError};
use forwarding::Forwarding;
pub use forwarding::Obstacles;
use hops::SeveralHops;
use lost::Stops;
pub use midway::MidwayTask;
use near::Near;
use netlink::Netlink;
use nft::{Nft, NftError};
use other_marks::OtherMarks;
pub use render::{Format, render};
use route::Routing;
use rules::{CopyTo, Counter, Features, Lan, LaneKind, Ruleset, SYN_BYTES};
pub use setup::SetupError as InterceptError;
use tun::Tun;
pub use tun::{PacketTun, PacketTuns};
use upkeep::Upkeep;

/// Installed rules, routes and TUN devices.
///
/// Dropping it closes the TUN devices but leaves rules and routes: call [`remove`](Self::remove).
/// Even leftovers let traffic pass once the listeners are closed, and the next
/// [`install`](Self::install) replaces them.
#[derive(Debug)]
pub struct Interception {
    filter: Filter,
    marks: MarkSet,
    netlink: Netlink,
    routing: Routing,
    ipv6: bool,
    tuns: Vec<(Lan, Tun)>,
    packet_tuns: PacketTuns,
    /// Numbers of TUNs as [`Routing`] counts them, and their interfaces' indices.
    tun_indices: Vec<(usize, u32)>,
    /// Names of all TUNs, with the lengths of their queues.
    tun_queues: Vec<(String, u32)>,
    /// Installed rules.
    ruleset: Ruleset,
    bypass: Bypass,
    hosts_at_cap: BTreeSet<Host>,
    /// Networks of this machine, where some are exempt from tunnels.
    near: Option<Near>,
    /// True if pepd answers some flows at once: their SYNs must reach the listener.
    answers_at_once: bool,
    /// SYNs that do not go to pepd.
    stops: Stops,
    /// State of forwarding, where SYNs depend on it.
    forwarding: Option<Forwarding>,
    clear_hold: Option<ClearHold>,
    /// Interfaces that share routes with the link, or with other uplinks.
    hops: hops::Cache,
    several_hops: SeveralHops,
    upkeep: Upkeep,
}

impl Interception {
    /// Installs the holds on packets of sites with `clear = "never"`. Call it before anything else:
    /// from then on none of their packets leaves outside of the tunnel. They outlive pepd.
    ///
    /// # Errors
    /// When nft or the kernel rejects them.
    pub async fn hold_clear(config: &Config) -> Result<(), InterceptError> {
        let Some(mut hold) = ClearHold::new(config) else {
            return Ok(());
        };
        hold.install(&Netlink::connect()?).await?;
        let sites = config.sites.iter().map(|(_, site)| site);
        let never = sites.filter(|site| site.clear == Clear::Never);
        let names: Vec<_> = never.map(|site| site.name.as_str()).collect();
        tracing::info!(
            sites = %names.join(", "),
            "packets of these sites leave by their tunnel only, also after pepd has ended (`clear`); `pepd cleanup --lift` ends that"
        );
        Ok(())
    }

    /// Returns the state of these holds; `None` if no site has `clear = "never"`.
    ///
    /// # Errors
    /// When the kernel does not answer.
    pub async fn clear_state(config: &Config) -> Result<Option<HoldState>, InterceptError> {
        let Some(hold) = ClearHold::new(config) else {
            return Ok(None);
        };
        hold.state(&Netlink::connect()?).await.map(Some)
    }

    /// Removes these holds, also those of an earlier configuration with the same table and marks.
    ///
    /// # Errors
    /// When nft cannot be run, or the kernel does not answer.
    pub async fn lift_clear(config: &Config) -> Result<(), InterceptError> {
        clear_hold::lift(config, &Netlink::connect()?).await
    }

    /// Removes rules that a killed daemon may have left. Call it before opening listeners: the old
    /// rules would match for them again, also for packets of connections that the kernel has
    /// forwarded meanwhile.
    ///
    /// # Errors
    /// When the program that has installed them cannot be run.
    pub async fn clear_leftovers(config: &Config) -> Result<(), InterceptError> {
        filter::remove_leftovers(config).await
    }

    /// Returns true if rules of this configuration are installed.
    ///
    /// # Errors
    /// When no descriptors are left.
    pub fn is_installed(config: &Config) -> io::Result<bool> {
        filter::is_installed(config)
    }

    /// Removes rules and routes that a dead process has left.
    ///
    /// # Errors
    /// When nft or iptables cannot be run, or the kernel does not answer.
    pub async fn clear(config: &Config) -> Result<(), InterceptError> {
        let cleared = Self::clear_leftovers(config).await;
        let families = Features::FULL.families();
        let routing = Routing::new(config, families);
        routing.remove(&Netlink::connect()?).await?;
        cleared
    }

    /// Installs everything for the configuration, and replaces leftovers of an earlier run. The
    /// listeners must be open: they get connections from now on. In a takeover (`succeeds`), the
    /// old rules stay until the new ones are installed: otherwise the kernel would forward packets
    /// of open flows and answer them with resets. Where `obstacles` are, and the configuration
    /// leaves it open, rules in the forward hook do not hold.
    ///
    /// # Errors
    /// When the kernel, nft or iptables lacks a feature, or a setting of the machine prevents
    /// interception.
    /// Nothing stays installed then.
    pub async fn install(
        config: &Config,
        succeeds: bool,
        obstacles: Arc<Obstacles>,
    ) -> Result<Self, InterceptError> {
        let filter = Filter::choose(config).await;
        let filter = filter.map_err(cannot("redirect connections"))?;
        let ipv6 = setup::has_ipv6();
        for warning in setup::check_sysctls(config)? {
            warn!("{warning}");
        }
        let features = Features {
            ipv6,
            ..Features::FULL
        };
        let netlink = Netlink::connect()?;
        nft::draw_marks_seed();
        let mut interception = Self {
            filter,
            marks: MarkSet::new(config.intercept.marks),
            netlink,
            routing: Routing::new(config, features.families()),
            ipv6,
            tuns: Vec::new(),
            packet_tuns: PacketTuns::default(),
            tun_indices: Vec::new(),
            tun_queues: Vec::new(),
            ruleset: Ruleset::new(config, features),
            bypass: Bypass::default(),
            hosts_at_cap: BTreeSet::new(),
            near: None,
            answers_at_once: setup::answers_at_once(config),
            stops: Stops::default(),
            forwarding: Forwarding::new(config, obstacles),
            clear_hold: ClearHold::new(config),
            hops: hops::Cache::default(),
            several_hops: SeveralHops::default(),
            upkeep: Upkeep::new()?,
        };
        match interception.build(config, features, succeeds).await {
            Ok(()) => Ok(interception),
            Err(err) => {
                interception.undo().await;
                Err(err)
            }
        }
    }

    async fn build(
        &mut self,
        config: &Config,
        features: Features,
        succeeds: bool,
    ) -> Result<(), InterceptError> {
        if !succeeds {
            self.routing.remove(&self.netlink).await?;
            if let Some(table) = self.routing.table_of_others(&self.netlink).await? {
                return Err(InterceptError::TableInUse(table));
            }
        }
        self.create_tuns(config, features).await?;
        self.create_packet_tuns(config, features).await?;
        for &family in self.routing.families() {
            let tuns = &self.tun_indices;
            self.routing.install(&self.netlink, family, tuns).await?;
        }
        if succeeds {
            self.routing.remove_surplus(&self.netlink).await?;
        }
        self.install_rules(config, features).await?;
        self.filter.remove_others(config).await?;
        if self.clear_hold.is_none() {
            clear_hold::lift(config, &self.netlink).await?;
        }
        self.look_at_forwarding().await?;
        self.look_at_hops().await?;
        self.look_at_networks().await
    }

    async fn create_tuns(
        &mut self,
        config: &Config,
        features: Features,
    ) -> Result<(), InterceptError> {
        if !matches!(self.filter, Filter::Nft(_)) && config.obeys_forward() {
            self.ignore_forward(false, InterceptError::ObeysByNft)?;
            if !config.defers() {
                return Ok(());
            }
        }
        for (number, lan) in rules::lans(config).into_iter().enumerate() {
            let Some(name) = &lan.tun else { continue };
            let tun = match create_tun(name, features.ipv6).await {
                Ok(tun) => tun,
                Err(err) => return self.ignore_forward(config.defers(), err),
            };
            let index = self.set_up(name, netlink::HELD_QUEUE).await?;
            self.tun_indices.push((number, index));
            self.tuns.push((lan, tun));
        }
        Ok(())
    }

    /// Sets a TUN up, and remembers it for upkeep. Returns its interface's index.
    async fn set_up(&mut self, name: &str, queue: u32) -> Result<u32, InterceptError> {
        let index = self.netlink.set_up(name, queue).await?;
        self.tun_queues.push((name.to_owned(), queue));
        Ok(index)
    }

    async fn install_rules(
        &mut self,
        config: &Config,
        features: Features,
    ) -> Result<(), InterceptError> {
        match &mut self.filter {
            Filter::Nft(table) => {
                let nft = table.nft.clone();
                self.install_table(&nft, config, features).await?;
            }
            Filter::Iptables(tables) => {
                let installed = tables.install(config, features.ipv6).await;
                let installed = installed.map_err(FilterError::from);
                let ruleset = installed.map_err(cannot("install the rules of iptables"))?;
                self.adopt(config, ruleset);
                let limits = iptables::limits(config).join("; ");
                warn!("rules of iptables have limitations (nft has none of them): {limits}");
            }
            Filter::Manual(_) => {
                let ruleset = Ruleset::new(config, features);
                self.adopt(config, ruleset);
                self.near = None;
                warn!(
                    "the operator installs the rules (`intercept.rules`): {}; `pepd check` compares them with `pepd rules`",
                    filter::MANUAL_LIMITS
                );
            }
        }
        if !self.filter.is_manual() {
            tracing::info!(rules = %self.filter.name(), "the rules of the packet filter are in place");
        }
        Ok(())
    }

    async fn install_table(
        &mut self,
        nft: &Nft,
        config: &Config,
        features: Features,
    ) -> Result<(), InterceptError> {
        let Err(refused) = self.try_table(config, features).await else {
            return Ok(());
        };
        let can = setup::diagnose(nft, features, config).await?;
        let cannot = cannot("install the nft table");
        if can == features {
            return Err(cannot(refused.into()));
        }
        for lost in setup::degradations(can) {
            warn!("{lost}");
        }
        let installed = self.try_table(config, can).await;
        installed.map_err(|err| cannot(err.into()))
    }

    async fn try_table(&mut self, config: &Config, features: Features) -> Result<(), NftError> {
        self.adopt(config, Ruleset::new(config, features));
        let Filter::Nft(table) = &mut self.filter else {
            return Ok(());
        };
        table.wildcard = features.wildcard;
        table.install(&self.ruleset).await
    }

    /// Sets the parts that depend on the installed rules.
    fn adopt(&mut self, config: &Config, ruleset: Ruleset) {
        self.near = (!ruleset.near.is_empty()).then(|| Near::new(config));
        self.bypass = Bypass::new(config, &ruleset);
        self.ruleset = ruleset;
    }

    /// Returns the name of the program that has installed the rules.
    pub fn rules_by(&self) -> String {
        self.filter.name()
    }

    /// Returns the marks of other programs for server legs, if the rules keep them.
    pub fn other_marks(&self, config: &Config) -> Option<OtherMarks> {
        let marks = || OtherMarks::new(config, self.several_hops.clone());
        self.filter.keeps_marks().then(marks)
    }

    /// Returns true if pepd can let new flows pass; operators' own rules may lack the gate.
    pub fn has_gate(&self) -> bool {
        self.filter.has_gate()
    }

    /// Signals to rules of iptables that pepd still runs; call it every second.
    pub fn signal(&self) {
        self.filter.signal();
    }

    /// Returns the task that takes SYNs, if a site of the configuration defers or rules in the
    /// forward hook apply. Call it once, within the tokio runtime.
    ///
    /// # Errors
    /// When no descriptors are left.
    pub async fn defer_task(
        &mut self,
        config: &Arc<Config>,
        sites: &[Arc<SiteRuntime>],
    ) -> Result<Option<DeferTask>, InterceptError> {
        if self.tuns.is_empty() {
            return Ok(None);
        }
        let tuns = std::mem::take(&mut self.tuns);
        let group = CopyTo::permitted(config);
        let obeys = self.ruleset.copies_to(group);
        let log = match obeys.then(|| PacketLog::open(group, SYN_BYTES)).transpose() {
            Ok(log) => log,
            Err(err) => {
                self.ignore_forward(false, InterceptError::Log { group, err })?;
                self.look_at_forwarding().await?;
                None
            }
        };
        let marks = OtherMarks::new(config, self.several_hops.clone());
        let task = DeferTask::new((Arc::clone(config), marks), sites, tuns, log, self.ipv6);
        task.map(Some).map_err(InterceptError::Sockets)
    }

    /// Returns the task that resets connections which another pepd has split; `None` if such
    /// connections pass, with a warning if pepd cannot reset them. Call it once, within the tokio
    /// runtime.
    pub fn midway_task(&self, config: &Config, counters: &Arc<Counters>) -> Option<MidwayTask> {
        let copies = self.ruleset.copies_to(CopyTo::midway(config));
        copies.then(|| MidwayTask::or_warn(config, self.ipv6, counters))?
    }

    async fn create_packet_tuns(
        &mut self,
        config: &Config,
        features: Features,
    ) -> Result<(), InterceptError> {
        let first = config.intercept.lan.len();
        for (number, lane) in rules::lanes(config).into_iter().enumerate() {
            let tun = create_tun(&lane.tun, features.ipv6).await?;
            if lane.join {
                tun.deliver_joined();
            } else {
                tun.one_by_one();
            }
            let queue = netlink::PACKET_QUEUE;
            let index = self.set_up(&lane.tun, queue).await?;
            if lane.kind != LaneKind::Peer {
                // The interface by which a packet leaves in the end decides whether it is too long.
                self.netlink.set_mtu(index, tun::PACKET_MAX).await?;
            }
            self.tun_indices.push((first + number, index));
            self.packet_tuns.sites.push(PacketTun {
                site: lane.site,
                kind: lane.kind,
                tun,
                index,
            });
        }
        if let Some(name) = rules::passing_tun(config) {
            let tun = create_tun(&name, features.ipv6).await?;
            // No route leads into this TUN.
            self.set_up(&name, netlink::HELD_QUEUE).await?;
            self.packet_tuns.passing = Some(tun);
        }
        Ok(())
    }

    /// Takes the TUNs of the sites of modes `packet` and `boost`, in their order. Packets of hosts
    /// and of the link are read from them, and packets written to them follow the routes of this
    /// machine. Call it once; dropping the result removes the TUNs.
    pub fn take_packet_tuns(&mut self) -> PacketTuns {
        std::mem::take(&mut self.packet_tuns)
    }

    /// Returns policy rules of other programs that apply to packets of hosts only; empty where the
    /// kernel does not answer.
    pub async fn rules_for_hosts_only(&self) -> Vec<String> {
        let rules = self.routing.for_hosts_only(&self.netlink).await;
        rules.unwrap_or_default()
    }

    /// Opens or closes the gate for new flows. Open flows continue.
    ///
    /// # Errors
    /// When nft cannot be run, or the table is missing.
    pub async fn set_gate(&self, gate: Gate) -> Result<(), InterceptError> {
        let applied = self.filter.set_gate(gate).await;
        applied.map_err(cannot("open or close the gate"))
    }

    /// Returns the SYNs that pepd did not take, repeated ones included, by cause: as
    /// [`Counter::PASSED`].
    ///
    /// # Errors
    /// When no descriptors are left, or the table is missing.
    pub fn passed(&self) -> Result<[u64; Counter::PASSED.len()], InterceptError> {
        Ok(Self::passed_of(&self.counters()?))
    }

    /// Extracts [`passed`](Self::passed) from the result of [`counters`](Self::counters).
    pub fn passed_of(counters: &BTreeMap<String, u64>) -> [u64; Counter::PASSED.len()] {
        let of = |counter: Counter| counters.get(counter.name().as_ref()).copied();
        Counter::PASSED.map(|counter| of(counter).unwrap_or(0))
    }

    /// Calls [`remove`](Self::remove), and logs a failure as a warning.
    pub async fn remove_or_warn(self) {
        if let Err(err) = self.remove().await {
            tracing::warn!(
                error = &err as &dyn std::error::Error,
                "cannot remove all rules and routes: hosts' connections may fail; run `pepd cleanup`"
            );
        }
    }

    /// Removes everything that was installed.
    ///
    /// # Errors
    /// The first failure; the rest is removed nevertheless.
    pub async fn remove(self) -> Result<(), InterceptError> {
        // The rules go first: from then on no packet is sent to a listener or into a TUN.
        let mut rules = self.filter.remove().await;
        if rules.is_err() {
            // This is the last chance to remove them.
            rules = self.filter.remove().await;
        }
        time_wait::close_all(self.marks).await;
        let routes = self.routing.remove(&self.netlink).await;
        rules.map_err(cannot("remove the rules"))?;
        Ok(routes?)
    }

    /// Removes the parts that a failed installation has installed.
    async fn undo(self) {
        if let Err(err) = self.remove().await {
            debug!(%err, "while undoing a failed installation");
        }
    }
}

/// Creates a TUN, with retries: the TUN of a daemon that was just killed may still exist.
async fn create_tun(name: &str, ipv6: bool) -> Result<Tun, InterceptError> {
    const PAUSE: Duration = Duration::from_millis(50);
    for _ in 0..20 {
        match Tun::create(name, ipv6) {
            Err(InterceptError::Tun { err, .. }) if err.kind() == ErrorKind::ResourceBusy => {}
            result => return result,
        }
        tokio::time::sleep(PAUSE).await;
    }
    Tun::create(name, ipv6)
}

fn cannot(action: &'static str) -> impl Fn(FilterError) -> InterceptError {
    move |err| InterceptError::Rules { action, err }
}
