//! Rules installed by iptables-restore, where nft is missing.
//!
//! xtables has no counters, sets and maps of its own that pepd could update: counters are those of
//! rules, and sets are chains that pepd replaces. [`limits`] lists what it lacks.

mod command;
mod listing;
mod signals;
mod text;

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    path::PathBuf,
    time::{Duration, Instant},
};

pub use command::{Iptables, IptablesError};
pub use listing::Differences;
use listing::Listing;
pub use text::{Commands, prefix, script};
use text::{Lines, Table, Writer};

use ipnet::IpNet;
use parking_lot::Mutex;
use pep_core::{
    config::{Config, OtherRoutes},
    hosts::Host,
    site::Mode,
};
use pepd_sys::{gate::Gate, marks::MarkSet};
use tracing::warn;

use crate::rules::{Family, Features, Rule, Ruleset};

/// Pause between two listings of the rules: each runs two programs per family, some milliseconds
/// each.
const PAUSE: Duration = Duration::from_secs(3);

/// Features of the model that iptables can express.
pub const FEATURES: Features = Features {
    recent: false,
    forget: false,
    // Its matches never see listeners for any address.
    wildcard: false,
    seen: false,
    tags: false,
    marks: false,
    errors: false,
    ..Features::FULL
};

/// Returns the limitations compared with the nft table that concern a configuration.
pub fn limits(config: &Config) -> Vec<&'static str> {
    let has = |mode| config.sites.iter().any(|(_, site)| site.mode == mode);
    let (carries, blocks, boosts) = (has(Mode::Packet), has(Mode::Block), has(Mode::Boost));
    let link = config.link.as_ref();
    let passes = link.is_some_and(|link| link.other_routes == OtherRoutes::Pass);
    let limits = [
        (
            true,
            "connections that the kernel opens by SYN cookies fail (keep backlogs large)",
        ),
        (
            true,
            "after a kill -9, new connections get no answer for up to 5 s",
        ),
        (
            crate::setup::answers_at_once(config),
            "connections to destinations without a route are accepted, and then reset",
        ),
        (
            passes || config.intercept.lan.len() > 1,
            "connections between LAN interfaces, and those whose route leads by another interface than the link, are \
             accelerated, too",
        ),
        (
            true,
            "connections to servers ignore policy rules by marks of other programs",
        ),
        (
            true,
            "`pepd check` cannot tell by which interfaces connections arrive",
        ),
        (
            carries,
            "mode \"packet\": packets between LAN interfaces go into the tunnel, and ICMP errors about packets of a \
             peer leave by the link, in clear text",
        ),
        (
            boosts,
            "mode \"boost\": packets from the link do not pass the boosters",
        ),
        (blocks, "mode \"block\" drops packets without an ICMP error"),
    ];
    let limits = limits.into_iter().filter(|(concerns, _)| *concerns);
    limits.map(|(_, limit)| limit).collect()
}

/// Tables of iptables that pepd uses.
const TABLES: [&str; 2] = ["raw", "mangle"];

/// pepd's rules of iptables.
#[derive(Debug)]
pub struct Tables {
    prefix: String,
    marks: MarkSet,
    port: u16,
    program: Iptables,
    /// The kernel's file of the list of the gate.
    list: PathBuf,
    /// True if the kernel lacks modules for checks of rates and sources.
    is_reduced: bool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Rules that should be in the kernel.
    tables: Vec<Table>,
    gate: Option<Gate>,
    /// Packets counted by rules that have been replaced, and by present ones.
    counted: BTreeMap<String, u64>,
    counters: BTreeMap<String, u64>,
    listed: Option<Instant>,
    /// True if the counters have not been taken since the last listing.
    is_fresh: bool,
}

impl Tables {
    /// Returns the rules of a configuration for a backend, not installed yet.
    pub fn new(config: &Config, program: Iptables) -> Self {
        Self {
            prefix: prefix(config.intercept.table.as_ref()).to_owned(),
            marks: MarkSet::new(config.intercept.marks),
            port: config.intercept.listen_port,
            program,
            list: list_of_gate(config),
            is_reduced: false,
            state: Mutex::default(),
        }
    }

    /// Returns name and version of the program.
    pub fn version(&self) -> String {
        self.program.version()
    }

    /// Returns the model for these rules.
    pub fn ruleset(&self, config: &Config, ipv6: bool) -> Ruleset {
        let features = Features {
            ipv6,
            rate: !self.is_reduced,
            copies: !self.is_reduced,
            ..FEATURES
        };
        Ruleset::new(config, features)
    }

    fn writer(&self, family: Family) -> Writer<'_> {
        Writer {
            prefix: &self.prefix,
            marks: self.marks,
            port: self.port,
            family,
            rpfilter: !self.is_reduced,
        }
    }

    /// Sets the rules that should be in the kernel to those of a model.
    pub fn expect(&self, ruleset: &Ruleset) {
        let families = ruleset.hosts.iter();
        let tables = families.flat_map(|&family| self.writer(family).tables(ruleset));
        self.state.lock().tables = tables.collect();
    }

    /// Installs rules for a configuration, and replaces those of an earlier run. Without modules
    /// that have a substitute it warns, and installs the rest. Returns the model.
    ///
    /// # Errors
    /// When the program cannot be run, or the kernel lacks a module.
    pub async fn install(
        &mut self,
        config: &Config,
        mut ipv6: bool,
    ) -> Result<Ruleset, IptablesError> {
        let mut ruleset = self.ruleset(config, ipv6);
        self.expect(&ruleset);
        if let Err(refused) = self.put_back_twice(Family::V4).await {
            if !matches!(refused, IptablesError::Refused(..)) {
                return Err(refused);
            }
            self.is_reduced = true;
            ruleset = self.ruleset(config, ipv6);
            self.expect(&ruleset);
            if self.put_back_of(Family::V4).await.is_err() {
                return Err(refused);
            }
            warn!(
                error = &refused as &dyn std::error::Error,
                "the kernel probably lacks xt_hashlimit, xt_rpfilter, xt_conntrack, xt_limit or xt_NFLOG: a host that floods \
                 pepd with SYNs, or forges their source, may keep connections of other hosts from being accelerated; \
                 connections that another pepd has split hang after a take-over"
            );
        }
        if ipv6 && let Err(err) = self.put_back_twice(Family::V6).await {
            for table in TABLES {
                let _ = remove_table(&self.program, &self.prefix, Family::V6, table).await;
            }
            warn!(
                error = &err as &dyn std::error::Error,
                "cannot install rules for IPv6: connections over it pass unaccelerated"
            );
            ipv6 = false;
            ruleset = self.ruleset(config, ipv6);
            self.expect(&ruleset);
        }
        self.set_gate(Gate::Open);
        match self.list().await {
            Err(err @ IptablesError::Unreadable(..)) => warn!(
                error = &err as &dyn std::error::Error,
                "pepd's rules are in place, but it cannot count their packets, nor see changes by other programs"
            ),
            listed => drop(listed?),
        }
        Ok(ruleset)
    }

    /// Installs the expected rules again, with empty chains in place of sets.
    ///
    /// # Errors
    /// When the program cannot be run or rejects them.
    pub async fn put_back(&self, ruleset: &Ruleset) -> Result<(), IptablesError> {
        self.keep_counters(|_| true);
        self.expect(ruleset);
        for &family in &ruleset.hosts {
            self.put_back_of(family).await?;
        }
        Ok(())
    }

    /// Tries a second time: another program may have changed the table meanwhile.
    async fn put_back_twice(&self, family: Family) -> Result<(), IptablesError> {
        match self.put_back_of(family).await {
            Err(IptablesError::Refused(..) | IptablesError::Hangs { .. }) => {
                self.put_back_of(family).await
            }
            done => done,
        }
    }

    /// Applies input for iptables-restore, once other programs have released the lock. Signals
    /// meanwhile: otherwise the rules would take pepd for dead.
    async fn restore(&self, family: Family, input: &str) -> Result<(), IptablesError> {
        const TRIES: usize = 5;
        let mut result = Ok(());
        for _ in 0..TRIES {
            self.signal();
            result = self.program.restore(family, input).await;
            if !result.as_ref().is_err_and(IptablesError::is_locked) {
                break;
            }
        }
        result
    }

    async fn put_back_of(&self, family: Family) -> Result<(), IptablesError> {
        let tables = self.state.lock().tables.clone();
        for table in tables.iter().filter(|table| table.family == family) {
            let saved = match self.program.save(family, table.name).await {
                Err(err @ IptablesError::Unreadable(..)) => {
                    // Another program's rules do not keep pepd from replacing its own by name.
                    self.replace_unseen(table).await.map_err(|_| err)?;
                    continue;
                }
                saved => saved?,
            };
            let old = Listing::parse(&saved, &self.prefix);
            let input = table.restoring(&old.chains, &old.jumps());
            self.restore(family, &input).await?;
        }
        Ok(())
    }

    /// Installs a table that cannot be listed: in place of the same one, or where there is none.
    async fn replace_unseen(&self, table: &Table) -> Result<(), IptablesError> {
        let same = table.restoring(&[], &table.jump_rules());
        if self.restore(table.family, &same).await.is_ok() {
            return Ok(());
        }
        self.restore(table.family, &table.restoring(&[], &[])).await
    }

    /// Replaces the rules of a chain.
    ///
    /// # Errors
    /// When the program cannot be run, or the chain is missing.
    pub async fn set_chain(&self, name: &str, rules: &[Rule]) -> Result<(), IptablesError> {
        self.replace(|writer| writer.decision(name, rules)).await
    }

    /// Sets the hosts at their flow limit.
    ///
    /// # Errors
    /// As [`set_chain`](Self::set_chain).
    pub async fn set_hosts(&self, hosts: &BTreeSet<Host>) -> Result<(), IptablesError> {
        self.replace(|writer| writer.hosts(hosts)).await
    }

    /// Sets the networks of this machine.
    ///
    /// # Errors
    /// As [`set_chain`](Self::set_chain).
    pub async fn set_networks(&self, networks: &BTreeSet<IpNet>) -> Result<(), IptablesError> {
        self.replace(|writer| writer.networks(networks)).await
    }

    async fn replace(&self, chain: impl Fn(Writer<'_>) -> Lines) -> Result<(), IptablesError> {
        let families: BTreeSet<_> = {
            let state = self.state.lock();
            state.tables.iter().map(|table| table.family).collect()
        };
        for family in families {
            let chain = chain(self.writer(family));
            self.restore(family, &chain.restoring()).await?;
            self.keep_counters(|name| *name == chain.name);
            let mut state = self.state.lock();
            let tables = state.tables.iter_mut();
            let of_family = tables.filter(|table| table.family == family && table.name == "raw");
            let chains = of_family.flat_map(|table| &mut table.chains);
            for old in chains.filter(|old| old.name == chain.name) {
                old.clone_from(&chain);
            }
        }
        Ok(())
    }

    /// Returns true if rules exist that signals reach.
    pub fn have_lists(&self) -> bool {
        self.list.exists()
    }

    /// Opens or closes the gate, now and by later signals.
    pub fn set_gate(&self, gate: Gate) {
        self.state.lock().gate = Some(gate);
        self.signal();
    }

    /// Signals to the rules that pepd runs. Returns false if they are missing.
    pub fn signal(&self) -> bool {
        let (gate, families) = {
            let state = self.state.lock();
            let families = state.tables.iter().map(|table| table.family);
            (state.gate, families.collect::<BTreeSet<_>>())
        };
        let Some(gate) = gate else { return true };
        let mark = signals::signal_mark(self.marks, gate);
        let mut taken = true;
        for family in families {
            taken &= signals::send(family, self.port, mark).unwrap_or_else(|error| {
                tracing::debug!(%error, "cannot send a signal to the rules");
                true
            });
        }
        taken
    }

    /// Signals, and lists the rules every few seconds. Returns false if some are missing.
    ///
    /// # Errors
    /// When the program cannot be run.
    pub async fn are_installed(&self) -> Result<bool, IptablesError> {
        let is_taken = self.signal();
        let listed = self.state.lock().listed;
        if is_taken && listed.is_some_and(|at| at.elapsed() < PAUSE) {
            return Ok(true);
        }
        match self.list().await {
            // The signals show that the rules are there.
            Err(IptablesError::Unreadable(..)) if is_taken => {
                self.state.lock().listed = Some(Instant::now());
                Ok(true)
            }
            listed => Ok(listed?.is_empty() && is_taken),
        }
    }

    /// Lists the rules: reads their counters, and compares them with the expected ones.
    ///
    /// # Errors
    /// When the program cannot be run, or the kernel lacks a table.
    pub async fn list(&self) -> Result<Differences, IptablesError> {
        let tables = self.state.lock().tables.clone();
        let mut all = Differences::default();
        let mut now = BTreeMap::new();
        for table in &tables {
            let saved = self.program.save(table.family, table.name).await?;
            let listing = Listing::parse(&saved, &self.prefix);
            let found = listing.differences(table);
            if found.is_empty() {
                count(table, &listing, &mut now);
            }
            all.missing.extend(found.missing);
            all.more.extend(found.more);
        }
        let mut state = self.state.lock();
        state.listed = Some(Instant::now());
        if all.is_empty() {
            state.counters = now;
            state.is_fresh = true;
        }
        Ok(all)
    }

    /// Keeps what rules of these chains have counted, before they are replaced.
    fn keep_counters(&self, is_replaced: impl Fn(&String) -> bool) {
        let mut state = self.state.lock();
        let chains = state.tables.iter().flat_map(|table| &table.chains);
        let chains = chains.filter(|chain| is_replaced(&chain.name));
        let lines = chains.flat_map(|chain| &chain.lines);
        let names = lines.flat_map(|line| &line.counters);
        let names: BTreeSet<_> = names.map(|counter| counter.name().into_owned()).collect();
        for name in names {
            let packets = state.counters.insert(name.clone(), 0).unwrap_or(0);
            *state.counted.entry(name).or_default() += packets;
        }
    }

    /// Returns the packets of each counter at the last listing.
    pub fn counters(&self) -> BTreeMap<String, u64> {
        let state = self.state.lock();
        let mut counters = state.counted.clone();
        for (name, packets) in &state.counters {
            *counters.entry(name.clone()).or_default() += packets;
        }
        counters
    }

    /// Returns true once after each listing: the counters are of this moment.
    pub fn take_fresh(&self) -> bool {
        std::mem::take(&mut self.state.lock().is_fresh)
    }

    /// Removes the rules.
    ///
    /// # Errors
    /// When the program cannot be run or rejects it; the other family is removed nevertheless.
    pub async fn remove(&self) -> Result<(), IptablesError> {
        let tables = self.state.lock().tables.clone();
        let mut result = remove(&self.program, &self.prefix, &TABLES).await;
        if let Err(IptablesError::Unreadable(..)) = result {
            result = Ok(());
            for table in &tables {
                let names: Vec<_> = table
                    .chains
                    .iter()
                    .map(|chain| chain.name.clone())
                    .collect();
                let input = text::removing(table.name, &names, &table.jump_rules());
                result = result.and(self.restore(table.family, &input).await);
            }
        }
        result
    }
}

/// Adds the packets of a table's rules to their counters.
fn count(table: &Table, listing: &Listing, counters: &mut BTreeMap<String, u64>) {
    for chain in &table.chains {
        for (line, packets) in chain.lines.iter().zip(listing.packets(&chain.name)) {
            for counter in &line.counters {
                *counters.entry(counter.name().into_owned()).or_default() += packets;
            }
        }
    }
}

/// Returns an installed backend that can redirect connections, the system's choice first.
///
/// # Errors
/// When none is installed, or the kernel lacks a module.
pub async fn choose(config: &Config) -> Result<Iptables, IptablesError> {
    let prefix = prefix(config.intercept.table.as_ref());
    let mut failure = IptablesError::Missing;
    let mut unseen = None;
    for (number, program) in Iptables::installed().await?.into_iter().enumerate() {
        let mut probed = program.restore(Family::V4, &text::probe(prefix)).await;
        // Each table is a transaction of its own: the first may exist without the second.
        let chain = [text::probe_chain(prefix)];
        for table in TABLES {
            let removal = text::removing(table, &chain, &[]);
            let removed = program.restore(Family::V4, &removal).await;
            if probed.is_ok() {
                removed?;
            }
        }
        for table in TABLES {
            if probed.is_ok() {
                probed = program.save(Family::V4, table).await.map(drop);
            }
        }
        match probed {
            Ok(()) => return Ok(program),
            // Rules can be installed nevertheless, if they are there already, or no other backend
            // can be read.
            Err(IptablesError::Unreadable(..)) => {
                if may_have_rules(&program, prefix, Family::V4, "raw").await {
                    return Ok(program);
                }
                unseen = unseen.or(Some(program));
            }
            Err(err) if number == 0 => failure = err,
            Err(_) => {}
        }
    }
    unseen.ok_or(failure)
}

/// Returns an installed backend, one with rules for this configuration if there is one.
pub async fn with_rules(config: &Config) -> Option<Iptables> {
    let prefix = prefix(config.intercept.table.as_ref());
    let mut installed = Iptables::installed().await.unwrap_or_default();
    let mut place = 0;
    for (number, program) in installed
        .iter()
        .enumerate()
        .filter(|_| is_installed(config))
    {
        if !program.may_have("raw") {
            continue;
        }
        let saved = program.save(Family::V4, "raw").await.unwrap_or_default();
        if !Listing::parse(&saved, prefix).chains.is_empty() {
            place = number;
            break;
        }
    }
    (place < installed.len()).then(|| installed.swap_remove(place))
}

/// Returns the tables of both families, for a kernel with all modules.
pub fn tables(config: &Config, families: &[Family]) -> Vec<Table> {
    let ruleset = Ruleset::new(config, FEATURES);
    let tables = families.iter().flat_map(|&family| {
        let writer = Writer {
            prefix: prefix(config.intercept.table.as_ref()),
            marks: MarkSet::new(config.intercept.marks),
            port: config.intercept.listen_port,
            family,
            rpfilter: true,
        };
        writer.tables(&ruleset)
    });
    tables.collect()
}

/// Returns true for a line of iptables-save about a chain of pepd, or a rule that leads to one.
pub fn is_own_rule(line: &str, table: &str) -> bool {
    let prefix = format!("{}_", prefix(table));
    let mut words = line.split(' ').map(|word| word.trim_start_matches(':'));
    words.any(|word| word.strip_prefix(&prefix).is_some_and(text::is_own))
}

/// Rules of a running pepd, or of an operator, as the kernel lists them.
#[derive(Debug, Default)]
pub struct Inspected {
    /// Differences from the rules of the configuration.
    pub differences: Differences,
    /// Number of rules.
    pub rules: usize,
    /// Packets of each counter; empty if rules differ.
    pub counters: BTreeMap<String, u64>,
}

/// Compares the kernel's rules with those of a configuration, by the backend of this version, or
/// the one that has them. Chains whose rules depend on pepd's state may have any of these rules.
///
/// # Errors
/// When the program cannot be run, or is missing.
pub async fn inspect(config: &Config, version: Option<&str>) -> Result<Inspected, IptablesError> {
    let mut programs = Iptables::installed().await?.into_iter();
    let same = programs.find(|program| Some(program.version().as_str()) == version);
    // Another version may have been installed meanwhile.
    let program = match same {
        Some(program) => Some(program),
        None => with_rules(config).await,
    };
    let program = program.ok_or(IptablesError::Missing)?;
    let mut whole = Tables::new(config, program.clone());
    let inspected = whole.inspect(config).await?;
    if inspected.differences.missing.is_empty() {
        return Ok(inspected);
    }
    whole.is_reduced = true;
    let reduced = whole.inspect(config).await?;
    Ok(match reduced.differences.missing.is_empty() {
        true => reduced,
        false => inspected,
    })
}

impl Tables {
    async fn inspect(&self, config: &Config) -> Result<Inspected, IptablesError> {
        let ruleset = self.ruleset(config, crate::setup::has_ipv6());
        let mut found = Inspected::default();
        for &family in &ruleset.hosts {
            let writer = self.writer(family);
            for mut table in writer.tables(&ruleset) {
                let saved = self.program.save(family, table.name).await?;
                let listing = Listing::parse(&saved, &self.prefix);
                if table.name == "raw" {
                    table
                        .chains
                        .retain(|chain| !writer.depends_on_state(&chain.name));
                    for chain in &mut table.chains {
                        let instead = writer.instead(&chain.name).into_iter();
                        let mut instead = instead.filter(|other| listing.has(other));
                        if let Some(other) = instead.next() {
                            *chain = other;
                        }
                    }
                }
                let differences = listing.differences(&table);
                if differences.is_empty() {
                    count(&table, &listing, &mut found.counters);
                }
                found.differences.missing.extend(differences.missing);
                found.differences.more.extend(differences.more);
                found.rules += listing.rules();
            }
        }
        Ok(found)
    }
}

/// Returns the kernel's file of the list of pepd's gate, which exists as long as its rules.
fn list_of_gate(config: &Config) -> PathBuf {
    let prefix = prefix(config.intercept.table.as_ref());
    PathBuf::from(format!("/proc/net/xt_recent/{prefix}_{}", signals::OPEN))
}

/// Returns true if rules for this configuration exist, installed by pepd or by a script.
pub fn is_installed(config: &Config) -> bool {
    list_of_gate(config).exists()
}

/// Returns true if the gate is closed: no signal has opened it.
///
/// # Errors
/// When the rules do not exist.
pub fn gate_is_closed(config: &Config) -> io::Result<bool> {
    let list = std::fs::read_to_string(list_of_gate(config))?;
    Ok(list.trim().is_empty())
}

/// Removes rules that an earlier pepd has left, with any backend of iptables.
///
/// # Errors
/// When a program cannot be run or rejects it.
pub async fn remove_leftovers(config: &Config) -> Result<(), IptablesError> {
    let prefix = prefix(config.intercept.table.as_ref());
    for program in Iptables::installed().await? {
        let tables = TABLES.into_iter().filter(|table| program.may_have(table));
        let tables: Vec<_> = tables.collect();
        remove(&program, prefix, &tables).await?;
    }
    Ok(())
}

async fn remove(program: &Iptables, prefix: &str, tables: &[&str]) -> Result<(), IptablesError> {
    let mut result = Ok(());
    for family in Family::ALL {
        for table in tables {
            let removed = remove_table(program, prefix, family, table).await;
            result = result.and(removed);
        }
    }
    result
}

/// Returns true if a table that cannot be listed has chains of pepd: they cannot be created a
/// second time.
async fn may_have_rules(program: &Iptables, prefix: &str, family: Family, table: &str) -> bool {
    let chain = match table {
        "raw" => "from_hosts",
        _ => "from_servers",
    };
    let chain = format!("{prefix}_{chain}");
    let new = format!("*{table}\n-N {chain}\n-X {chain}\nCOMMIT\n");
    program.restore(family, &new).await.is_err()
}

async fn remove_table(
    program: &Iptables,
    prefix: &str,
    family: Family,
    table: &str,
) -> Result<(), IptablesError> {
    let saved = match program.save(family, table).await {
        // Without the program or the table, its rules cannot exist.
        Err(IptablesError::Run(..) | IptablesError::Refused(..)) => return Ok(()),
        // The probe shows whether pepd has a chain there.
        Err(IptablesError::Unreadable(..))
            if !may_have_rules(program, prefix, family, table).await =>
        {
            return Ok(());
        }
        saved => saved?,
    };
    let listing = Listing::parse(&saved, prefix);
    if listing.chains.is_empty() {
        return Ok(());
    }
    let input = text::removing(table, &listing.chains, &listing.jumps());
    program.restore(family, &input).await
}

#[cfg(test)]
#[path = "iptables_tests.rs"]
mod tests;
