//! The commands iptables-save and iptables-restore, and those for IPv6.

use std::{fs, io, time::Duration};

use crate::{
    program::{self, RunError},
    rules::Family,
};

/// Names of the programs: the one that the system has chosen, and the two backends of iptables.
const NAMES: [[&str; 2]; 3] = [
    ["iptables", "ip6tables"],
    ["iptables-legacy", "ip6tables-legacy"],
    ["iptables-nft", "ip6tables-nft"],
];

/// Candidate places: `PATH` often lacks the sbin directories.
const PLACES: [&str; 3] = ["", "/usr/sbin/", "/sbin/"];

/// Failure of a command of iptables.
#[derive(Debug, thiserror::Error)]
pub enum IptablesError {
    /// iptables is not installed.
    #[error(
        "command `iptables-restore` not found: install the package iptables (Debian: apt install iptables)"
    )]
    Missing,
    /// Processes, memory or descriptors have run out, or the program for IPv6 is missing.
    #[error("cannot run {0}: {1}")]
    Run(String, io::Error),
    /// The program did not finish in time and was killed.
    #[error("{program} did not end within {} s and was killed; does `iptables -S` end?", limit.as_secs())]
    Hangs {
        /// The program.
        program: String,
        /// Time after which pepd killed it.
        limit: Duration,
    },
    /// The table has rules that this version of iptables does not understand.
    #[error(
        "{0} cannot list the table {1}: another program has put rules into it that iptables does not \
         understand (`nft list ruleset` shows them); remove them, then `pepd cleanup`, or use `intercept.rules = \"nft\"`"
    )]
    Unreadable(String, String),
    /// The program or the kernel rejected the rules.
    #[error("{0} refused: {1}")]
    Refused(String, String),
}

impl IptablesError {
    /// Returns true if another program held the lock of xtables.
    pub fn is_locked(&self) -> bool {
        matches!(self, Self::Refused(_, said) if said.contains("xtables lock"))
    }
}

/// Words of iptables-save about a table with rules of nft that it cannot list.
const INCOMPATIBLE: &str = "is incompatible, use 'nft' tool";

/// A backend of iptables that is installed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Iptables {
    place: &'static str,
    names: [&'static str; 2],
    version: String,
}

impl Iptables {
    /// Returns the installed backends, the system's choice first.
    ///
    /// # Errors
    /// When a program cannot be run.
    pub async fn installed() -> Result<Vec<Self>, IptablesError> {
        let mut found: Vec<Self> = Vec::new();
        for names in NAMES {
            for place in PLACES {
                let program = format!("{place}{}-restore", names[0]);
                let said = match run(&program, &["--version"], None).await {
                    Err(IptablesError::Missing) => continue,
                    said => said?,
                };
                let version = said.split_once(' ').map_or("", |(_, version)| version);
                let version = version.trim().to_owned();
                if found.iter().all(|other| other.version != version) {
                    found.push(Self {
                        place,
                        names,
                        version,
                    });
                }
                break;
            }
        }
        Ok(found)
    }

    /// Returns name and version, such as `iptables v1.8.9 (nf_tables)`.
    pub fn version(&self) -> String {
        format!("iptables {}", self.version)
    }

    /// Returns true if a table may have rules. A query would create a table of the legacy backend.
    pub fn may_have(&self, table: &str) -> bool {
        self.version.contains("nf_tables") || has_legacy_table(table)
    }

    /// Applies input for iptables-restore: each table as a whole or not at all.
    ///
    /// # Errors
    /// When the program cannot be run or rejects it, or another program holds the lock for two
    /// seconds ([`IptablesError::is_locked`]).
    pub async fn restore(&self, family: Family, input: &str) -> Result<(), IptablesError> {
        let program = self.program(family, "restore");
        run(&program, &["-w", "2", "--noflush"], Some(input)).await?;
        Ok(())
    }

    /// Lists a table with the counters of its rules.
    ///
    /// # Errors
    /// When the program cannot be run, or the kernel lacks the table.
    pub async fn save(&self, family: Family, table: &str) -> Result<String, IptablesError> {
        let program = self.program(family, "save");
        let saved = run(&program, &["-c", "-t", table], None).await?;
        // The exit status is 0 nevertheless.
        if saved.contains(INCOMPATIBLE) {
            return Err(IptablesError::Unreadable(program, table.to_owned()));
        }
        Ok(saved)
    }

    fn program(&self, family: Family, what: &str) -> String {
        let [v4, v6] = self.names;
        let name = match family {
            Family::V4 => v4,
            Family::V6 => v6,
        };
        format!("{}{name}-{what}", self.place)
    }
}

async fn run(program: &str, args: &[&str], input: Option<&str>) -> Result<String, IptablesError> {
    let output = program::run(program, args, input).await;
    let output = output.map_err(|err| match err {
        RunError::Missing if args == ["--version"] => IptablesError::Missing,
        RunError::Missing => IptablesError::Run(program.to_owned(), io::ErrorKind::NotFound.into()),
        RunError::Start(err) => IptablesError::Run(program.to_owned(), err),
        RunError::Hangs(limit) => IptablesError::Hangs {
            program: program.to_owned(),
            limit,
        },
    })?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(IptablesError::Refused(
        program.to_owned(),
        complaint(&output.stderr),
    ))
}

/// Returns the errors of the program as one line.
fn complaint(stderr: &[u8]) -> String {
    let text = String::from_utf8_lossy(stderr);
    let lines = text.lines().map(str::trim);
    let lines = lines.filter(|line| !line.is_empty() && !line.starts_with("Try `"));
    let message = lines.take(3).collect::<Vec<_>>().join("; ");
    message.chars().take(400).collect()
}

/// Returns true if the kernel has a table of the legacy backend, or only root may know.
fn has_legacy_table(table: &str) -> bool {
    let has = |names: &str| match fs::read_to_string(names) {
        Ok(names) => names.lines().any(|name| name == table),
        Err(err) => err.kind() == io::ErrorKind::PermissionDenied,
    };
    has("/proc/net/ip_tables_names") || has("/proc/net/ip6_tables_names")
}
