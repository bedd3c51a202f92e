//! Requirements on the machine: capabilities, kernel features, settings, limits, a clock.

use std::io;

use caps::{CapSet, Capability};
use nix::{
    sys::resource::{Resource, getrlimit},
    unistd::geteuid,
};
use pep_core::config::{Config, RulesBy};
use pepd_api::text;
use pepd_intercept::{
    iptables::{Iptables, IptablesError},
    nft::{Nft, NftError, install_transaction},
    rules::{Features, Ruleset, lanes, lans, passing_tun},
    setup::{self, SetupError},
};
use pepd_relay::limits::{descriptors, flow_cap};
use pepd_sys::{cgroup, clock, congestion::Catalogue};
use pepd_tunnel::{custody, paths};
use units::counted;

use super::{Finding, Net, State, live::Running, read, sockets, sysctl, unit::Unit};

/// Returns true if this process may query nft.
pub(super) fn may_ask_nft() -> bool {
    caps::has_cap(None, CapSet::Effective, Capability::CAP_NET_ADMIN).unwrap_or(true)
}

/// Returns a finding about the capabilities of the running pepd, or of the unit, or else of this
/// process. If pepd `loads` its own congestion controls, it includes those for that.
pub(super) fn capabilities(running: Option<&Running>, unit: Option<&Unit>, loads: bool) -> Finding {
    if let Some(running) = running {
        let pid = running.status.pid;
        let effective = effective(&read(&format!("/proc/{pid}/status")));
        // It has already loaded its controls, and dropped the capabilities for that.
        return capabilities_of(
            &format!("the running pepd (process {pid})"),
            effective,
            false,
        );
    }
    if let Some(unit) = unit {
        let (who, effective) = unit.capabilities();
        return capabilities_of(who, Some(effective), loads);
    }
    own_capabilities(
        geteuid().is_root(),
        effective(&read("/proc/self/status")),
        loads,
    )
}

/// Returns a finding about the user's own capabilities, if those of pepd are unknown.
fn own_capabilities(is_root: bool, effective: Option<u64>, loads: bool) -> Finding {
    let what = "capabilities";
    let who = if is_root { "you are root and" } else { "you" };
    let Some(effective) = effective else {
        return unreadable(what, "this process");
    };
    let missing = missing(effective);
    if missing.is_empty() {
        let seen = format!("{who} have all that pepd needs (no pepd is running)");
        return lacking_for_loading("this process", effective, loads)
            .unwrap_or(Finding::ok(what, seen));
    }
    let seen = format!("{who} lack {}, and no pepd answers", missing.join(" "));
    if is_root {
        let remedy = "in a unit, list them in AmbientCapabilities and CapabilityBoundingSet; in a \
            container, pass --cap-add for each";
        return Finding::fail(what, seen, remedy);
    }
    // Another user may run pepd.
    Finding::unknown(
        what,
        seen,
        "check as the user who runs it: `sudo pepd check`",
    )
}

fn unreadable(what: &str, who: &str) -> Finding {
    Finding::unknown(
        what,
        format!("capabilities of {who} are unreadable"),
        "check that /proc is mounted and shows other processes (hidepid)",
    )
}

fn missing(effective: u64) -> Vec<String> {
    let missing = setup::CAPABILITIES.into_iter();
    let missing = missing.filter(|one| effective & one.bitmask() == 0);
    missing.map(|one| one.to_string()).collect()
}

/// Capabilities for loading congestion controls, besides those that pepd always needs.
const LOADING: [Capability; 2] = [Capability::CAP_BPF, Capability::CAP_PERFMON];

/// Returns the bits of `CapEff` in a `/proc/PID/status`.
fn effective(status: &str) -> Option<u64> {
    let mut lines = status.lines();
    let mask = lines.find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(mask.trim(), 16).ok()
}

/// Returns a warning if capabilities are missing that only the loading of congestion controls
/// needs.
fn lacking_for_loading(who: &str, effective: u64, loads: bool) -> Option<Finding> {
    // CAP_SYS_ADMIN includes both, but pepd drops it at its start.
    let lacks = |capability: &Capability| effective & capability.bitmask() == 0;
    let missing = LOADING.iter().filter(|one| loads && lacks(one));
    let missing: Vec<_> = missing.map(ToString::to_string).collect();
    let list = missing.join(" ");
    (!missing.is_empty()).then(|| {
        Finding::warn(
            "capabilities",
            format!(
                "{who} lacks {list}, which eBPF congestion controls need: the next one of `congestion` is used"
            ),
            format!(
                "run pepd as root, or add to its unit AmbientCapabilities={list} (and to its CapabilityBoundingSet)"
            ),
        )
    })
}

fn capabilities_of(who: &str, effective: Option<u64>, loads: bool) -> Finding {
    let what = "capabilities";
    let Some(effective) = effective else {
        return unreadable(what, who);
    };
    let missing = missing(effective);
    if missing.is_empty() {
        let seen = format!("{who} has all that pepd needs");
        return lacking_for_loading(who, effective, loads).unwrap_or(Finding::ok(what, seen));
    }
    let list = missing.join(" ");
    Finding::fail(
        what,
        format!("{who} lacks {list}"),
        "run pepd as root, or grant them: in a unit, list them in AmbientCapabilities and \
         CapabilityBoundingSet; in a container, pass --cap-add for each; elsewhere use setcap. \
         Then restart pepd",
    )
}

/// Returns a finding about the features of the kernel and nft that the rules need.
pub(super) async fn kernel(config: &Config, runs: bool) -> Finding {
    let by_iptables = config.intercept.rules == RulesBy::Iptables;
    let what = match config.intercept.rules {
        RulesBy::Manual => return Finding::ok("parts of the kernel", MANUAL),
        RulesBy::Iptables => "parts of the kernel (xt_TPROXY, xt_socket, xt_CT, xt_recent)",
        RulesBy::Auto | RulesBy::Nft => "parts of the kernel (nft tproxy, socket, ct)",
    };
    if runs {
        return Finding::ok(what, "in use by the running pepd");
    }
    if !may_ask_nft() {
        return Finding::unknown(
            what,
            "unknown: this process lacks CAP_NET_ADMIN",
            "run `pepd check` as root",
        );
    }
    if by_iptables {
        return kernel_of_iptables(what).await;
    }
    let found = kernel_of_nft(what, config).await;
    if found.state != State::Fail || config.intercept.rules == RulesBy::Nft {
        return found;
    }
    let instead = kernel_of_iptables(what).await;
    match instead.state {
        State::Fail => found,
        _ => Finding::info(
            what,
            format!(
                "{}; pepd uses iptables instead: {}",
                found.seen, instead.seen
            ),
            found.remedy.unwrap_or_default(),
        ),
    }
}

async fn kernel_of_nft(what: &str, config: &Config) -> Finding {
    let full = Features {
        ipv6: setup::has_ipv6(),
        ..Features::FULL
    };
    let nft = match Nft::find().await {
        Ok(nft) => nft,
        Err(err @ (NftError::Missing | NftError::TooOld { .. })) => return unasked(what, &err),
        Err(err) => {
            return Finding::unknown(what, err.to_string(), "check that `nft list tables` works");
        }
    };
    match setup::diagnose(&nft, full, config).await {
        Ok(can) => {
            let rules = install_transaction(&Ruleset::new(config, can));
            if let Err(err) = nft.check(&rules).await {
                return Finding::fail(
                    what,
                    format!("each is available, but pepd's rules are rejected: {err}"),
                    "use a newer nft, or another kernel (docs/install.md lists tested ones)",
                );
            }
            let lost = setup::degradations(can);
            if lost.is_empty() {
                Finding::ok(what, "there")
            } else {
                Finding::warn(
                    what,
                    lost.join("; "),
                    "use a kernel with all of nftables, or load its modules (modprobe)",
                )
            }
        }
        Err(err @ (SetupError::Kernel { .. } | SetupError::Nftables(_))) => {
            Finding::fail(what, "one is missing", err.to_string())
        }
        Err(err) => Finding::unknown(what, err.to_string(), "check that `nft list tables` works"),
    }
}

const MANUAL: &str = "those that the operator's own rules need (`intercept.rules = \"manual\"`)";

/// Returns a finding about the backends of iptables. Only a start can tell about modules.
async fn kernel_of_iptables(what: &str) -> Finding {
    match Iptables::installed().await {
        Ok(found) if found.is_empty() => {
            let missing = IptablesError::Missing.to_string();
            Finding::fail(what, "unknown: iptables is not installed", missing)
        }
        Ok(found) => {
            let versions: Vec<_> = found.iter().map(Iptables::version).collect();
            Finding::unknown(
                what,
                format!("known once pepd runs; installed: {}", versions.join(", ")),
                "start pepd: its log names a missing module",
            )
        }
        Err(err) => Finding::unknown(what, err.to_string(), "check that `iptables -S` works"),
    }
}

/// Returns the reason why nft cannot be queried for them.
fn unasked(what: &str, err: &NftError) -> Finding {
    let seen = match err {
        NftError::Missing => "unknown: nft is not installed",
        _ => "unknown: nft is too old",
    };
    Finding::fail(what, seen, err.to_string())
}

/// Returns a finding about TUN devices, if SYNs are held or sites have packets.
pub(super) fn tun(config: &Config, net: &Net, runs: bool) -> Option<Finding> {
    let what = "TUN devices";
    let names = lans(config).into_iter().filter_map(|lan| lan.tun);
    let names = names.chain(lanes(config).into_iter().map(|lane| lane.tun));
    let mut names = names.chain(passing_tun(config)).peekable();
    names.peek()?;
    let gone: Vec<_> = names.filter(|name| net.named(name).is_none()).collect();
    let is_needed =
        config.defers() || config.must_obey_forward() || config.packet_sites().next().is_some();
    Some(match pepd_sys::tun::open() {
        _ if runs && is_needed && !gone.is_empty() => Finding::fail(
            what,
            format!(
                "the running pepd has lost {}: their traffic passes unprotected",
                gone.join(", ")
            ),
            "another program has deleted them; restart pepd to recreate them",
        ),
        _ if runs && gone.is_empty() => Finding::ok(what, "in use by the running pepd"),
        Ok(_) => Finding::ok(what, "there"),
        Err(err) => {
            let seen = match err.raw_os_error() {
                Some(libc::ENOTTY) => "unavailable: /dev/net/tun is no TUN device",
                _ => "unavailable",
            };
            let remedy = SetupError::NoTun(err).to_string();
            match is_needed {
                true => Finding::fail(what, seen, remedy),
                false => {
                    let means = "so rules of other programs in `forward` do not hold";
                    Finding::warn(what, format!("{seen}, {means}"), remedy)
                }
            }
        }
    })
}

/// Returns findings about settings, limits and the clock.
pub(super) fn check(
    config: &Config,
    catalogue: Option<&Catalogue>,
    running: Option<&Running>,
) -> Vec<Finding> {
    let mut findings = forwarding(config);
    findings.extend(catalogue.map(|catalogue| sockets::congestion(config, catalogue)));
    findings.push(sockets::buffers(config));
    findings.push(sockets::tcp(config));
    findings.extend(sockets::conntrack(
        sysctl("net/netfilter/nf_conntrack_count"),
        sysctl("net/netfilter/nf_conntrack_max"),
        u64::from(config.limits.flows),
    ));
    // The user is in another cgroup, most likely, but may be in the same container.
    let process = running.map_or("self".to_owned(), |running| running.status.pid.to_string());
    findings.push(memory(
        config,
        &read("/proc/meminfo"),
        cgroup::memory_limit(&process),
    ));
    findings.extend(directory(config));
    findings.extend(state_directory(config));
    findings.push(clock_of(clock::is_synchronised().ok()));
    findings
}

fn forwarding(config: &Config) -> Vec<Finding> {
    let what = setup::FORWARDING;
    let warnings = match setup::check_sysctls(config) {
        Ok(warnings) => warnings,
        Err(SetupError::Forwarding {
            family,
            key,
            what: needs,
        }) => {
            let seen = format!("off for {family}, and {needs} needs it");
            return vec![Finding::fail(what, seen, format!("sysctl -w {key}=1"))];
        }
        Err(err) => return vec![Finding::fail(what, "off", err.to_string())],
    };
    let is_off = warnings.iter().any(|warning| warning.what == what);
    let families = if setup::serves(config, pepd_sys::leg::Family::V6) {
        "IPv4 and IPv6"
    } else {
        "IPv4"
    };
    let fine = (!is_off).then(|| Finding::ok(what, format!("on for {families}")));
    let warnings = warnings.into_iter();
    let warnings =
        warnings.map(|warning| Finding::warn(warning.what, warning.seen, warning.remedy));
    fine.into_iter().chain(warnings).collect()
}

/// Limit of descriptors of a process, and the flows that it allows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct May {
    who: String,
    descriptors: u64,
    flows: u64,
    /// Number required for the start; `None` if pepd runs.
    start: Option<u64>,
    /// Number required for `limits.flows`.
    all: u64,
}

/// Returns the limit of the running pepd, or of its unit, or else of this process, which had `open`
/// descriptors when it started, as its children will have.
pub(super) fn may_open(
    config: &Config,
    open: u64,
    running: Option<&Running>,
    unit: Option<&Unit>,
) -> Option<May> {
    if let Some(Running { status, .. }) = running {
        return Some(May {
            who: format!("the running pepd (process {})", status.pid),
            descriptors: status.limits.descriptors.most,
            flows: status.limits.flows.most,
            start: None,
            all: descriptors::in_full(config, open),
        });
    }
    let of_unit = unit.and_then(|unit| unit.descriptors);
    let (who, descriptors) = match of_unit {
        Some(descriptors) => ("pepd.service", descriptors),
        None => {
            let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).ok()?;
            ("processes started from here", pepd_sys::wide(hard))
        }
    };
    Some(May {
        who: who.to_owned(),
        descriptors,
        flows: flow_cap(
            config,
            descriptors,
            descriptors::without_flows(config, open),
        )
        .into(),
        start: Some(descriptors::to_start(config, open)),
        all: descriptors::in_full(config, open),
    })
}

/// Compares the limit of descriptors with the requirements of the start, and of `limits.flows`.
pub(super) fn descriptors(may: Option<May>) -> Finding {
    let what = "file descriptors";
    let Some(May {
        who,
        descriptors,
        flows,
        start,
        all: needed,
    }) = may
    else {
        return Finding::unknown(what, "their limit is unreadable", "`ulimit -Hn`");
    };
    if let Some(start) = start.filter(|start| descriptors < *start) {
        return Finding::fail(
            what,
            format!(
                "too few: pepd does not start ({who} may have {descriptors}, {start} needed to start, {needed} for \
                 `limits.flows`)"
            ),
            format!("LimitNOFILE={needed} in its unit, `ulimit -n {needed}` in a shell"),
        );
    }
    if descriptors >= needed {
        let seen = format!("{who} may have {descriptors}, of which pepd needs {needed} at most");
        return Finding::ok(what, seen);
    }
    Finding::warn(
        what,
        format!(
            "not enough: only {} can be accelerated ({who} may have {descriptors}, {needed} needed)",
            counted(flows, "flow")
        ),
        format!(
            "LimitNOFILE={needed} in its unit, `ulimit -n {needed}` in a shell; or a lower limits.flows"
        ),
    )
}

/// Returns a line of `/proc/meminfo`, in bytes.
fn amount(meminfo: &str, name: &str) -> Option<u64> {
    let line = meminfo
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    kib.checked_mul(1024)
}

/// Returns true if buffers of `limit` bytes leave less than a quarter of `total` to all else.
fn is_too_much(limit: u64, total: u64) -> bool {
    limit > total / 4 * 3
}

/// Returns a finding about memory. `cgroup` is the limit of the process, if it has one.
fn memory(config: &Config, meminfo: &str, cgroup: Option<u64>) -> Finding {
    let (what, limit) = ("memory", config.limits.memory.bytes());
    let Some(total) = amount(meminfo, "MemTotal") else {
        return Finding::unknown(
            what,
            "/proc/meminfo is unreadable",
            "check that /proc is mounted",
        );
    };
    let mut seen = format!(
        "limits.memory is {}, the machine has {}",
        text::bytes(limit),
        text::bytes(total)
    );
    let cgroup = cgroup.filter(|cgroup| *cgroup < total);
    if let Some(cgroup) = cgroup {
        seen += &format!(
            ", the cgroup (container, unit) may have {}",
            text::bytes(cgroup)
        );
        // This process may be in another cgroup, to which the configuration was fitted.
        match config.clone().fit_memory(cgroup) {
            Ok(None) => {}
            Ok(Some(warning)) => return Finding::warn(what, seen, warning.message),
            Err(error) => return Finding::fail(what, seen, error.message),
        }
    }
    if is_too_much(limit, total) {
        return Finding::warn(
            what,
            seen,
            "lower limits.memory: otherwise the machine may run out of memory, and kill other programs",
        );
    }
    Finding::ok(what, seen)
}

/// Returns a finding about `custody.directory`. Errors were reported with its line.
fn directory(config: &Config) -> Option<Finding> {
    let what = "custody.directory";
    let directory = config.custody.directory.as_ref()?;
    let look = custody::inspect(directory, config.custody.disk_bytes());
    let directory = directory.display();
    Some(match look {
        Ok(look) if look.warnings.is_empty() => {
            Finding::ok(what, format!("{directory}: {}", look.state))
        }
        Ok(look) => Finding::warn(
            what,
            format!("{directory}: {}", look.state),
            look.warnings.join("\n"),
        ),
        Err(err) => Finding::fail(what, format!("{directory} cannot be used"), err.to_string()),
    })
}

/// Returns a finding about the directory in which pepd stores its knowledge of the paths to peers.
fn state_directory(config: &Config) -> Option<Finding> {
    let what = "identity.state";
    let identity = config.identity.as_ref();
    let identity = identity.filter(|_| !config.peers.is_empty())?;
    let path = identity.state.as_ref()?;
    let directory = path.display();
    Some(match paths::inspect(path) {
        Ok(state) => Finding::ok(what, format!("{directory}: {state}")),
        Err(err) if err.kind() == io::ErrorKind::PermissionDenied && !geteuid().is_root() => {
            Finding::unknown(
                what,
                format!("this user may not write to {directory}"),
                "check as the user who runs pepd: `sudo pepd check`",
            )
        }
        Err(err) => Finding::warn(
            what,
            format!(
                "{directory} is unusable: {err}; after a restart pepd has to measure the paths to peers again"
            ),
            "free space there, or set a directory that pepd can write to; pepd creates only the last directory of the path",
        ),
    })
}

/// Returns a finding about the clock, which matters to times in logs and to contact plans.
fn clock_of(synchronised: Option<bool>) -> Finding {
    let what = "clock";
    match synchronised {
        Some(true) => Finding::ok(what, "synchronised"),
        Some(false) => Finding::warn(
            what,
            "not synchronised: times in logs may be wrong, and those of contact plans (`link.contacts`)",
            "run an NTP client (chrony, systemd-timesyncd); flows and tunnels do not need it",
        ),
        None => Finding::unknown(
            what,
            "unknown: the query is not permitted here",
            "run `timedatectl` outside the container",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_nft_is_named() {
        let missing = unasked("parts of the kernel", &NftError::Missing);
        assert_eq!(missing.state, State::Fail);
        assert!(missing.seen.contains("nft is not installed"), "{missing}");
        assert!(missing.remedy.unwrap().contains("apt install nftables"));
        let version = "0.9.0".to_owned();
        let old = unasked("parts of the kernel", &NftError::TooOld { version });
        assert!(old.seen.contains("nft is too old"), "{old}");
    }

    #[test]
    fn a_missing_capability_is_named() {
        let all = setup::CAPABILITIES
            .iter()
            .map(Capability::bitmask)
            .sum::<u64>();
        let status = format!("Name:\tpepd\nCapPrm:\t0\nCapEff:\t{all:016x}\n");
        assert_eq!(effective(&status), Some(all));
        assert_eq!(capabilities_of("x", Some(all), false).state, State::Ok);
        for one in setup::CAPABILITIES {
            let found = capabilities_of("x", Some(all & !one.bitmask()), false);
            assert_eq!(found.state, State::Fail);
            assert!(found.seen.contains(&format!("lacks {one}")), "{found}");
        }
        assert_eq!(effective("CapEff: xyz\n"), None);
        assert_eq!(capabilities_of("x", None, false).state, State::Unknown);
    }

    #[test]
    fn an_ordinary_user_proves_nothing_about_capabilities_of_pepd() {
        let all = setup::CAPABILITIES;
        let all = all.iter().map(Capability::bitmask).sum();
        let root = own_capabilities(true, Some(all), false);
        let seen = "you are root and have all that pepd needs (no pepd is running)";
        assert_eq!((root.seen.as_str(), root.state), (seen, State::Ok));
        let states = [true, false].map(|is_root| own_capabilities(is_root, Some(0), false).state);
        assert_eq!(states, [State::Fail, State::Unknown]);
    }

    #[test]
    fn descriptors_are_those_of_who_runs() {
        let text = "[intercept]\nlan = [\"eth0\"]\n";
        let config = pep_core::config::parse(text).expect("valid");
        let mut status = pepd_api::testing::status();
        status.limits.descriptors.most = 1024;
        status.limits.flows.most = 480;
        let running = Running {
            status,
            flows: Vec::new(),
        };
        let few = descriptors(may_open(&config, 6, Some(&running), None));
        let all = descriptors::in_full(&config, 6);
        let reported = format!(
            "not enough: only 480 flows can be accelerated \
             (the running pepd (process 4194304) may have 1024, {all} needed)"
        );
        assert_eq!((few.seen, few.state), (reported, State::Warn));
        let may = |descriptors| May {
            who: "x".to_owned(),
            descriptors,
            flows: 1,
            start: Some(57),
            all: 16_470,
        };
        assert_eq!(descriptors(Some(may(16_470))).state, State::Ok);
        assert_eq!(descriptors(Some(may(16_469))).state, State::Warn);
        assert_eq!(descriptors(Some(may(57))).state, State::Warn);
        let none = descriptors(Some(may(56)));
        assert_eq!(none.state, State::Fail);
        assert!(
            none.seen.contains("57 needed to start, 16470 for"),
            "{none}"
        );
        assert_eq!(descriptors(None).state, State::Unknown);
    }

    #[test]
    fn what_loading_takes_is_asked_for_only_where_something_is_loaded() {
        let base = setup::CAPABILITIES
            .iter()
            .fold(0, |all, one| all | one.bitmask());
        let found = capabilities_of("x", Some(base | LOADING[1].bitmask()), true);
        assert_eq!(found.state, State::Warn);
        assert!(found.seen.contains("lacks CAP_BPF, which"), "{found}");
        let loading = LOADING.iter().fold(base, |all, one| all | one.bitmask());
        for (effective, loads) in [(base, false), (loading, true)] {
            let found = capabilities_of("x", Some(effective), loads);
            assert_eq!(found.state, State::Ok, "{found}");
        }
    }

    #[test]
    fn limits_are_compared_with_the_machine() {
        let meminfo = "MemTotal:      131072 kB\nMemFree: 1 kB\n";
        let state = |limit, meminfo, cgroup| {
            let text = format!(
                "intercept.lan = [\"lo\"]\n[limits]\nflows = 8\nring_max = \"64KiB\"\nmemory = \"{limit}B\"\n"
            );
            let config = pep_core::config::parse(&text).expect("valid");
            memory(&config, meminfo, cgroup).state
        };
        assert_eq!(state(96 << 20, meminfo, None), State::Ok);
        assert_eq!(state((96 << 20) + 1, meminfo, None), State::Warn);
        assert_eq!(state(1 << 20, "", None), State::Unknown);
        let limited = |cgroup| state(40 << 20, meminfo, Some(cgroup));
        assert_eq!(limited(80 << 20), State::Ok);
        assert_eq!(limited(72 << 20), State::Warn);
        assert_eq!(limited(8 << 20), State::Fail);
        assert_eq!(limited(u64::MAX), State::Ok, "more than the machine");
    }

    #[test]
    fn the_clock_of_this_machine_can_be_asked() {
        assert_eq!(clock_of(Some(true)).state, State::Ok);
        assert_eq!(clock_of(Some(false)).state, State::Warn);
        // The result does not matter.
        clock_of(clock::is_synchronised().ok());
    }
}
