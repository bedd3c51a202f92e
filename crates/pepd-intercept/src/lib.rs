//! Catching connections: packet filter rules, routes and TUN devices, installed and removed.
//!
//! - [`rules`], what the table says; [`nft`] and [`iptables`], how it is written
//! - [`route`], policy rules and routes
//! - [`defer`], holding SYNs
//! - [`neigh`], next hops that do not answer
//! - [`tun`], devices into which held SYNs are routed
//! - `bypass`, leaving the flows of a site to the kernel for a while
//! - `full_hosts`, leaving to it those of hosts that have as many as one may have
//! - [`lost`], leaving to it those whose SYNs do not arrive though they are redirected
//! - [`other_marks`], marks of other programs, which server legs take over; `near`, networks that are
//!   reached past tunnels
//! - [`upkeep`], putting back what others have removed
//! - [`setup`], what must hold before, and what to do when it does not
//!
//! The picture is in `docs/interception.md`.
#![deny(unsafe_code)]

mod bypass;
pub mod defer;
mod full_hosts;
mod hop;
mod icmp;
pub mod iptables;
pub mod lost;
mod near;
pub mod neigh;
pub mod netlink;
pub mod nft;
pub mod other_marks;
mod raw;
mod render;
pub mod route;
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

use pep_core::{config::Config, hosts::Host};
use pepd_sys::{gate::Gate, leg::SiteRuntime, marks::MarkSet};
use tracing::{debug, warn};

use bypass::Bypass;
pub use bypass::LeftAlone;
use defer::DeferTask;
use lost::Lost;
use near::Near;
use netlink::Netlink;
use nft::{Nft, NftError};
pub use render::{Format, render};
use route::Routing;
use rules::{Counter, Family, Features, Lan, Ruleset};
pub use setup::SetupError as InterceptError;
use tun::Tun;
pub use tun::{PacketTun, PacketTuns};

/// Installed rules, routes and TUN devices.
///
/// Dropping it closes the TUN devices but leaves rules and routes: call
/// [`remove`](Self::remove). Even those leftovers let traffic pass once the listeners are
/// gone, and the next [`install`](Self::install) replaces them.
#[derive(Debug)]
pub struct Interception {
    nft: Nft,
    table: String,
    marks: MarkSet,
    netlink: Netlink,
    routing: Routing,
    ipv6: bool,
    tuns: Vec<(Lan, Tun)>,
    packet_tuns: PacketTuns,
    /// Numbers of TUNs as [`Routing`] counts them, and their interfaces' indices.
    tun_indices: Vec<(usize, u32)>,
    /// What has installed the table.
    transaction: String,
    bypass: Bypass,
    hosts_at_cap: BTreeSet<Host>,
    /// Networks of this machine, where some stay out of tunnels.
    near: Option<Near>,
    /// Some flows are, for which their SYNs have to find the listener.
    answers_at_once: bool,
    lost: Lost,
    /// Transaction that makes a table so that is as it was installed.
    lost_again: String,
    /// Families of which the table can forget recent SYNs.
    forgotten: Vec<Family>,
}

impl Interception {
    /// Removes the table that a killed daemon may have left. To be done before there are listeners:
    /// for these its rules would match again, also packets of connections that the kernel has
    /// forwarded meanwhile.
    ///
    /// # Errors
    /// When nft cannot be run.
    pub async fn clear_leftovers(config: &Config) -> Result<(), InterceptError> {
        let nft = Nft::find().await.map_err(cannot("run nft"))?;
        let removal = nft::remove_transaction(config.intercept.table.as_ref());
        let Err(refused) = nft.apply(&removal).await else {
            return Ok(());
        };
        setup::try_nftables(&nft).await?;
        Err(cannot("remove the nft table of an earlier run")(refused))
    }

    /// Whether there is a table of its name.
    ///
    /// # Errors
    /// When descriptors are short.
    pub fn is_installed(config: &Config) -> io::Result<bool> {
        nft::table_exists(config.intercept.table.as_ref())
    }

    /// Removes rules and routes that nobody is left to remove.
    ///
    /// # Errors
    /// When nft cannot be run, or the kernel does not answer.
    pub async fn clear(config: &Config) -> Result<(), InterceptError> {
        Self::clear_leftovers(config).await?;
        let families = Features::FULL.families();
        let routing = Routing::new(config, families);
        Ok(routing.remove(&Netlink::connect()?).await?)
    }

    /// Installs everything for the configuration, in place of what an earlier run may have left.
    /// The listeners must exist already: from now on they get connections. Where flows are taken
    /// over (`succeeds`), what is there stays until the new is there: their packets would be
    /// forwarded meanwhile, and answered by resets.
    ///
    /// # Errors
    /// When the kernel or nft lacks a feature, or the machine's settings
    /// do not allow it; nothing is left installed then.
    pub async fn install(config: &Config, succeeds: bool) -> Result<Self, InterceptError> {
        let nft = Nft::find().await.map_err(cannot("run nft"))?;
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
            nft,
            table: config.intercept.table.to_string(),
            marks: MarkSet::new(config.intercept.marks),
            netlink,
            routing: Routing::new(config, features.families()),
            ipv6,
            tuns: Vec::new(),
            packet_tuns: PacketTuns::default(),
            tun_indices: Vec::new(),
            transaction: String::new(),
            bypass: Bypass::default(),
            hosts_at_cap: BTreeSet::new(),
            near: None,
            answers_at_once: setup::answers_at_once(config),
            lost: Lost::new(),
            lost_again: String::new(),
            forgotten: Vec::new(),
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
        }
        for (number, lan) in rules::lans(config).into_iter().enumerate() {
            let Some(name) = &lan.tun else { continue };
            let tun = create_tun(name, features.ipv6).await?;
            let index = self.netlink.set_up(name, netlink::HELD_QUEUE).await?;
            self.tun_indices.push((number, index));
            self.tuns.push((lan, tun));
        }
        self.create_packet_tuns(config, features).await?;
        for &family in self.routing.families() {
            let tuns = &self.tun_indices;
            self.routing.install(&self.netlink, family, tuns).await?;
        }
        if succeeds {
            self.routing.remove_surplus(&self.netlink).await?;
        }
        self.install_table(config, features).await?;
        self.look_at_networks().await
    }

    async fn install_table(
        &mut self,
        config: &Config,
        features: Features,
    ) -> Result<(), InterceptError> {
        let Err(refused) = self.try_table(config, features).await else {
            return Ok(());
        };
        let can = setup::diagnose(&self.nft, features, config).await?;
        if can == features {
            return Err(cannot("install the nft table")(refused));
        }
        for lost in setup::degradations(can) {
            warn!("{lost}");
        }
        let installed = self.try_table(config, can).await;
        installed.map_err(cannot("install the nft table"))
    }

    async fn try_table(&mut self, config: &Config, features: Features) -> Result<(), NftError> {
        let ruleset = Ruleset::new(config, features);
        self.near = (!ruleset.near.is_empty()).then(|| Near::new(config));
        self.transaction = nft::install_transaction(&ruleset);
        self.bypass = Bypass::new(config, &ruleset);
        self.forgotten.clone_from(&ruleset.forgotten);
        self.nft.apply(&self.transaction).await
    }

    /// The task that holds SYNs, where some site of the configuration defers. To be called
    /// once, within the tokio runtime.
    ///
    /// # Errors
    /// When descriptors are short.
    pub fn defer_task(
        &mut self,
        config: &Arc<Config>,
        sites: &[Arc<SiteRuntime>],
    ) -> Result<Option<DeferTask>, InterceptError> {
        if self.tuns.is_empty() {
            return Ok(None);
        }
        let tuns = std::mem::take(&mut self.tuns);
        let task = DeferTask::new(Arc::clone(config), sites, tuns, self.ipv6);
        task.map(Some).map_err(InterceptError::Sockets)
    }

    async fn create_packet_tuns(
        &mut self,
        config: &Config,
        features: Features,
    ) -> Result<(), InterceptError> {
        let first = config.intercept.lan.len();
        for (number, lane) in rules::lanes(config).into_iter().enumerate() {
            let tun = create_tun(&lane.tun, features.ipv6).await?;
            if !lane.join {
                tun.one_by_one();
            }
            let queue = netlink::PACKET_QUEUE;
            let index = self.netlink.set_up(&lane.tun, queue).await?;
            self.tun_indices.push((first + number, index));
            self.packet_tuns.sites.push(PacketTun {
                site: lane.site,
                tun,
                index,
            });
        }
        if let Some(name) = rules::passing_tun(config) {
            let tun = create_tun(&name, features.ipv6).await?;
            // Nothing is ever routed into it.
            self.netlink.set_up(&name, netlink::HELD_QUEUE).await?;
            self.packet_tuns.passing = Some(tun);
        }
        Ok(())
    }

    /// The TUNs of the sites of mode `packet`, in their order: what hosts send comes out of them,
    /// and what is written to them goes on by the routes of this machine. To be called once; they
    /// end with what it gives.
    pub fn take_packet_tuns(&mut self) -> PacketTuns {
        std::mem::take(&mut self.packet_tuns)
    }

    /// Policy rules of other programs for hosts' packets only; none where the kernel does not say.
    pub async fn rules_for_hosts_only(&self) -> Vec<String> {
        let rules = self.routing.for_hosts_only(&self.netlink).await;
        rules.unwrap_or_default()
    }

    /// Opens or closes the gate for new flows; what is open already goes on.
    ///
    /// # Errors
    /// When nft cannot be run, or the table is gone.
    pub async fn set_gate(&self, gate: Gate) -> Result<(), InterceptError> {
        let transaction = nft::gate_transaction(&self.table, self.marks.mask(), gate);
        let applied = self.nft.apply(&transaction).await;
        applied.map_err(cannot("open or close the gate"))
    }

    /// SYNs that pepd did not take, repeated ones included, by why: as [`Counter::PASSED`].
    ///
    /// # Errors
    /// When descriptors are short, or the table is gone.
    pub fn passed(&self) -> Result<[u64; Counter::PASSED.len()], InterceptError> {
        Ok(Self::passed_of(&self.counters()?))
    }

    /// As [`passed`](Self::passed), of what [`counters`](Self::counters) has returned.
    pub fn passed_of(counters: &BTreeMap<String, u64>) -> [u64; Counter::PASSED.len()] {
        let of = |counter: Counter| counters.get(counter.name().as_ref()).copied();
        Counter::PASSED.map(|counter| of(counter).unwrap_or(0))
    }

    /// As [`remove`](Self::remove); what fails is a warning.
    pub async fn remove_or_warn(self) {
        if let Err(err) = self.remove().await {
            tracing::warn!(
                error = &err as &dyn std::error::Error,
                "cannot remove all rules and routes"
            );
        }
    }

    /// Removes everything that was installed.
    ///
    /// # Errors
    /// The first failure; the rest is removed all the same.
    pub async fn remove(self) -> Result<(), InterceptError> {
        // The table first: from then on nothing is sent to a listener or into a TUN.
        let removal = nft::remove_transaction(&self.table);
        let mut table = self.nft.apply(&removal).await;
        if table.is_err() {
            // There will be no other occasion.
            table = self.nft.apply(&removal).await;
        }
        time_wait::close_all(self.marks).await;
        let routes = self.routing.remove(&self.netlink).await;
        table.map_err(cannot("remove the nft table"))?;
        Ok(routes?)
    }

    /// Removes what a failed installation has done so far.
    async fn undo(self) {
        if let Err(err) = self.remove().await {
            debug!(%err, "while undoing a failed installation");
        }
    }
}

/// Creates a TUN, patiently: that of a daemon killed just now may not be gone yet.
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

fn cannot(action: &'static str) -> impl Fn(NftError) -> InterceptError {
    move |err| InterceptError::Nft { action, err }
}
