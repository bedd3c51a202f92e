//! Installed rules, by the program that installs them.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
};

use ipnet::IpNet;
use pep_core::{
    config::{Config, RulesBy},
    hosts::Host,
};
use pepd_sys::gate::Gate;

use super::{
    iptables::{self, IptablesError, Tables},
    nft::{self, Installed, Nft, NftError},
    rules::{self, Family, Features, Rule, Ruleset, Term},
    setup::{self, SetupError},
};

/// Failure to change the rules.
#[derive(Debug, thiserror::Error)]
pub enum FilterError {
    /// nft failed.
    #[error(transparent)]
    Nft(#[from] NftError),
    /// iptables failed.
    #[error(transparent)]
    Iptables(#[from] IptablesError),
    /// Neither of the two redirects connections.
    #[error("{nft}; and by iptables: {iptables}")]
    Neither {
        /// Error of nft.
        nft: String,
        /// Error of iptables.
        iptables: IptablesError,
    },
}

/// The rules' program.
#[derive(Debug)]
pub enum Filter {
    /// A table of nft.
    Nft(NftTable),
    /// Chains of iptables.
    Iptables(Box<Tables>),
    /// None: the operator installs rules.
    Manual(Box<Manual>),
}

/// The table of nft.
#[derive(Debug)]
pub struct NftTable {
    pub(crate) nft: Nft,
    table: String,
    mask: u32,
    /// True if the kernel can recognise listeners for any address.
    pub(crate) wildcard: bool,
    /// Rules as pepd has left them.
    installed: Installed,
}

impl NftTable {
    /// Installs the rules of a model instead of all that the table has.
    pub(crate) async fn install(&self, ruleset: &Ruleset) -> Result<(), NftError> {
        self.nft.apply(&nft::install_transaction(ruleset)).await?;
        self.installed.remember(&self.table);
        Ok(())
    }
}

/// State of the installed rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum InKernel {
    /// As pepd has left them, as far as known.
    Whole,
    /// Changed by other programs: this number of rules.
    Changed(usize),
    /// Missing, or not in their place.
    Missing,
}

/// Rules of the operator, which pepd does not change.
#[derive(Debug)]
pub struct Manual {
    table: String,
    /// Rules of the script for iptables, which pepd reads and signals to; `None` without iptables.
    tables: Option<Tables>,
}

/// Consequences of rules that pepd does not change.
pub const MANUAL_LIMITS: &str = "pepd does not restore them, and cannot let new connections pass at limits.flows (except \
    by the script for iptables), at limits.flows_per_host, while a peer or the link is down, or while a site is off";

/// Terms without which nft cannot redirect connections.
const REDIRECTING: [Term; 3] = [
    Term::SocketTransparent,
    Term::Notrack,
    Term::Tproxy(Family::V4, 1),
];

impl Filter {
    /// Returns the configured program, or one that works on this machine; nothing is installed yet.
    ///
    /// # Errors
    /// When no such program is installed.
    pub async fn choose(config: &Config) -> Result<Self, FilterError> {
        match config.intercept.rules {
            RulesBy::Nft => Self::nft(config).await.map_err(FilterError::Nft),
            RulesBy::Iptables => Ok(Self::iptables(config).await?),
            RulesBy::Manual => Ok(Self::manual(config).await),
            RulesBy::Auto => Self::automatic(config).await,
        }
    }

    async fn automatic(config: &Config) -> Result<Self, FilterError> {
        let why = match Nft::find().await {
            Ok(nft) => match nft.check(&nft::probe_transaction(&REDIRECTING)).await {
                Ok(()) => return Ok(Self::nft(config).await?),
                Err(err) => {
                    // It names the module.
                    let found = setup::diagnose(&nft, Features::FULL, config).await;
                    found.map_or_else(|found| found.to_string(), |_| err.to_string())
                }
            },
            Err(err) => err.to_string(),
        };
        match Self::iptables(config).await {
            Ok(found) => {
                tracing::warn!(
                    "nft cannot redirect connections: {why}; using {}",
                    found.name()
                );
                Ok(found)
            }
            Err(iptables) => Err(FilterError::Neither { nft: why, iptables }),
        }
    }

    async fn nft(config: &Config) -> Result<Self, NftError> {
        Ok(Self::Nft(NftTable {
            nft: Nft::find().await?,
            table: config.intercept.table.to_string(),
            mask: config.intercept.marks.mask(),
            wildcard: true,
            installed: Installed::default(),
        }))
    }

    async fn iptables(config: &Config) -> Result<Self, IptablesError> {
        let program = iptables::choose(config).await?;
        Ok(Self::Iptables(Box::new(Tables::new(config, program))))
    }

    async fn manual(config: &Config) -> Self {
        let program = iptables::with_rules(config).await;
        let tables = program.map(|program| {
            let tables = Tables::new(config, program);
            tables.expect(&tables.ruleset(config, setup::has_ipv6()));
            tables.set_gate(Gate::Open);
            tables
        });
        Self::Manual(Box::new(Manual {
            table: config.intercept.table.to_string(),
            tables,
        }))
    }

    /// Removes rules of an earlier pepd that another program had installed.
    ///
    /// # Errors
    /// When that program fails.
    pub(crate) async fn remove_others(&self, config: &Config) -> Result<(), SetupError> {
        match self {
            Self::Nft(_) if iptables::is_installed(config) => remove_iptables(config).await,
            Self::Iptables(_) => remove_nft_table(config).await,
            Self::Nft(_) | Self::Manual(_) => Ok(()),
        }
    }

    /// Returns the program's name for operators.
    pub fn name(&self) -> String {
        match self {
            Self::Nft(_) => "nft".to_owned(),
            Self::Iptables(tables) => tables.version(),
            Self::Manual(_) => "manual".to_owned(),
        }
    }

    /// Returns the chains of iptables that pepd has installed, or that a script has.
    fn tables(&self) -> Option<&Tables> {
        match self {
            Self::Nft(_) => None,
            Self::Iptables(tables) => Some(tables),
            Self::Manual(manual) => manual.tables.as_ref().filter(|tables| tables.have_lists()),
        }
    }

    /// Returns true if the rules keep marks of other programs for server legs.
    pub fn keeps_marks(&self) -> bool {
        matches!(self, Self::Nft(_))
    }

    /// Returns true if pepd changes no rules.
    pub fn is_manual(&self) -> bool {
        matches!(self, Self::Manual(_))
    }

    /// Returns true if pepd can let new flows pass.
    pub fn has_gate(&self) -> bool {
        !self.is_manual() || self.tables().is_some()
    }

    /// Installs the rules of a model once more, after another program removed them.
    pub(crate) async fn put_back(&self, ruleset: &Ruleset) -> Result<(), FilterError> {
        match self {
            Self::Nft(table) => table.install(ruleset).await?,
            Self::Iptables(tables) => tables.put_back(ruleset).await?,
            Self::Manual(_) => {}
        }
        Ok(())
    }

    /// Opens or closes the gate.
    pub(crate) async fn set_gate(&self, gate: Gate) -> Result<(), FilterError> {
        match self {
            Self::Iptables(tables) => tables.set_gate(gate),
            Self::Manual(manual) => {
                if let Some(tables) = &manual.tables {
                    tables.set_gate(gate);
                }
            }
            Self::Nft(_) => return self.set_chain("gate", &rules::gate(gate)).await,
        }
        Ok(())
    }

    /// Replaces the rules of a chain.
    pub(crate) async fn set_chain(&self, name: &str, rules: &[Rule]) -> Result<(), FilterError> {
        self.set_chains(&[(name.to_owned(), rules.to_vec())]).await
    }

    /// Replaces the rules of several chains.
    pub(crate) async fn set_chains(
        &self,
        chains: &[(String, Vec<Rule>)],
    ) -> Result<(), FilterError> {
        match self {
            Self::Nft(NftTable {
                nft,
                table,
                mask,
                wildcard,
                installed,
            }) => {
                let of = |(name, rules): &(String, Vec<Rule>)| {
                    let rules = rules::known(rules, *wildcard);
                    nft::chain_transaction(table, *mask, name, &rules)
                };
                let transaction: String = chains.iter().map(of).collect();
                if !transaction.is_empty() {
                    nft.apply(&transaction).await?;
                    installed.remember_chains(table, chains.iter().map(|(name, _)| name.as_str()));
                }
            }
            Self::Iptables(tables) => {
                for (name, rules) in chains {
                    tables.set_chain(name, rules).await?;
                }
            }
            Self::Manual(_) => {}
        }
        Ok(())
    }

    /// Sets the hosts whose new flows pass.
    pub(crate) async fn set_hosts(
        &self,
        families: &[Family],
        hosts: &BTreeSet<Host>,
    ) -> Result<(), FilterError> {
        match self {
            Self::Nft(NftTable { nft, table, .. }) => {
                let transaction = nft::hosts_transaction(table, families, hosts);
                nft.apply(&transaction).await?;
            }
            Self::Iptables(tables) => tables.set_hosts(hosts).await?,
            Self::Manual(_) => {}
        }
        Ok(())
    }

    /// Forgets which connections do not reach pepd, of these families.
    pub(crate) async fn forget_filtered(&self, families: &[Family]) -> Result<(), FilterError> {
        if let Self::Nft(NftTable { nft, table, .. }) = self
            && !families.is_empty()
        {
            let transaction = nft::forget_filtered_transaction(table, families);
            nft.apply(&transaction).await?;
        }
        Ok(())
    }

    /// Sets the networks that hosts reach past tunnels.
    pub(crate) async fn set_networks(
        &self,
        families: &[Family],
        networks: &BTreeSet<IpNet>,
    ) -> Result<(), FilterError> {
        match self {
            Self::Nft(NftTable { nft, table, .. }) => {
                let transaction = nft::networks_transaction(table, families, networks);
                nft.apply(&transaction).await?;
            }
            Self::Iptables(tables) => tables.set_networks(networks).await?,
            Self::Manual(_) => {}
        }
        Ok(())
    }

    /// Signals to rules of iptables that pepd runs; call it every second.
    pub(crate) fn signal(&self) {
        if let Some(tables) = self.tables() {
            tables.signal();
        }
    }

    /// Returns the state of the rules in the kernel; call it every second. Those of the operator
    /// are not checked.
    pub(crate) async fn in_kernel(&self) -> Result<InKernel, FilterError> {
        match self {
            Self::Nft(NftTable {
                table, installed, ..
            }) => Ok(match installed.changes(table).map_err(NftError::Run)? {
                None => InKernel::Missing,
                Some(0) => InKernel::Whole,
                Some(changes) => InKernel::Changed(changes),
            }),
            Self::Iptables(tables) => Ok(match tables.are_installed().await? {
                true => InKernel::Whole,
                false => InKernel::Missing,
            }),
            Self::Manual(_) => {
                if let Some(tables) = self.tables() {
                    // For the counters; `pepd check` reports rules that cannot be listed.
                    let _ = tables.are_installed().await;
                }
                Ok(InKernel::Whole)
            }
        }
    }

    /// Returns the packets of each counter.
    pub(crate) fn counters(&self) -> io::Result<BTreeMap<String, u64>> {
        match (self, self.tables()) {
            (_, Some(tables)) => Ok(tables.counters()),
            (Self::Nft(NftTable { table, .. }), _) => nft::counters(table),
            (Self::Manual(manual), _) => nft::counters(&manual.table),
            (Self::Iptables(_), None) => Ok(BTreeMap::new()),
        }
    }

    /// Returns true if nft has installed the rules.
    pub(crate) fn is_nft(&self) -> bool {
        matches!(self, Self::Nft(_))
    }

    /// Returns true if the counters are of this moment; of iptables, once for each listing.
    pub(crate) fn take_fresh(&self) -> bool {
        self.tables().is_none_or(Tables::take_fresh)
    }

    /// Removes the rules; those of the operator stay.
    pub(crate) async fn remove(&self) -> Result<(), FilterError> {
        match self {
            Self::Nft(NftTable { nft, table, .. }) => {
                nft.apply(&nft::remove_transaction(table)).await?;
            }
            Self::Iptables(tables) => tables.remove().await?,
            Self::Manual(_) => {}
        }
        Ok(())
    }
}

/// Returns true if a program of pepd has left rules for this configuration, which it may remove.
///
/// # Errors
/// When no descriptors are left.
pub(crate) fn is_installed(config: &Config) -> io::Result<bool> {
    if config.intercept.rules == RulesBy::Manual {
        return Ok(false);
    }
    Ok(iptables::is_installed(config) || has_nft_table(config)?)
}

/// Returns true if the nft table of this configuration exists, on any kernel.
///
/// # Errors
/// When no descriptors are left.
fn has_nft_table(config: &Config) -> io::Result<bool> {
    match nft::table_exists(config.intercept.table.as_ref()) {
        Err(err) if !matches!(err.raw_os_error(), Some(libc::EMFILE | libc::ENFILE)) => Ok(false),
        exists => exists,
    }
}

/// Removes rules that an earlier pepd has left, by any program; those of the operator stay.
///
/// # Errors
/// When the program that can remove them fails.
pub(crate) async fn remove_leftovers(config: &Config) -> Result<(), SetupError> {
    if config.intercept.rules == RulesBy::Manual {
        return Ok(());
    }
    remove_nft_table(config).await?;
    remove_iptables(config).await
}

async fn remove_nft_table(config: &Config) -> Result<(), SetupError> {
    if !has_nft_table(config).map_err(SetupError::Ask)? {
        return Ok(());
    }
    let cannot = |err| SetupError::Rules {
        action: "remove the nft table of an earlier run",
        err: FilterError::Nft(err),
    };
    let nft = Nft::find().await.map_err(cannot)?;
    let removal = nft::remove_transaction(config.intercept.table.as_ref());
    let Err(refused) = nft.apply(&removal).await else {
        return Ok(());
    };
    setup::try_nftables(&nft).await?;
    Err(cannot(refused))
}

async fn remove_iptables(config: &Config) -> Result<(), SetupError> {
    let chosen = config.intercept.rules == RulesBy::Iptables;
    if !chosen && !iptables::is_installed(config) {
        return Ok(());
    }
    let removed = iptables::remove_leftovers(config).await;
    removed.map_err(|err| SetupError::Rules {
        action: "remove the rules of iptables of an earlier run",
        err: FilterError::Iptables(err),
    })
}
