//! Errors of loading a congestion control.

use std::fmt;

use crate::Control;

/// The reason why this machine cannot load a congestion control, and the remedy.
#[derive(Debug, Clone, thiserror::Error)]
pub enum LoadError {
    /// The kernel lacks BTF for its own types, so programs cannot be relocated to it.
    #[error(
        "this kernel has no BTF (/sys/kernel/btf/vmlinux is missing): eBPF congestion controls need one built with CONFIG_DEBUG_INFO_BTF"
    )]
    NoBtf,
    /// The kernel's BPF is too old for the programs.
    #[error("eBPF congestion controls need Linux {needs} or later; this is {release}")]
    TooOld {
        /// The first version that is new enough.
        needs: &'static str,
        /// The running version, as the kernel reports it.
        release: String,
    },
    /// The kernel is built without support for congestion controls in eBPF.
    #[error(
        "this kernel takes no eBPF congestion controls: they need one built with CONFIG_BPF_SYSCALL and CONFIG_BPF_JIT"
    )]
    NotBuilt,
    /// The process lacks capabilities to load programs.
    #[error(
        "eBPF congestion controls need {0}, which this process lacks: run it as root, or add to its unit AmbientCapabilities={0}"
    )]
    Capabilities(Missing),
    /// A filter of system calls, or a security module, denies `bpf(2)`.
    #[error(
        "this process has the capabilities for eBPF congestion controls, but bpf() is denied ({0}): allow that system call in the container's seccomp profile, or in SystemCallFilter= of the unit"
    )]
    Forbidden(String),
    /// The kernel lacks a feature that the program needs, or rejects it for another reason.
    #[error("the kernel refuses the eBPF congestion control `{control}`: {reason}")]
    Refused {
        /// The rejected congestion control.
        control: Control,
        /// The error, with the last lines of the log of libbpf and the kernel.
        reason: String,
    },
    /// Every candidate name is in use.
    #[error(
        "the name `{control}` and the {tried} others that were tried are taken by other congestion controls: end processes that hold them (`bpftool struct_ops list` shows which)"
    )]
    NamesTaken {
        /// The congestion control to be registered.
        control: Control,
        /// The number of alternative names that were tried.
        tried: usize,
    },
}

/// Missing capabilities, by name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Missing(pub Vec<&'static str>);

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join(" "))
    }
}
