//! What must hold before anything is installed: capabilities, kernel features and sysctls.

use std::{env, fmt, fs, io, path::Path};

use caps::{CapSet, Capability, errors::CapsError};
use nix::{ifaddrs::getifaddrs, sys::socket::SockaddrStorage};
use pep_core::{config::Config, site::Mode};
use pepd_sys::leg;

use super::{
    netlink::RouteError,
    nft::{Nft, NftError, empty_transaction, probe_transaction},
    rules::{self, Features, Term},
};

/// Why traffic cannot be intercepted. Each message says what the operator can do.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// The process lacks rights.
    #[error(
        "pepd lacks {}: run it as root, or give it all that it needs; in a systemd unit: \
         AmbientCapabilities=CAP_NET_ADMIN CAP_NET_RAW CAP_NET_BIND_SERVICE; by hand: \
         setcap cap_net_admin,cap_net_raw,cap_net_bind_service=ep {program}",
        list(missing)
    )]
    Capability {
        /// As in capabilities(7).
        missing: Vec<Capability>,
        /// Where pepd is.
        program: String,
    },
    /// nft is missing or refused.
    #[error("cannot {action}")]
    Nft {
        /// What was to be done.
        action: &'static str,
        /// What nft says.
        #[source]
        err: NftError,
    },
    /// The kernel lacks a part of nftables that nothing can replace.
    #[error(
        "the kernel cannot do `{expression}` in nft rules: load the module {module} \
         (modprobe {module}), or use a kernel built with {option}"
    )]
    Kernel {
        /// As nft has it.
        expression: &'static str,
        /// The kernel module.
        module: &'static str,
        /// The kernel option.
        option: &'static str,
    },
    /// The kernel has no nftables, or nft cannot reach it.
    #[error(
        "nftables does not work here, as {0}: does `nft list tables`? The kernel needs nf_tables (modprobe nf_tables; \
         CONFIG_NF_TABLES, CONFIG_NF_TABLES_INET)"
    )]
    Nftables(NftError),
    /// Held SYNs, and packets of sites, are routed into a TUN, which is forwarding.
    #[error(
        "this machine does not forward {family} packets, which {what} needs: sysctl -w {key}=1"
    )]
    Forwarding {
        /// IPv4 or IPv6.
        family: &'static str,
        /// The sysctl's name.
        key: &'static str,
        /// What asks for it in the configuration.
        what: &'static str,
    },
    /// No TUN devices here.
    #[error(
        "cannot open /dev/net/tun, which `syn = \"defer\"` and `mode = \"packet\"` need ({0}): modprobe tun, or a kernel with \
         CONFIG_TUN; in a container: --device /dev/net/tun"
    )]
    NoTun(io::Error),
    /// A TUN cannot be made.
    #[error("cannot create the TUN device {name} (is another pepd using the name?)")]
    Tun {
        /// The interface's name.
        name: String,
        /// What the kernel says.
        #[source]
        err: io::Error,
    },
    /// A sysctl cannot be set.
    #[error("cannot set /proc/sys/{path} (is /proc/sys mounted read-only?)")]
    Sysctl {
        /// Below `/proc/sys`.
        path: String,
        /// What the kernel says.
        #[source]
        err: io::Error,
    },
    /// Sockets cannot be made: descriptors are short.
    #[error("cannot open the sockets that answer for held SYNs")]
    Sockets(#[source] io::Error),
    /// Another program's policy rule or a reverse path filter is in the way.
    #[error(
        "the kernel drops the {family} connections of {interface} that pepd redirects: look for a rule of another program \
         in `ip rule`, and for strict reverse path filters (`sysctl -a -r rp_filter`)"
    )]
    Undelivered {
        /// Of which connections.
        family: rules::Family,
        /// By which they come.
        interface: String,
    },
    /// Descriptors are short.
    #[error("cannot ask the kernel whether the nft table is there")]
    Ask(#[source] io::Error),
    /// A policy rule, a route or a link.
    #[error(transparent)]
    Route(#[from] RouteError),
}

/// Writes a sysctl, named by its path below `/proc/sys`.
pub(super) fn write_sysctl(path: &str, value: &str) -> Result<(), SetupError> {
    fs::write(Path::new("/proc/sys").join(path), value).map_err(|err| SetupError::Sysctl {
        path: path.to_owned(),
        err,
    })
}

/// The families of which the kernel looks at packets of bridges before they come to the bridge's
/// own interface (br_netfilter). What is redirected there does not find its listener.
pub fn bridge_filters() -> impl Iterator<Item = leg::Family> {
    leg::Family::ALL.into_iter().filter(|family| {
        pepd_sys::sysctl(&bridge_filter(*family).replace('.', "/")).as_deref() == Some("1")
    })
}

/// The sysctl that switches it on for a family.
pub const fn bridge_filter(family: leg::Family) -> &'static str {
    match family {
        leg::Family::V4 => "net.bridge.bridge-nf-call-iptables",
        leg::Family::V6 => "net.bridge.bridge-nf-call-ip6tables",
    }
}

/// True where pepd answers some flows at once, for which their SYNs have to find the listener.
pub fn answers_at_once(config: &Config) -> bool {
    let mut sites = config.sites.iter();
    sites.any(|(_, site)| site.mode.takes_flows() && !site.is_deferred())
}

/// The versions of IP for which we listen.
pub fn families() -> impl Iterator<Item = leg::Family> {
    let has = |family: &leg::Family| *family == leg::Family::V4 || has_ipv6();
    leg::Family::ALL.into_iter().filter(has)
}

/// Whether IPv6 is there and not switched off on the loopback interface, where we listen.
pub fn has_ipv6() -> bool {
    pepd_sys::sysctl("net/ipv6/conf/lo/disable_ipv6").is_some_and(|value| value == "0")
}

/// What pepd cannot do without: rules, routes, marks and transparent sockets; the sockets that
/// forge answers; the ports of hosts below 1024, from which server legs connect.
pub const CAPABILITIES: [Capability; 3] = [
    Capability::CAP_NET_ADMIN,
    Capability::CAP_NET_RAW,
    Capability::CAP_NET_BIND_SERVICE,
];

fn list(capabilities: &[Capability]) -> String {
    let names: Vec<_> = capabilities.iter().map(ToString::to_string).collect();
    names.join(", ")
}

/// Checks that the thread may do what installing and running need, and lets nft do its part.
///
/// # Errors
/// [`SetupError::Capability`] names all that are missing.
pub fn check_capabilities() -> Result<(), SetupError> {
    // Where they cannot be read, what needs them will say what it lacks.
    let has = |capability| caps::has_cap(None, CapSet::Effective, capability).unwrap_or(true);
    let missing: Vec<_> = CAPABILITIES.into_iter().filter(|one| !has(*one)).collect();
    if !missing.is_empty() {
        let program =
            env::current_exe().map_or("pepd".to_owned(), |path| path.display().to_string());
        return Err(SetupError::Capability { missing, program });
    }
    if let Err(err) = hand_down(Capability::CAP_NET_ADMIN) {
        tracing::debug!(%err, "cannot hand CAP_NET_ADMIN down to nft; root's nft has it anyway");
    }
    Ok(())
}

/// Gives a capability of the calling thread to what it starts from now on (capabilities(7), the
/// ambient set). Those that come from the file of a program, by setcap(8), end with it otherwise.
fn hand_down(capability: Capability) -> Result<(), CapsError> {
    caps::raise(None, CapSet::Inheritable, capability)?;
    caps::raise(None, CapSet::Ambient, capability)
}

/// What is set such that traffic would not flow, or not as expected: an error where it
/// concerns us, else a warning.
///
/// # Errors
/// [`SetupError::Forwarding`] when SYNs are to be held on a machine that does not forward.
pub fn check_sysctls(config: &Config) -> Result<Vec<SysctlWarning>, SetupError> {
    let serves = leg::Family::ALL.map(|family| serves(config, family));
    check_sysctls_with(config, serves, pepd_sys::sysctl)
}

/// Setting of the kernel that harms what passes this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SysctlWarning {
    /// Part of the kernel.
    pub what: &'static str,
    /// State that it is in, and the consequence.
    pub seen: String,
    /// Command that changes it.
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

/// True where hosts may use a family: a LAN interface has an address of it that is not link-local.
pub fn serves(config: &Config, family: leg::Family) -> bool {
    let is_lan = |name: &str| config.intercept.lan.iter().any(|lan| lan.as_str() == name);
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
            .any(|one| is_lan(&one.interface_name) && one.address.as_ref().is_some_and(is_of_hosts))
}

fn check_sysctls_with(
    config: &Config,
    [ipv4, ipv6]: [bool; 2],
    sysctl: impl Fn(&str) -> Option<String>,
) -> Result<Vec<SysctlWarning>, SetupError> {
    let is = |path: &str, value: &str| sysctl(path).as_deref() == Some(value);
    let mut warnings = Vec::new();
    if is("net/ipv4/ip_forward", "0") {
        let defers = config.defers().then_some("`syn = \"defer\"`");
        let carries = (config.packet_sites().next()).map(|_| "`mode = \"packet\"`");
        // A gateway of IPv6 alone may do without.
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
    // What is held waits behind a TUN, by its mark; a strict check looks for hosts there, and they
    // are not.
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
                    "strict on {name}, and src_valid_mark=1 lets it see pepd's marks: the kernel drops SYNs that are held \
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
            "off for {family}: everything that pepd does not carry is lost (UDP, bypassed flows, \
             flows beyond limits.flows)"
        ),
        remedy: format!("sysctl -w {key}=1"),
    }
}

/// Part of nftables: how to try it, and what it is called.
struct Part {
    terms: &'static [Term],
    expression: &'static str,
    module: &'static str,
    option: &'static str,
}

/// Without these there is no interception.
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

/// Without these no site looks at packets: those for this machine could not be told from others.
const NEEDED_BY_PACKETS: [Part; 1] = [Part {
    terms: &[Term::ForThisMachine],
    expression: "fib",
    module: "nft_fib_inet",
    option: "CONFIG_NFT_FIB_INET",
}];

/// Without these there is no mode "block".
const NEEDED_TO_REFUSE: [Part; 1] = [Part {
    terms: &[Term::Reject],
    expression: "reject in prerouting (Linux 5.9)",
    module: "nft_reject_inet",
    option: "CONFIG_NFT_REJECT_INET",
}];

/// Without these no connection is told how much a packet of a tunnel holds.
const NEEDED_TO_CLAMP: [Part; 1] = [Part {
    terms: &[Term::Opens, Term::ClampMss],
    expression: "tcp option maxseg size set rt mtu",
    module: "nft_rt",
    option: "CONFIG_NF_TABLES",
}];

/// Without these ICMP errors about a peer's packets go out by the link.
const ERRORS: &[Term] = &[
    Term::IcmpError(rules::Family::V4),
    Term::HasSpoken(rules::Family::V4, 0),
    Term::SetMark(1),
];

/// Without which parts what a configuration asks for cannot be had.
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
    ];
    let asked = parts.into_iter().filter(|(asked, _)| *asked);
    asked.flat_map(|(_, parts)| parts)
}

/// After something was refused: whether nftables works at all.
///
/// # Errors
/// What nft says, where it does not.
pub(crate) async fn try_nftables(nft: &Nft) -> Result<(), SetupError> {
    let tried = nft.check(&empty_transaction()).await;
    tried.map_err(SetupError::Nftables)
}

/// After a table was refused: which part of it the kernel cannot do.
///
/// # Errors
/// The first part that nothing can replace.
pub async fn diagnose(nft: &Nft, full: Features, config: &Config) -> Result<Features, SetupError> {
    let cannot = |err| SetupError::Nft {
        action: "ask nft what the kernel can do",
        err,
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
    // Where sets can forget, maps are to.
    let forgets = !forget || can(&[Term::ForgetMark(rules::Family::V4)]).await?;
    Ok(Features {
        ipv6: full.ipv6 && can(&[Term::Tproxy(rules::Family::V6, 1)]).await?,
        recent: can(&[Term::Remember(rules::Family::V4)]).await?,
        forget,
        fib: can(&[Term::ForThisMachine]).await?,
        rate: can(&[Term::FasterPerHost(rules::Family::V4, 1)]).await?,
        seen: can(&[Term::Seen]).await?,
        tags: can(&[Term::Tagged(0), Term::Tag(0)]).await?,
        marks: forgets && can(&[Term::KeepMark(rules::Family::V4)]).await?,
        // Nobody who has no such site is to hear of it.
        errors: rules::lanes(config).is_empty() || can(ERRORS).await?,
    })
}

/// What an operator loses without a part of nftables.
pub fn degradations(features: Features) -> Vec<&'static str> {
    let mut lost = Vec::new();
    if !features.recent {
        lost.push(
            "the kernel cannot fill nft sets from rules (nft_dynset): connections opened while \
             SYN cookies are in use will fail",
        );
    }
    if features.recent && !features.forget {
        lost.push(
            "the kernel cannot remove from nft sets by rules (Linux 5.4): while SYN cookies are in \
             use, a packet repeated after the end of a connection may open another",
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
            "the kernel cannot limit rates in nft sets (nft_limit, nft_dynset): with syn = \"defer\" a host that floods us with SYNs \
             keeps others from opening connections",
        );
    }
    if !features.seen {
        lost.push(
            "the kernel cannot keep the names of interfaces in nft sets: `pepd check` cannot tell by which connections arrive",
        );
    }
    if !features.tags {
        lost.push(
            "the kernel cannot set the priority of packets by nft rules: rules of others that set marks, and reverse path filters, may break connections",
        );
    }
    if !features.marks {
        lost.push(
            "the kernel cannot fill nft maps from rules (nft_dynset, nft_hash): connections to servers do not follow policy rules by marks of \
             other programs",
        );
    }
    if !features.errors {
        lost.push(
            "the kernel cannot route by nft rules for both families (Linux 5.2): ICMP errors about packets of peers go out by the link, in the clear",
        );
    }
    lost
}

#[cfg(test)]
#[path = "setup_tests.rs"]
mod tests;
