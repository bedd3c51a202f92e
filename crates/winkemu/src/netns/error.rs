use std::{io, path::PathBuf};

/// Failure of a namespace, or of an operation in it.
#[derive(Debug, thiserror::Error)]
pub enum NetnsError {
    /// Cannot create a namespace: needs `CAP_SYS_ADMIN`, or a user namespace that has it.
    #[error("cannot create a network namespace (run as root, or allow user namespaces): {0}")]
    Create(#[source] io::Error),
    /// Namespace that does not exist, or that may not be opened.
    #[error("cannot open network namespace {path}: {source}")]
    Open {
        /// File of the namespace.
        path: PathBuf,
        /// Cause.
        #[source]
        source: io::Error,
    },
    /// Cannot enter a namespace: needs `CAP_SYS_ADMIN` in the user namespace that owns it.
    #[error("cannot enter network namespace: {0}")]
    Enter(#[source] io::Error),
    /// The system's limit of threads or memory is reached.
    #[error("cannot start a thread: {0}")]
    Thread(#[source] io::Error),
    /// Change of an interface, address or route that the kernel refused.
    #[error("cannot {what}: {source}")]
    Netlink {
        /// Change in words.
        what: String,
        /// Answer of the kernel.
        #[source]
        source: io::Error,
    },
    /// Kernel setting that does not exist, or that refuses the value.
    #[error("cannot set {key} to `{value}`: {source}")]
    Sysctl {
        /// Dotted name.
        key: String,
        /// Refused value.
        value: String,
        /// Cause.
        #[source]
        source: io::Error,
    },
    /// Kernel setting that does not exist.
    #[error("cannot read {key}: {source}")]
    ReadSysctl {
        /// Dotted name.
        key: String,
        /// Cause.
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
