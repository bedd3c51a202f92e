//! Keys for pepds that are peers.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use super::{ProgramError, command::last_lines, pepd_binary, run_to_end};

/// Time limit of key generation: it takes milliseconds, but the machine may be busy.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Key pairs of some nodes, and the pre-shared key of all.
#[derive(Debug)]
pub struct Keys {
    directory: PathBuf,
    public: BTreeMap<String, String>,
}

impl Keys {
    /// Generates the keys with pepd, in an existing directory; does nothing without nodes.
    ///
    /// # Errors
    /// pepd is missing, or cannot write the keys.
    pub fn make(directory: &Path, nodes: &[&str]) -> Result<Self, ProgramError> {
        let mut keys = Self {
            directory: directory.to_owned(),
            public: BTreeMap::new(),
        };
        for node in nodes {
            let public = keygen("--out", &keys.private(node))?;
            keys.public.insert((*node).to_owned(), public);
        }
        if !keys.public.is_empty() {
            keygen("--psk", &keys.shared())?;
        }
        Ok(keys)
    }

    /// File with a node's private key.
    pub fn private(&self, node: &str) -> PathBuf {
        self.directory.join(format!("{node}.key"))
    }

    /// Public key of a node; empty for nodes without one.
    pub fn public(&self, node: &str) -> &str {
        self.public.get(node).map_or("", String::as_str)
    }

    /// File with the pre-shared key.
    pub fn shared(&self) -> PathBuf {
        self.directory.join("shared.psk")
    }
}

fn keygen(option: &str, file: &Path) -> Result<String, ProgramError> {
    let mut command = Command::new(pepd_binary()?);
    command.arg("keygen").arg(option).arg(file);
    let finished = run_to_end(&mut command, "pepd", TIMEOUT)?;
    if !finished.status.success() {
        return Err(ProgramError::Ended {
            program: "pepd keygen".to_owned(),
            status: finished.status,
            log: last_lines(&finished.stderr),
        });
    }
    Ok(finished.stdout.trim().to_owned())
}
