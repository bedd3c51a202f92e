//! Why a control cannot be had.

use std::fmt;

use crate::Control;

/// Why a control cannot be had on this machine, and what to do about it.
#[derive(Debug, Clone, thiserror::Error)]
pub enum LoadError {
    /// The kernel does not describe its own types, so programs cannot be fitted to it.
    #[error(
        "this kernel has no BTF (/sys/kernel/btf/vmlinux is missing): eBPF congestion controls need one built with CONFIG_DEBUG_INFO_BTF"
    )]
    NoBtf,
    /// The kernel's BPF is that of an earlier version than the programs need.
    #[error("eBPF congestion controls need Linux {needs} or later; this is {release}")]
    TooOld {
        /// The first version that has all of it.
        needs: &'static str,
        /// The kernel's own word for its version.
        release: String,
    },
    /// The kernel's configuration leaves out what programs as congestion controls need.
    #[error(
        "this kernel takes no eBPF congestion controls: they need one built with CONFIG_BPF_SYSCALL and CONFIG_BPF_JIT"
    )]
    NotBuilt,
    /// The process may not load programs.
    #[error(
        "eBPF congestion controls need {0}, which this process lacks: run it as root, or add to its unit AmbientCapabilities={0}"
    )]
    Capabilities(Missing),
    /// A filter of system calls, or a security module, refuses `bpf(2)`.
    #[error(
        "this process has the capabilities for eBPF congestion controls, and is refused bpf() all the same ({0}): allow that system call in the container's seccomp profile, or in SystemCallFilter= of the unit"
    )]
    Forbidden(String),
    /// The kernel may not have what the program needs, or refuses it for another reason.
    #[error("the kernel refuses the eBPF congestion control `{control}`: {reason}")]
    Refused {
        /// Which one.
        control: Control,
        /// The error, and the end of what libbpf and the kernel said.
        reason: String,
    },
    /// Every name under which it might be registered is in use.
    #[error(
        "the name `{control}` and the {tried} others that were tried are taken by other congestion controls: end processes that hold them (`bpftool struct_ops list` shows which)"
    )]
    NamesTaken {
        /// Which one.
        control: Control,
        /// How many other names were tried.
        tried: usize,
    },
}

/// Capabilities by name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Missing(pub Vec<&'static str>);

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join(" "))
    }
}
