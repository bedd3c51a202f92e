//! What the running kernel has of its own.

use std::{fs, io, path::Path};

const AVAILABLE: &str = "/proc/sys/net/ipv4/tcp_available_congestion_control";

/// The congestion controls that are registered now: the kernel's, those of loaded modules, and
/// eBPF programs of whichever process.
///
/// # Errors
/// When /proc cannot be read.
pub fn available() -> io::Result<Vec<String>> {
    let names = fs::read_to_string(AVAILABLE)?;
    Ok(names.split_whitespace().map(str::to_owned).collect())
}

/// Whether a control that is registered under this name is the kernel's own, not a program that some
/// process loaded and may unload.
pub fn is_native(name: &str) -> bool {
    // Neither of the two is a module that /sys or the list of built-in modules would show.
    matches!(name, "reno" | "cubic")
        || Path::new("/sys/module")
            .join(format!("tcp_{name}"))
            .exists()
        || built_in().is_some_and(|list| lists_module(&list, name))
}

fn built_in() -> Option<String> {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").ok()?;
    fs::read_to_string(format!("/lib/modules/{}/modules.builtin", release.trim())).ok()
}

fn lists_module(list: &str, name: &str) -> bool {
    let file = format!("/tcp_{name}.ko");
    list.lines().any(|line| line.ends_with(&file))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_built_in_module_is_found_by_its_file() {
        let list = "kernel/net/ipv4/tcp_bbr.ko\nkernel/net/ipv4/tcp_hybla.ko\n";
        assert!(lists_module(list, "hybla"));
        assert!(!lists_module(list, "hyb"));
        assert!(!lists_module(list, "hybla_sat"));
    }

    #[test]
    fn reno_is_the_kernels() {
        assert!(is_native("reno"));
        assert!(!is_native("nonesuch"));
        assert!(available().unwrap().iter().any(|name| name == "reno"));
    }
}
