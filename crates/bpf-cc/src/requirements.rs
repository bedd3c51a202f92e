//! What the kernel and the process must have before a program can be loaded.

use std::path::Path;

use caps::{CapSet, Capability};

use crate::{LoadError, error::Missing};

const KERNEL_BTF: &str = "/sys/kernel/btf/vmlinux";

/// `bpf(2)` asks for the first, for tracing-like programs such as these for the second, and for
/// congestion controls, which are network administration, for the third.
const NEEDED: [(Capability, &str); 3] = [
    (Capability::CAP_BPF, "CAP_BPF"),
    (Capability::CAP_PERFMON, "CAP_PERFMON"),
    (Capability::CAP_NET_ADMIN, "CAP_NET_ADMIN"),
];

/// Whether programs can be loaded at all, as far as can be told without loading one.
///
/// # Errors
/// [`LoadError::NoBtf`], [`LoadError::Capabilities`].
pub fn check() -> Result<(), LoadError> {
    if !Path::new(KERNEL_BTF).exists() {
        return Err(LoadError::NoBtf);
    }
    match missing_capabilities() {
        missing if missing.is_empty() => Ok(()),
        missing => Err(LoadError::Capabilities(Missing(missing))),
    }
}

/// Those of the capabilities needed to load programs that this process does not have effective.
pub fn missing_capabilities() -> Vec<&'static str> {
    let has = |capability| caps::has_cap(None, CapSet::Effective, capability).unwrap_or(false);
    // CAP_SYS_ADMIN stands in for the other two, as it did before they existed (Linux 5.8).
    let stood_in =
        |capability| capability != Capability::CAP_NET_ADMIN && has(Capability::CAP_SYS_ADMIN);
    NEEDED
        .into_iter()
        .filter(|&(capability, _)| !(has(capability) || stood_in(capability)))
        .map(|(_, name)| name)
        .collect()
}
