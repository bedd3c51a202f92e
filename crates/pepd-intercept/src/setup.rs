//! Checks of capabilities, kernel features and sysctls before the installation.

use std::{env, fmt, fs, io, path::Path};

use caps::{CapSet, Capability};
use nix::{ifaddrs::getifaddrs, sys::socket::SockaddrStorage};
use pep_core::{
    config::{Config, Midway},
    site::Mode,
};
use pepd_sys::leg;

use super::{
    filter::FilterError,
    netlink::RouteError,
    nft::{Nft, NftError, empty_transaction, probe_transaction},
    rules::{self, Features, Term},
};

/// Reason why traffic cannot be intercepted. Each message names a remedy.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// The process lacks capabilities.
    #[error(
        "pepd lacks {}: run it as root, or grant the capabilities; in a systemd unit: \
         AmbientCapabilities=CAP_NET_ADMIN CAP_NET_RAW CAP_NET_BIND_SERVICE; manually: \
         setcap cap_net_admin,cap_net_raw,cap_net_bind_service=ep {program}",
        list(missing)
    )]
    Capability {
        /// Missing capabilities, as in capabilities(7).
        missing: Vec<Capability>,
        /// Path of pepd.
        program: String,
    },
    /// nft or iptables is missing, or rejected the rules.
    #[error("cannot {action}")]
    Rules {
        /// Action that failed.
        action: &'static str,
        /// Error of the program.
        #[source]
        err: FilterError,
    },
    /// The kernel lacks a part of nftables that has no substitute.
    #[error(
        "the kernel does not support `{expression}` in nft rules: load the module {module} \
         (modprobe {module}), or use a kernel built with {option}"
    )]
    Kernel {
        /// Expression in nft's language.
        expression: &'static str,
        /// The kernel module.
        module: &'static str,
        /// The kernel option.
        option: &'static str,
    },
    /// The kernel has no nftables, or nft cannot reach it.
    #[error(
        "nftables does not work: {0}; check `nft list tables`: the kernel needs nf_tables (modprobe nf_tables; \
         CONFIG_NF_TABLES, CONFIG_NF_TABLES_INET)"
    )]
    Nftables(NftError),
    /// Forwarding is off: held SYNs, and packets of sites, are routed into a TUN.
    #[error(
        "this machine does not forward {family} packets, which {what} needs: sysctl -w {key}=1"
    )]
    Forwarding {
        /// IPv4 or IPv6.
        family: &'static str,
        /// The sysctl's name.
        key: &'static str,
        /// Setting of the configuration that needs it.
        what: &'static str,
    },
    /// The configuration wants what only rules of nft can do.
    #[error(
        "`forward = \"obey\"` needs rules that pepd installs by nft: install nft 0.9 or later and leave `rules` at \"auto\", \
         or set `forward = \"ignore\"`"
    )]
    ObeysByNft,
    /// SYNs that rules of other programs permit cannot be read.
    #[error(
        "cannot read group {group} of the packet filter's log (NFLOG), which `forward = \"obey\"` needs: if another program \
         reads that group, change `intercept.listen_port`, on which its number depends"
    )]
    Log {
        /// The group.
        group: u16,
        /// Error of the kernel.
        #[source]
        err: io::Error,
    },
    /// TUN devices are unavailable.
    #[error(
        "cannot open /dev/net/tun, which `syn = \"defer\"`, `forward = \"obey\"` and `mode = \"packet\"` need ({0}): modprobe tun, or a kernel with \
         CONFIG_TUN; in a container: --device /dev/net/tun; if it is there, chmod 666 /dev/net/tun, as udev does"
    )]
    NoTun(io::Error),
    /// A TUN cannot be created.
    #[error("cannot create the TUN device {name} (is another pepd using the name?)")]
    Tun {
        /// The interface's name.
        name: String,
        /// Error of the kernel.
        #[source]
        err: io::Error,
    },
    /// A sysctl cannot be set.
    #[error("cannot set /proc/sys/{path} (is /proc/sys mounted read-only?)")]
    Sysctl {
        /// Path below `/proc/sys`.
        path: String,
        /// Error of the kernel.
        #[source]
        err: io::Error,
    },
    /// Sockets cannot be opened: no descriptors are left.
    #[error("cannot open the sockets that answer for held SYNs")]
    Sockets(#[source] io::Error),
    /// A policy rule of another program, or a reverse path filter, diverts the packets.
    #[error(
        "the kernel drops the {family} connections of {interface} that pepd redirects: look for a rule of another program \
         in `ip rule`, and for strict reverse path filters (`sysctl -a -r rp_filter`)"
    )]
    Undelivered {
        /// Family of the connections.
        family: rules::Family,
        /// Interface by which they arrive.
        interface: String,
    },
    /// A routing table of pepd belongs to another program.
    #[error(
        "routing table {0} already has routes of another program (`ip route show table {0}`): set \
         `intercept.route_table` to a number that nothing uses"
    )]
    TableInUse(u32),
    /// Other programs have taken the first numbers of policy rules.
    #[error(
        "no number is left before a policy rule of another program; give that one a number \
         (`ip rule add ... priority 1000`), or stop the program that puts it first again and again"
    )]
    NoPlace,
    /// No descriptors are left.
    #[error("check of the nft table failed: the kernel did not answer")]
    Ask(#[source] io::Error),
    /// A policy rule, a route or an interface cannot be set.
    #[error(transparent)]
    Route(#[from] RouteError),
}

/// Writes a sysctl, given as path below `/proc/sys`. Succeeds also where it cannot be written, if
/// it is right as it is.
pub(super) fn set_sysctl(
    path: &str,
    value: &str,
    is_right: impl Fn() -> bool,
) -> Result<(), SetupError> {
    let written = fs::write(Path::new("/proc/sys").join(path), value);
    match written {
        Err(err) if !is_right() => Err(SetupError::Sysctl {
            path: path.to_owned(),
            err,
        }),
        Err(err) => {
            tracing::debug!(path, error = %err, "sysctl left as it is");
            Ok(())
        }
        Ok(()) => Ok(()),
    }
}

/// Returns the families whose packets of bridges the kernel filters before they reach the bridge's
/// own interface (br_netfilter). A packet redirected there does not find its listener.
pub fn bridge_filters() -> impl Iterator<Item = leg::Family> {
    leg::Family::ALL.into_iter().filter(|family| {
        pepd_sys::sysctl(&bridge_filter(*family).replace('.', "/")).as_deref() == Some("1")
    })
}

/// Returns the sysctl that enables this filter for a family.
pub const fn bridge_filter(family: leg::Family) -> &'static str {
    match family {
        leg::Family::V4 => "net.bridge.bridge-nf-call-iptables",
        leg::Family::V6 => "net.bridge.bridge-nf-call-ip6tables",
    }
}

/// Returns true if pepd answers some flows at once: their SYNs must reach the listener.
pub fn answers_at_once(config: &Config) -> bool {
    let mut sites = config.sites.iter();
    sites.any(|(_, site)| site.mode.takes_flows() && !site.is_deferred())
}

/// Returns the IP versions for which pepd listens.
pub fn families() -> impl Iterator<Item = leg::Family> {
    let has = |family: &leg::Family| *family == leg::Family::V4 || has_ipv6();
    leg::Family::ALL.into_iter().filter(has)
}

/// Returns true if the kernel has IPv6 and it is enabled on the loopback interface, where pepd
/// listens.
pub fn has_ipv6() -> bool {
    pepd_sys::sysctl("net/ipv6/conf/lo/disable_ipv6").is_some_and(|value| value == "0")
}

/// Required capabilities: for rules, routes, marks and transparent sockets; for the sockets that
/// forge answers; for ports of hosts below 1024, from which server legs connect.
pub const CAPABILITIES: [Capability; 3] = [
    Capability::CAP_NET_ADMIN,
    Capability::CAP_NET_RAW,
    Capability::CAP_NET_BIND_SERVICE,
];

fn list(capabilities: &[Capability]) -> String {
    let names: Vec<_> = capabilities.iter().map(ToString::to_string).collect();
    names.join(", ")
}

/// Checks that the thread has the capabilities for installing and running.
///
/// # Errors
/// [`SetupError::Capability`] names all that are missing.
pub fn check_capabilities() -> Result<(), SetupError> {
    // If capabilities cannot be read, the operations that need them report what is missing.
    let has = |capability| caps::has_cap(None, CapSet::Effective, capability).unwrap_or(true);
    let missing: Vec<_> = CAPABILITIES.into_iter().filter(|one| !has(*one)).collect();
    if !missing.is_empty() {
        let program =
            env::current_exe().map_or("pepd".to_owned(), |path| path.display().to_string());
        return Err(SetupError::Capability { missing, program });
    }
    Ok(())
}

/// Returns a warning for each sysctl that prevents or changes the flow of traffic.
///
/// # Errors
/// [`SetupError::Forwarding`] when a site holds SYNs on a machine that does not forward.
pub fn check_sysctls(config: &Config) -> Result<Vec<SysctlWarning>, SetupError> {
    let serves = leg::Family::ALL.map(|family| serves(config, family));
    check_sysctls_with(config, serves, pepd_sys::sysctl)
}

/// Kernel setting that harms traffic through this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SysctlWarning {
    /// Affected part of the kernel.
    pub what: &'static str,
    /// Present state and its consequence.
    pub seen: String,
    /// Command that fixes it.
    pub remedy: String,
}

impl fmt::Display for SysctlWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, seen, remedy } = self;
        write!(f, "{what}: {seen}; {remedy}")
    }
}

/// Name of findings about forwarding.
pub const FORWARDING: &str = "forwarding";

/// Returns whether this machine forwards packets of a family that arrive by an interface. True for
/// an interface that does not exist: none arrive.
pub(super) fn forwards(lan: &str, family: leg::Family) -> bool {
    let is_off = |path: String| pepd_sys::sysctl(&path).as_deref() == Some("0");
    match family {
        leg::Family::V4 => !is_off(format!("net/ipv4/conf/{lan}/forwarding")),
        // An interface's own `forwarding` only tells routers from hosts; since Linux 6.17 this one
        // makes an exception.
        leg::Family::V6 => {
            let forced = pepd_sys::sysctl(&format!("net/ipv6/conf/{lan}/force_forwarding"));
            !is_off("net/ipv6/conf/all/forwarding".to_owned()) || forced.as_deref() == Some("1")
        }
    }
}

/// Returns true if hosts may use a family: a LAN interface has an address of it that is not
/// link-local.
pub fn serves(config: &Config, family: leg::Family) -> bool {
    let mut lans = config.intercept.lan.iter();
    lans.any(|lan| has_hosts(lan.as_str(), family))
}

/// Returns true if hosts behind an interface may use a family.
pub(super) fn has_hosts(lan: &str, family: leg::Family) -> bool {
    let is_of_hosts = |address: &SockaddrStorage| match family {
        leg::Family::V4 => address.as_sockaddr_in().is_some(),
        leg::Family::V6 => address.as_sockaddr_in6().is_some_and(|address| {
            let ip = address.ip();
            !ip.is_unicast_link_local() && !ip.is_loopback()
        }),
    };
    let mut addresses = getifaddrs().into_iter().flatten();
    let is_there = family == leg::Family::V4 || has_ipv6();
    is_there
        && addresses
            .any(|one| one.interface_name == lan && one.address.as_ref().is_some_and(is_of_hosts))
}

fn check_sysctls_with(
    config: &Config,
    [ipv4, ipv6]: [bool; 2],
    sysctl: impl Fn(&str) -> Option<String>,
) -> Result<Vec<SysctlWarning>, SetupError> {
    let is = |path: &str, value: &str| sysctl(path).as_deref() == Some(value);
    let mut warnings = Vec::new();
    if is("net/ipv4/ip_forward", "0") {
        let obeys = config.must_obey_forward();
        let obeys = obeys.then_some("`forward = \"obey\"`");
        let defers = config.defers().then_some("`syn = \"defer\"`").or(obeys);
        let carries = config.packet_sites().next().map(|site| match site.peer {
            Some(_) => "`mode = \"packet\"`",
            None => "`mode = \"boost\"`",
        });
        // A gateway for IPv6 alone needs no IPv4 forwarding.
        let is_needed = ipv4 || !ipv6;
        if let Some(what) = defers.or(carries).filter(|_| is_needed) {
            return Err(SetupError::Forwarding {
                family: "IPv4",
                key: "net.ipv4.ip_forward",
                what,
            });
        }
        warnings.push(forwarding_warning("IPv4", "net.ipv4.ip_forward"));
    }
    // Many networks have no IPv6 although the kernel has it, so this is never fatal.
    if ipv6 && is("net/ipv6/conf/all/forwarding", "0") {
        warnings.push(forwarding_warning("IPv6", "net.ipv6.conf.all.forwarding"));
    }
    // Held SYNs wait behind a TUN, because of their mark; a strict check looks for their hosts
    // there and fails.
    let defers = config.defers();
    let of = |name: &str, key: &str| {
        let values = ["all", name].map(|name| sysctl(&format!("net/ipv4/conf/{name}/{key}")));
        let values = values
            .into_iter()
            .flatten()
            .filter_map(|value| value.parse::<u8>().ok());
        values.max().unwrap_or(0)
    };
    for name in config
        .intercept
        .lan
        .iter()
        .map(AsRef::as_ref)
        .filter(|_| defers)
    {
        if of(name, "src_valid_mark") == 1 && of(name, "rp_filter") == 1 {
            warnings.push(SysctlWarning {
                what: "reverse path check",
                seen: format!(
                    "strict on {name}, with src_valid_mark=1 it uses pepd's marks: the kernel drops held SYNs \
                     (`syn = \"defer\"`)"
                ),
                remedy: format!("sysctl -w net.ipv4.conf.{name}.rp_filter=2, or `syn = \"spoof\"`"),
            });
        }
    }
    Ok(warnings)
}

fn forwarding_warning(family: &str, key: &str) -> SysctlWarning {
    SysctlWarning {
        what: FORWARDING,
        seen: format!(
            "off for {family}: all traffic that pepd does not carry is lost (UDP, bypassed flows, \
             flows beyond limits.flows)"
        ),
        remedy: format!("sysctl -w {key}=1"),
    }
}

/// Part of nftables: a rule that tries it, and its name.
struct Part {
    terms: &'static [Term],
    expression: &'static str,
    module: &'static str,
    option: &'static str,
}

/// Parts without which interception is impossible.
const NEEDED: [Part; 3] = [
    Part {
        terms: &[Term::Tproxy(rules::Family::V4, 1)],
        expression: "tproxy",
        module: "nft_tproxy",
        option: "CONFIG_NFT_TPROXY",
    },
    Part {
        terms: &[Term::SocketTransparent],
        expression: "socket transparent",
        module: "nft_socket",
        option: "CONFIG_NFT_SOCKET",
    },
    Part {
        terms: &[Term::Notrack],
        expression: "notrack",
        module: "nft_ct",
        option: "CONFIG_NFT_CT",
    },
];

/// Part without which no site can handle packets: packets for this machine could not be
/// distinguished from others.
const NEEDED_BY_PACKETS: [Part; 1] = [Part {
    terms: &[Term::ForThisMachine],
    expression: "fib",
    module: "nft_fib_inet",
    option: "CONFIG_NFT_FIB_INET",
}];

/// Part that mode `block` requires.
const NEEDED_TO_REFUSE: [Part; 1] = [Part {
    terms: &[Term::Reject],
    expression: "reject in prerouting (Linux 5.9)",
    module: "nft_reject_inet",
    option: "CONFIG_NFT_REJECT_INET",
}];

/// Part that `mss_clamp` requires.
const NEEDED_TO_CLAMP: [Part; 1] = [Part {
    terms: &[Term::Opens, Term::ClampMss],
    expression: "tcp option maxseg size set rt mtu",
    module: "nft_rt",
    option: "CONFIG_NF_TABLES",
}];

/// Parts that `forward = "obey"` requires.
const NEEDED_TO_OBEY: [Part; 3] = [
    Part {
        terms: COPIES,
        expression: "log group",
        module: "nfnetlink_log",
        option: "CONFIG_NETFILTER_NETLINK_LOG",
    },
    Part {
        terms: &[Term::Remember(rules::Family::V4)],
        expression: "update of sets by rules",
        module: "nft_dynset",
        option: "CONFIG_NF_TABLES",
    },
    Part {
        terms: &[Term::Tagged(0), Term::Tag(0), Term::ForThisMachine],
        expression: "meta priority, fib",
        module: "nft_fib_inet",
        option: "CONFIG_NFT_FIB_INET",
    },
];

/// Terms without which ICMP errors about packets of a peer leave by the link.
const ERRORS: &[Term] = &[
    Term::IcmpError(rules::Family::V4),
    Term::HasSpoken(rules::Family::V4, 0),
    Term::SetMark(1),
];

/// Terms without which pepd gets no copies of packets.
const COPIES: &[Term] = &[
    Term::Midway,
    Term::NewTracked,
    Term::FirstAnswer,
    Term::Within(1),
    Term::Copy(rules::CopyTo {
        group: 1,
        bytes: 1,
        prefix: String::new(),
    }),
];

/// Returns whether a configuration has use for copies of packets.
fn copies(config: &Config) -> bool {
    config.intercept.midway == Midway::Reset || config.obeys_forward()
}

/// Returns the parts of nftables that a configuration requires.
fn needed(config: &Config) -> impl Iterator<Item = &'static Part> {
    let mut sites = config.sites.iter();
    let refuses = sites.any(|(_, site)| site.mode == Mode::Block);
    let clamps = rules::lanes(config).iter().any(|lane| lane.mss_clamp);
    let looks = rules::looks_at_packets(config);
    let parts = [
        (true, &NEEDED[..]),
        (looks, &NEEDED_BY_PACKETS),
        (refuses, &NEEDED_TO_REFUSE),
        (clamps, &NEEDED_TO_CLAMP),
        (config.must_obey_forward(), &NEEDED_TO_OBEY),
    ];
    let asked = parts.into_iter().filter(|(asked, _)| *asked);
    asked.flat_map(|(_, parts)| parts)
}

/// Checks, after a rejected transaction, that nftables works at all.
///
/// # Errors
/// Error of nft, if it does not.
pub(crate) async fn try_nftables(nft: &Nft) -> Result<(), SetupError> {
    let tried = nft.check(&empty_transaction()).await;
    tried.map_err(SetupError::Nftables)
}

/// Finds out, after a rejected table, which part of it the kernel lacks.
///
/// # Errors
/// The first missing part that has no substitute.
pub async fn diagnose(nft: &Nft, full: Features, config: &Config) -> Result<Features, SetupError> {
    let cannot = |err| SetupError::Rules {
        action: "find out the kernel's nft features",
        err: FilterError::Nft(err),
    };
    try_nftables(nft).await?;
    let can = async |terms: &[Term]| match nft.check(&probe_transaction(terms)).await {
        Ok(()) => Ok(true),
        Err(NftError::Refused(_)) => Ok(false),
        Err(err) => Err(cannot(err)),
    };
    for part in needed(config) {
        if !can(part.terms).await? {
            return Err(SetupError::Kernel {
                expression: part.expression,
                module: part.module,
                option: part.option,
            });
        }
    }
    let forget = can(&[Term::Forget(rules::Family::V4)]).await?;
    // A kernel whose sets can delete elements should have such maps as well.
    let forgets = !forget || can(&[Term::ForgetMark(rules::Family::V4)]).await?;
    Ok(Features {
        ipv6: full.ipv6 && can(&[Term::Tproxy(rules::Family::V6, 1)]).await?,
        recent: can(&[Term::Remember(rules::Family::V4)]).await?,
        forget,
        fib: can(&[Term::ForThisMachine]).await?,
        rate: can(&[Term::FasterPerHost(
            rules::Limited::Held,
            rules::Family::V4,
            1,
        )])
        .await?,
        wildcard: can(&[Term::WildcardSocket]).await?,
        seen: can(&[Term::Seen]).await?,
        tags: can(&[Term::Tagged(0), Term::Tag(0)]).await?,
        marks: forgets && can(&[Term::KeepMark(rules::Family::V4)]).await?,
        copies: !copies(config) || can(COPIES).await?,
        // Without such a site the operator needs no warning.
        errors: rules::lanes(config).is_empty() || can(ERRORS).await?,
    })
}

/// Returns the consequences of missing optional parts of nftables.
pub fn degradations(features: Features) -> Vec<&'static str> {
    let mut lost = Vec::new();
    if !features.recent {
        lost.push(
            "the kernel cannot fill nft sets by rules (nft_dynset): connections opened while \
             SYN cookies are in use will fail",
        );
    }
    if features.recent && !features.forget {
        lost.push(
            "the kernel cannot remove from nft sets by rules (Linux 5.4): while SYN cookies are in \
             use, a packet repeated after the end of a connection may open another; connections \
             that pass from a port used in the last ten seconds are reset",
        );
    }
    if !features.fib {
        lost.push(
            "the kernel cannot look up routes in nft rules (nft_fib): connections to this \
             machine itself need a bypass site, and masqueraded flows fail if pepd is killed",
        );
    }
    if !features.rate {
        lost.push(
            "the kernel cannot limit rates in nft sets (nft_limit, nft_dynset): with syn = \"defer\" a host that floods pepd with SYNs \
             prevents other hosts from opening connections",
        );
    }
    if !features.wildcard {
        lost.push(
            "the kernel cannot tell listeners for any address in nft rules (Linux 5.10): connections that pass to a port \
             on which another transparent proxy of this machine listens end there",
        );
    }
    if !features.seen {
        lost.push(
            "the kernel cannot keep interface names in nft sets: `pepd check` cannot tell by which interfaces connections arrive",
        );
    }
    if !features.tags {
        lost.push(
            "the kernel cannot set packet priorities by nft rules: marks of other programs and reverse path filters may break connections",
        );
    }
    if !features.marks {
        lost.push(
            "the kernel cannot fill nft maps by rules (nft_dynset, nft_hash): connections to servers ignore policy rules by marks of \
             other programs",
        );
    }
    if !features.copies {
        lost.push(
            "the kernel cannot copy packets to programs (nfnetlink_log): connections that another pepd has split \
             hang when this one takes over",
        );
    }
    if !features.can_obey() {
        lost.push(
            "rules of other programs in the hook forward do not hold for accelerated connections",
        );
    }
    if !features.errors {
        lost.push(
            "the kernel cannot route by nft rules for both families (Linux 5.2): ICMP errors about packets of peers leave by the link, in clear text",
        );
    }
    lost
}

#[cfg(test)]
#[path = "setup_tests.rs"]
mod tests;
