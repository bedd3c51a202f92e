//! The `nft` command.

use std::{io, time::Duration};

use serde_json::Value;

use crate::program::{self, RunError};

/// Candidate places of `nft`: `PATH` often lacks the sbin directories.
const PLACES: [&str; 3] = ["nft", "/usr/sbin/nft", "/sbin/nft"];

/// Standard input of nft, from which it reads a transaction. It is a file, so that nft can show the
/// wrong line. `-` would be /dev/stdin, which some containers lack.
const INPUT: &str = "/proc/self/fd/0";

/// First version of nft with the language features that pepd uses: that of Debian 11.
const OLDEST: (u32, u32, u32) = (0, 9, 8);

/// First version of nft that leaves out no elements of sets without a name: that of Debian 12.
const TERSE: (u32, u32, u32) = (1, 0, 6);

/// Failure of nft.
#[derive(Debug, thiserror::Error)]
pub enum NftError {
    /// nftables is not installed.
    #[error("command `nft` not found: install the package nftables (Debian: apt install nftables)")]
    Missing,
    /// nft is too old.
    #[error("this is nft {version}; pepd needs {} or later", dotted(OLDEST))]
    TooOld {
        /// Version that nft reports.
        version: String,
    },
    /// Processes, memory or descriptors have run out.
    #[error("cannot run nft: {0}")]
    Run(io::Error),
    /// nft, or the kernel, did not finish in time; nft was killed.
    #[error("nft did not end within {} s and was killed; does `nft list tables` end?", .0.as_secs())]
    Hangs(Duration),
    /// nft or the kernel rejected the transaction.
    #[error("nft refused: {0}")]
    Refused(String),
    /// nft's answer differs from its documentation.
    #[error("cannot read nft's answer: {0}")]
    Answer(String),
}

/// The `nft` command.
#[derive(Debug, Clone)]
pub struct Nft {
    path: &'static str,
    /// True if it can leave out elements of sets that have names, and only these.
    is_terse: bool,
}

impl Nft {
    /// Looks for nft.
    ///
    /// # Errors
    /// [`NftError::Missing`] when it is not found, [`NftError::TooOld`].
    pub async fn find() -> Result<Self, NftError> {
        for path in PLACES {
            match run(path, &["--version"], None).await {
                Err(NftError::Missing) => {}
                Err(err) => return Err(err),
                Ok(said) => {
                    let version = version(&said);
                    let is_terse = version.is_some_and(|(_, version)| version >= TERSE);
                    // An unknown version is tried.
                    return match version.filter(|(_, version)| *version < OLDEST) {
                        Some((version, _)) => Err(NftError::TooOld {
                            version: version.to_owned(),
                        }),
                        None => Ok(Self { path, is_terse }),
                    };
                }
            }
        }
        Err(NftError::Missing)
    }

    /// Executes a transaction as a whole or not at all.
    ///
    /// # Errors
    /// When nft cannot be run or rejects it.
    pub async fn apply(&self, transaction: &str) -> Result<(), NftError> {
        run(self.path, &["-f", INPUT], Some(transaction)).await?;
        Ok(())
    }

    /// Checks a transaction without executing it.
    ///
    /// # Errors
    /// [`NftError::Refused`] when nft or the kernel would reject it; others when nft cannot be run.
    pub async fn check(&self, transaction: &str) -> Result<(), NftError> {
        run(self.path, &["-c", "-f", INPUT], Some(transaction)).await?;
        Ok(())
    }

    /// Lists an object as JSON; tables come without the elements of their sets, of which other
    /// programs may have millions. Example: `["table", "inet", "pepd"]`.
    ///
    /// # Errors
    /// When nft cannot be run, the object does not exist, or the answer is malformed.
    pub async fn list(&self, what: &[&str]) -> Result<Value, NftError> {
        let is_terse = match what {
            ["ruleset", ..] => self.is_terse,
            ["table", ..] => true,
            _ => false,
        };
        let mut args = vec!["-j"];
        args.extend(is_terse.then_some("-t"));
        args.push("list");
        args.extend(what);
        let text = run(self.path, &args, None).await?;
        serde_json::from_str(&text).map_err(|err| NftError::Answer(err.to_string()))
    }
}

/// Parses `nftables v1.0.6 (Lester Gooch #5)` into the version and its numbers.
fn version(said: &str) -> Option<(&str, (u32, u32, u32))> {
    let version = said.split_whitespace().nth(1)?.strip_prefix('v')?;
    let mut numbers = version.split('.').map(str::parse);
    let mut next = || numbers.next()?.ok();
    Some((version, (next()?, next()?, next().unwrap_or(0))))
}

fn dotted((major, minor, patch): (u32, u32, u32)) -> String {
    format!("{major}.{minor}.{patch}")
}

async fn run(path: &str, args: &[&str], input: Option<&str>) -> Result<String, NftError> {
    let output = program::run(path, args, input).await?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(NftError::Refused(complaint(&output.stderr)))
    }
}

impl From<RunError> for NftError {
    fn from(err: RunError) -> Self {
        match err {
            RunError::Missing => Self::Missing,
            RunError::Start(err) => Self::Run(err),
            RunError::Hangs(limit) => Self::Hangs(limit),
        }
    }
}

/// Returns the errors of nft, each with the line that it shows, as one line.
fn complaint(stderr: &[u8]) -> String {
    let text = String::from_utf8_lossy(stderr);
    let mut lines = text.lines().map(str::trim).peekable();
    let mut errors = Vec::new();
    while let Some(line) = lines.next() {
        let Some((_, error)) = line.split_once("Error: ") else {
            continue;
        };
        let shown = lines.next_if(|line| !line.is_empty() && !line.contains("Error: "));
        errors.push(match shown {
            Some(shown) => format!("{error} (in: {shown})"),
            None => error.to_owned(),
        });
    }
    errors.truncate(3);
    let message = match errors.as_slice() {
        [] => text.trim().replace('\n', "; "),
        errors => errors.join("; "),
    };
    message.chars().take(400).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_complaint_is_one_line_with_what_is_wrong() {
        let stderr = b"/proc/self/fd/0:4:1-10: Error: syntax error, unexpected string\n\
                       \t\ttcp dport nonsense\n          ^^^^^^^^\n\
                       netlink: Error: cache initialization failed: Operation not supported\n";
        assert_eq!(
            complaint(stderr),
            "syntax error, unexpected string (in: tcp dport nonsense); \
             cache initialization failed: Operation not supported"
        );
        assert_eq!(complaint(b"nft: not\nhere\n"), "nft: not; here");
        assert_eq!(complaint(&vec![b'x'; 5000]).len(), 400);
    }

    #[test]
    fn versions_are_compared_by_their_numbers() {
        let of = |said| version(said).map(|(_, version)| version);
        assert_eq!(of("nftables v1.0.6 (Lester Gooch #5)\n"), Some((1, 0, 6)));
        assert_eq!(of("nftables v1.1 (x)"), Some((1, 1, 0)));
        assert!(of("nftables v0.9.3 (Topsy)") < Some(OLDEST));
        assert_eq!(of("something else"), None);
    }
}
