use std::{io, path::PathBuf};

/// Why a namespace, or something in it, could not be made.
#[derive(Debug, thiserror::Error)]
pub enum NetnsError {
    /// Needs `CAP_SYS_ADMIN`, or a user namespace that has it.
    #[error("cannot create a network namespace (be root, or allow user namespaces): {0}")]
    Create(#[source] io::Error),
    /// The name, process or path does not exist, or may not be opened.
    #[error("cannot open the network namespace {path}: {source}")]
    Open {
        /// The file that stands for it.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// Needs `CAP_SYS_ADMIN` in the user namespace that owns the network namespace.
    #[error("cannot enter the network namespace: {0}")]
    Enter(#[source] io::Error),
    /// The system's limit of threads or memory.
    #[error("cannot start a thread: {0}")]
    Thread(#[source] io::Error),
    /// The kernel refused a change of an interface, address or route.
    #[error("cannot {what}: {source}")]
    Netlink {
        /// The change, in words.
        what: String,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
    /// The setting does not exist in this kernel, or refuses the value.
    #[error("cannot set {key} to `{value}`: {source}")]
    Sysctl {
        /// Dotted name.
        key: String,
        /// The value refused.
        value: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The setting does not exist in this kernel.
    #[error("cannot read {key}: {source}")]
    ReadSysctl {
        /// Dotted name.
        key: String,
        /// Why.
        #[source]
        source: io::Error,
    },
}

impl NetnsError {
    pub(super) fn netlink(what: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Self::Netlink {
            what: what.into(),
            source: source.into(),
        }
    }
}
