//! What pepd needs of the machine: capabilities, parts of the kernel, settings, limits, a clock.

use caps::{CapSet, Capability};
use nix::{
    ifaddrs::getifaddrs,
    sys::resource::{Resource, getrlimit},
    unistd::geteuid,
};
use pep_core::config::Config;

use super::{Finding, Net, State, live::Running, read, sockets, sysctl, unit::Unit};
use crate::{
    congestion::Catalogue,
    custody,
    intercept::{
        nft::{Nft, NftError},
        rules::Features,
        setup,
    },
    observe::text,
    sys::clock,
};

/// Whether nft answers this process.
pub(super) fn may_ask_nft() -> bool {
    caps::has_cap(None, CapSet::Effective, Capability::CAP_NET_ADMIN).unwrap_or(true)
}

/// Those of the running pepd, or that the unit has, and else of this process, which may stand for it.
pub(super) fn capabilities(running: Option<&Running>, unit: Option<&Unit>) -> Finding {
    if let Some(running) = running {
        let pid = running.status.pid;
        let effective = effective(&read(&format!("/proc/{pid}/status")));
        return capabilities_of(
            &format!("the running pepd (process {pid})"),
            effective,
            true,
        );
    }
    if let Some(unit) = unit {
        let (who, effective) = unit.capabilities();
        return capabilities_of(who, Some(effective), true);
    }
    let effective = effective(&read("/proc/self/status"));
    let who = if geteuid().is_root() {
        "root here"
    } else {
        "this user"
    };
    capabilities_of(
        &format!("{who}, as which no pepd runs yet,"),
        effective,
        false,
    )
}

/// The bits of `CapEff` in a `/proc/PID/status`.
fn effective(status: &str) -> Option<u64> {
    let mut lines = status.lines();
    let mask = lines.find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(mask.trim(), 16).ok()
}

fn capabilities_of(who: &str, effective: Option<u64>, runs: bool) -> Finding {
    let what = "capabilities";
    let Some(effective) = effective else {
        let seen = format!("those of {who} cannot be read");
        return Finding::unknown(
            what,
            seen,
            "is /proc mounted here, with other processes shown (hidepid)?",
        );
    };
    let missing = setup::CAPABILITIES.into_iter();
    let missing: Vec<_> = missing
        .filter(|one| effective & one.bitmask() == 0)
        .map(|one| one.to_string())
        .collect();
    if missing.is_empty() {
        return Finding::ok(what, format!("{who} has all that pepd needs"));
    }
    let list = missing.join(" ");
    let again = if runs {
        "; then restart it"
    } else {
        "; or check as the user that it is to run as (`sudo pepd check`)"
    };
    Finding::fail(
        what,
        format!("{who} lacks {list}"),
        format!(
            "run pepd as root; in a systemd unit: AmbientCapabilities=CAP_NET_ADMIN CAP_NET_RAW CAP_NET_BIND_SERVICE (and none of \
             them missing in CapabilityBoundingSet); in a container: --cap-add; by hand: setcap{again}"
        ),
    )
}

/// Whether the kernel, and nft, can do what the rules need.
pub(super) async fn kernel(config: &Config, runs: bool) -> Finding {
    let what = "parts of the kernel (nft tproxy, socket, ct)";
    if runs {
        return Finding::ok(what, "a pepd runs with them");
    }
    if !may_ask_nft() {
        return Finding::unknown(
            what,
            "this process may not ask (CAP_NET_ADMIN)",
            "run `pepd check` as root",
        );
    }
    let full = Features {
        ipv6: setup::has_ipv6(),
        ..Features::FULL
    };
    let nft = match Nft::find().await {
        Ok(nft) => nft,
        Err(err @ NftError::Missing) => {
            return Finding::fail(what, "they are asked for by nft", err.to_string());
        }
        Err(err) => return Finding::unknown(what, err.to_string(), "does `nft list tables` work?"),
    };
    match setup::diagnose(&nft, full, config).await {
        Ok(can) => {
            let lost = setup::degradations(can);
            if lost.is_empty() {
                Finding::ok(what, "there")
            } else {
                Finding::warn(
                    what,
                    lost.join("; "),
                    "a kernel with all of nftables, or its modules (modprobe)",
                )
            }
        }
        Err(err @ setup::SetupError::Kernel { .. }) => {
            Finding::fail(what, "one is missing", err.to_string())
        }
        Err(err) => Finding::unknown(what, err.to_string(), "does `nft list tables` work?"),
    }
}

/// Settings, limits and the clock.
pub(super) fn check(config: &Config, catalogue: Option<&Catalogue>, net: &Net) -> Vec<Finding> {
    let mut findings = vec![forwarding(config, net)];
    findings.extend(catalogue.map(|catalogue| sockets::congestion(config, catalogue)));
    findings.push(sockets::buffers(config));
    findings.push(sockets::tcp(config));
    findings.extend(sockets::conntrack(
        sysctl("net/netfilter/nf_conntrack_count"),
        sysctl("net/netfilter/nf_conntrack_max"),
        u64::from(config.limits.flows),
    ));
    findings.push(descriptors(config));
    findings.push(memory(config.limits.memory.bytes(), &read("/proc/meminfo")));
    findings.extend(folder(config));
    findings.push(clock_of(clock::is_synchronised().ok()));
    findings
}

fn forwarding(config: &Config, net: &Net) -> Finding {
    let what = "forwarding";
    // Without addresses of IPv6 on the hosts' side nobody asks for it.
    let has_v6 = |name: &str| {
        let all = getifaddrs().into_iter().flatten();
        let mut of = all.filter(|one| one.interface_name == name);
        of.any(|one| {
            let address = one
                .address
                .and_then(|address| Some(address.as_sockaddr_in6()?.ip()));
            address.is_some_and(|address| !address.is_unicast_link_local())
        })
    };
    let mut lan = config.intercept.lan.iter().map(AsRef::as_ref);
    let ipv6 = setup::has_ipv6() && lan.any(|name: &str| net.named(name).is_some() && has_v6(name));
    match setup::check_sysctls(config, ipv6) {
        Err(err) => Finding::fail(what, "off", err.to_string()),
        Ok(warnings) if warnings.is_empty() => {
            let families = if ipv6 { "IPv4 and IPv6" } else { "IPv4" };
            Finding::ok(what, format!("on for {families}"))
        }
        Ok(warnings) => {
            let few = "not as it should be";
            Finding::new(State::Warn, what, few, warnings.join("\n"))
        }
    }
}

fn descriptors(config: &Config) -> Finding {
    let needed = config.descriptors_needed();
    let hard = getrlimit(Resource::RLIMIT_NOFILE).map(|(_, hard)| hard);
    descriptors_of(needed, hard.ok())
}

fn descriptors_of(needed: u64, hard: Option<u64>) -> Finding {
    let what = "descriptors";
    match hard {
        None => Finding::unknown(what, "their limit cannot be read", "`ulimit -Hn`"),
        Some(hard) if hard < needed => Finding::warn(
            what,
            format!("this process gets {hard} (ulimit -Hn), and limits.flows needs {needed}"),
            format!(
                "a running pepd may have more (`pepd status`); in its unit: LimitNOFILE={needed}; or a lower limits.flows"
            ),
        ),
        Some(hard) => Finding::ok(
            what,
            format!("{hard}, of which {needed} are needed at most"),
        ),
    }
}

/// A line of `/proc/meminfo`, in bytes.
fn amount(meminfo: &str, name: &str) -> Option<u64> {
    let line = meminfo
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    kib.checked_mul(1024)
}

fn memory(limit: u64, meminfo: &str) -> Finding {
    let what = "memory";
    let Some(total) = amount(meminfo, "MemTotal") else {
        return Finding::unknown(what, "/proc/meminfo cannot be read", "is /proc mounted?");
    };
    let seen = format!(
        "limits.memory is {}, the machine has {}",
        text::bytes(limit),
        text::bytes(total)
    );
    if limit > total / 4 * 3 {
        return Finding::warn(
            what,
            seen,
            "a lower limits.memory: before the machine runs out, and others' programs are killed for it",
        );
    }
    Finding::ok(what, seen)
}

/// What is wrong with it was told with its line.
fn folder(config: &Config) -> Option<Finding> {
    let what = "custody.folder";
    let folder = config.custody.folder.as_ref()?;
    let look = custody::look(folder, config.custody.disk_bytes());
    let folder = folder.display();
    Some(match look {
        Ok(look) if look.warnings.is_empty() => {
            Finding::ok(what, format!("{folder}: {}", look.state))
        }
        Ok(look) => Finding::warn(
            what,
            format!("{folder}: {}", look.state),
            look.warnings.join("\n"),
        ),
        Err(err) => Finding::fail(what, format!("{folder} cannot be used"), err.to_string()),
    })
}

/// It matters to the times in logs, and to contact plans.
fn clock_of(synchronised: Option<bool>) -> Finding {
    let what = "clock";
    match synchronised {
        Some(true) => Finding::ok(what, "synchronised"),
        Some(false) => Finding::warn(
            what,
            "not synchronised: the times of logs and of contact plans are those of this machine",
            "an NTP client (chrony, systemd-timesyncd); flows and tunnels do not need it",
        ),
        None => Finding::unknown(
            what,
            "whether it is synchronised must not be asked here",
            "`timedatectl` outside of the container",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_capability_is_named() {
        let all = setup::CAPABILITIES
            .iter()
            .map(Capability::bitmask)
            .sum::<u64>();
        let status = format!("Name:\tpepd\nCapPrm:\t0\nCapEff:\t{all:016x}\n");
        assert_eq!(effective(&status), Some(all));
        assert_eq!(capabilities_of("x", Some(all), true).state, State::Ok);
        for one in setup::CAPABILITIES {
            let found = capabilities_of("x", Some(all & !one.bitmask()), true);
            assert_eq!(found.state, State::Fail);
            assert!(found.seen.contains(&format!("lacks {one}")), "{found}");
        }
        assert_eq!(effective("CapEff: xyz\n"), None);
        assert_eq!(capabilities_of("x", None, false).state, State::Unknown);
    }

    #[test]
    fn limits_are_compared_with_the_machine() {
        assert_eq!(descriptors_of(10, Some(10)).state, State::Ok);
        assert_eq!(descriptors_of(11, Some(10)).state, State::Warn);
        assert_eq!(descriptors_of(11, None).state, State::Unknown);
        let meminfo = "MemTotal:        4096 kB\nMemFree: 1 kB\n";
        assert_eq!(memory(3 << 20, meminfo).state, State::Ok);
        assert_eq!(memory((3 << 20) + 1, meminfo).state, State::Warn);
        assert_eq!(memory(1, "").state, State::Unknown);
    }

    #[test]
    fn the_clock_of_this_machine_can_be_asked() {
        assert_eq!(clock_of(Some(true)).state, State::Ok);
        assert_eq!(clock_of(Some(false)).state, State::Warn);
        // Whatever it says.
        clock_of(clock::is_synchronised().ok());
    }
}
