//! Congestion controls of the running kernel.

use std::{
    fs,
    io::{self, BufRead as _, BufReader},
    path::Path,
};

const AVAILABLE: &str = "/proc/sys/net/ipv4/tcp_available_congestion_control";

/// Returns the registered congestion controls: built-in, from modules, and from eBPF programs of
/// any process.
///
/// # Errors
/// When /proc cannot be read.
pub fn available() -> io::Result<Vec<String>> {
    let names = fs::read_to_string(AVAILABLE)?;
    Ok(names.split_whitespace().map(str::to_owned).collect())
}

/// Returns the default congestion control of sockets.
///
/// # Errors
/// When /proc cannot be read.
pub fn default() -> io::Result<String> {
    let name = fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control")?;
    Ok(name.trim().to_owned())
}

/// Returns whether the control registered under this name is the kernel's own, not a program that a
/// process loaded and may unload.
pub fn is_native(name: &str) -> bool {
    // Neither appears as a module in /sys or in the list of built-in modules.
    matches!(name, "reno" | "cubic")
        || Path::new("/sys/module")
            .join(format!("tcp_{name}"))
            .exists()
        || match of_modules("modules.builtin") {
            Some(list) => names_of_modules(&list).contains(&name),
            // For example in a container without the kernel's files.
            None => has_code(name),
        }
}

/// Returns the controls that exist as modules, loaded or not; `None` where the kernel's files are
/// missing.
pub fn modules() -> Option<Vec<String>> {
    let list = of_modules("modules.dep")?;
    let names = names_of_modules(&list).into_iter();
    Some(names.map(str::to_owned).collect())
}

fn of_modules(file: &str) -> Option<String> {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").ok()?;
    fs::read_to_string(format!("/lib/modules/{}/{file}", release.trim())).ok()
}

fn names_of_modules(list: &str) -> Vec<&str> {
    let names = list.lines().filter_map(name_of_module);
    // `tcp_diag` is no congestion control: it reports sockets.
    names.filter(|name| *name != "diag").collect()
}

/// Returns `hybla` for `kernel/net/ipv4/tcp_hybla.ko.xz: ...`.
fn name_of_module(line: &str) -> Option<&str> {
    let (path, _) = line.split_once(':').unwrap_or((line, ""));
    let (_, file) = path.rsplit_once("/tcp_")?;
    Some(file.split_once(".ko")?.0)
}

/// Returns whether the kernel has functions named like those of a control.
fn has_code(name: &str) -> bool {
    let Ok(symbols) = fs::File::open("/proc/kallsyms") else {
        return false;
    };
    let mut symbols = BufReader::new(symbols);
    let mut line = String::new();
    while symbols.read_line(&mut line).is_ok_and(|len| len > 0) {
        if is_function_of(name, &line) {
            return true;
        }
        line.clear();
    }
    false
}

/// Returns whether a symbol is a function of the program; such symbols are
/// `bpf_prog_TAG_hybla_init`.
fn is_function_of(name: &str, symbol: &str) -> bool {
    let Some(function) = symbol.split_whitespace().nth(2) else {
        return false;
    };
    let rest = |prefix: &str| function.strip_prefix(prefix)?.strip_prefix(name);
    rest("tcp_").is_some_and(|rest| rest.starts_with('_'))
        || rest("").is_some_and(|rest| {
            matches!(
                rest,
                "_init" | "_ssthresh" | "_undo_cwnd" | "_cong_avoid" | "_recalc_ssthresh"
            )
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_are_known_by_their_files() {
        let list = "kernel/net/ipv4/tcp_bbr.ko.xz: kernel/net/tcp_none.ko\n\
                    kernel/net/ipv4/tcp_diag.ko: kernel/net/ipv4/inet_diag.ko\n\
                    kernel/net/ipv4/tcp_hybla.ko\nkernel/net/tcp/other.ko:\n";
        assert_eq!(names_of_modules(list), ["bbr", "hybla"]);
    }

    #[test]
    fn functions_of_the_kernel_are_distinguished_from_programs() {
        let is = |symbol| is_function_of("hybla", symbol);
        assert!(is("0000000000000000 t hybla_undo_cwnd\n"));
        assert!(is("0000000000000000 t tcp_hybla_pkts_acked\n"));
        assert!(is("0000000000000000 t hybla_init\t[tcp_hybla]\n"));
        assert!(!is(
            "ffffffffc0025be8 t bpf_prog_0c8e52b75dab7b37_hybla_init\t[bpf]\n"
        ));
        assert!(!is("0000000000000000 t hybla_sat_init\n"));
        assert!(!is("0000000000000000 t tcp_hyblast_init\n"));
        assert!(!is("\n"));
    }

    #[test]
    fn what_the_kernel_prefers_is_the_kernels() {
        assert!(is_native(&default().unwrap()));
    }

    #[test]
    fn reno_is_the_kernels() {
        assert!(is_native("reno"));
        assert!(!is_native("nonesuch"));
        assert!(available().unwrap().iter().any(|name| name == "reno"));
    }
}
