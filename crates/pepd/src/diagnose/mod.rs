//! `pepd check`: problems of this machine with a configuration, and of a running pepd.
//!
//! - this module: findings, each with state, evidence and remedy
//! - `interfaces`: existence, state, MTU and offloads
//! - `system`: capabilities, kernel features, forwarding, limits, clock
//! - `sockets`: congestion controls, buffers, TCP settings, connection tracking
//! - `firewall`: rules of other programs that drop pepd's packets
//! - `routes`: interfaces by which hosts and servers are reached
//! - `hops`: routes with several next hops
//! - `listing`: pepd's table as listed by `nft`
//! - `unit`: settings of the systemd unit
//! - `manual`: rules that the operator has to install
//! - `live`: a running pepd: connections that arrive, are intercepted, are answered; `half_open`:
//!   incomplete handshakes
//! - `peers`: peers that are down
//! - `leftovers`: leftovers of a killed pepd
//! - `clear`: holds on packets that must not leave outside of a tunnel
//!
//! The checks change nothing. Facts that require privileges are `unknown` without them.

mod clear;
mod firewall;
mod half_open;
mod hops;
mod interfaces;
mod leftovers;
mod listing;
mod live;
mod manual;
mod packets;
mod peers;
mod rates;
mod routes;
mod sockets;
mod system;
mod unit;

use std::{fmt, fs, time::Duration};

use pep_core::config::{Config, ConfigWarning};
use pepd_intercept::{filter, iptables, netlink::Netlink};
use pepd_sys::{congestion::Catalogue, load::Loaded};
use serde::Serialize;

pub(crate) use firewall::Arrival;
use interfaces::Interface;
use live::Running;
use unit::Unit;

/// State of a finding, in the order of display.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Prevents acceleration, or breaks flows.
    Fail,
    /// Costs performance, or may be intended.
    Warn,
    /// Cannot be determined.
    Unknown,
    /// Correct, but possibly unexpected.
    Info,
    /// Correct.
    Ok,
}

impl State {
    const fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Fail => "fail",
            Self::Unknown => "unknown",
            Self::Info => "info",
        }
    }
}

/// Result of one check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Object of the check.
    pub what: String,
    /// State of the object.
    pub state: State,
    /// Evidence.
    pub seen: String,
    /// Remedy, unless the state is correct.
    #[serde(rename = "do")]
    pub remedy: Option<String>,
}

impl Finding {
    fn ok(what: impl Into<String>, seen: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            state: State::Ok,
            seen: seen.into(),
            remedy: None,
        }
    }

    fn new(
        state: State,
        what: impl Into<String>,
        seen: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self {
            what: what.into(),
            state,
            seen: seen.into(),
            remedy: Some(remedy.into()),
        }
    }

    fn warn(what: impl Into<String>, seen: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::new(State::Warn, what, seen, remedy)
    }

    fn fail(what: impl Into<String>, seen: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::new(State::Fail, what, seen, remedy)
    }

    fn info(what: impl Into<String>, seen: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::new(State::Info, what, seen, remedy)
    }

    fn unknown(
        what: impl Into<String>,
        seen: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self::new(State::Unknown, what, seen, remedy)
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "  {:<8} {}: {}", self.state.word(), self.what, self.seen)?;
        let remedy = self.remedy.iter().flat_map(|remedy| remedy.lines());
        remedy
            .into_iter()
            .try_for_each(|line| writeln!(f, "           -> {line}"))
    }
}

/// All findings, the worst first; displayed as a line each, followed by the remedy.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Findings(pub Vec<Finding>);

impl Findings {
    /// Sorts by state, the worst first; findings of equal state keep their order.
    fn sorted(mut all: Vec<Finding>) -> Self {
        all.sort_by_key(|finding| finding.state);
        Self(all)
    }

    /// Returns true without findings.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Removes findings whose state is correct.
    pub fn only_amiss(&mut self) {
        self.0.retain(|finding| finding.state != State::Ok);
    }

    /// Returns true if a finding prevents acceleration, or breaks flows.
    pub fn fails(&self) -> bool {
        self.0.iter().any(|finding| finding.state == State::Fail)
    }
}

/// Report of `pepd check`, for programs.
#[derive(Debug, Serialize)]
pub struct Report {
    config: String,
    warnings: Vec<String>,
    notes: Vec<String>,
    fails: bool,
    findings: Findings,
}

impl Report {
    /// Returns the report of a valid configuration.
    pub fn new(loaded: &Loaded, findings: &Findings) -> Self {
        let text = |list: &[ConfigWarning]| list.iter().map(ToString::to_string).collect();
        Self {
            config: loaded.source.path.display().to_string(),
            warnings: text(&loaded.warnings),
            notes: text(&loaded.notes),
            fails: findings.fails(),
            findings: findings.clone(),
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let json = serde_json::to_string_pretty(self).map_err(|_| fmt::Error)?;
        f.write_str(&json)
    }
}

impl fmt::Display for Findings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return Ok(());
        }
        writeln!(f, "this machine:")?;
        self.0.iter().try_for_each(|finding| finding.fmt(f))
    }
}

/// Checks this machine, and the pepd that runs with this configuration, if any. Connections are
/// counted since the installation of its rules, or during `watch`.
pub fn diagnose(
    config: &Config,
    catalogue: Option<&Catalogue>,
    watch: Option<Duration>,
) -> Findings {
    // Descriptors opened by this check are not needed by `pepd run`.
    let open = pepd_relay::limits::descriptors::open();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(err) => {
            let finding = Finding::unknown(
                "this machine",
                format!("check failed: {err}"),
                "out of descriptors or memory: try again",
            );
            return Findings(vec![finding]);
        }
    };
    let running = live::ask(config);
    let unit = running.is_err().then(Unit::current).flatten();
    let loads = catalogue.is_some_and(|catalogue| sockets::loads(config, catalogue));
    let mut findings = vec![system::capabilities(
        running.as_ref().ok(),
        unit.as_ref(),
        loads,
    )];
    let net = runtime.block_on(Net::gather());
    findings.extend(interfaces::check(config, &net));
    findings.extend(interfaces::rival(config));
    findings.push(runtime.block_on(system::kernel(config, running.is_ok())));
    findings.extend(system::tun(config, &net, running.is_ok()));
    findings.extend(system::check(config, catalogue, running.as_ref().ok()));
    let may = system::may_open(config, open, running.as_ref().ok(), unit.as_ref());
    findings.push(system::descriptors(may));
    findings.extend(routes::side(config));
    findings.extend(packets::refusals(config));
    findings.extend(peers::reach(config));
    findings.extend(runtime.block_on(clear::check(config)));
    findings.extend(runtime.block_on(routes::check(config, &net)));
    let seen = running.as_ref().ok();
    let rules = runtime.block_on(firewall::inspect(config, &net, seen));
    findings.extend(rules.unwrap_or_default().findings);
    match running {
        Ok(before) => findings.extend(live_findings(&runtime, config, &net, &before, watch)),
        Err(finding) => {
            let failure = unit.and_then(|unit| unit.failure());
            findings.push(failure.unwrap_or(finding));
            findings.extend(runtime.block_on(leftovers::check(config, &net)));
        }
    }
    causes_first(&mut findings);
    Findings::sorted(findings)
}

/// Puts the cause before its consequence: where rules drop pepd's packets for certain, servers and
/// hosts do not answer because of them.
fn causes_first(findings: &mut [Finding]) {
    const CONSEQUENCES: [&str; 2] = [live::RETURN_PATH, live::HANDSHAKES];
    let is_consequence = |finding: &Finding| {
        finding.state == State::Fail && CONSEQUENCES.contains(&finding.what.as_str())
    };
    let cause = findings.iter().position(|finding| {
        let is_certain = finding.seen.contains(firewall::DROPS);
        finding.what == firewall::WHAT && is_certain && finding.state <= State::Warn
    });
    let Some(cause) = cause.filter(|_| findings.iter().any(is_consequence)) else {
        return;
    };
    findings[cause].state = State::Fail;
    for finding in findings
        .iter_mut()
        .filter(|finding| is_consequence(finding))
    {
        finding.remedy = Some(format!(
            "first see {}, which drops pepd's packets: it may be the only cause",
            firewall::WHAT
        ));
    }
}

fn live_findings(
    runtime: &tokio::runtime::Runtime,
    config: &Config,
    net: &Net,
    before: &Running,
    watch: Option<Duration>,
) -> Vec<Finding> {
    let mut findings = vec![before.finding()];
    findings.extend(peers::check(&before.status));
    let program = before.status.rules.as_str();
    let (rules, counted) = runtime.block_on(live::rules_by(program, config));
    findings.push(rules);
    findings.extend(limits(program, config));
    findings.extend(runtime.block_on(routes::delivery(config, net)));
    let Some(counted) = counted else {
        return findings;
    };
    findings.extend(live::losses(config, &before.status));
    let mut traffic = live::Traffic::new(before, &counted);
    if let Some(watch) = watch {
        std::thread::sleep(watch);
        let (_, again) = runtime.block_on(live::rules_by(program, config));
        if let (Ok(after), Some(again)) = (live::ask(config), again) {
            traffic = live::Traffic::new(&after, &again).since(&traffic, watch);
        }
    }
    let half_open = half_open::clients();
    findings.push(live::arrivals(config, &traffic));
    findings.push(live::interception(config, &traffic, half_open.len()));
    findings.push(live::servers(&traffic));
    findings.extend(live::urgent(&traffic));
    findings.extend(sockets::windows(&before.flows));
    findings.extend(sockets::stated_rate(
        config,
        &before.status.link.report,
        &before.flows,
    ));
    findings.extend(packets::check(config, &before.status));
    findings.extend(rates::check(&before.status));
    findings.extend(runtime.block_on(routes::of_flows(config, net, &before.flows, &half_open)));
    findings
}

/// Returns a finding about the limitations of rules that are not of nft.
fn limits(program: &str, config: &Config) -> Option<Finding> {
    let what = "limitations of the rules";
    match program {
        "" | "nft" => None,
        "manual" => Some(Finding::info(
            what,
            filter::MANUAL_LIMITS,
            "`intercept.rules = \"auto\"` lets pepd install and change its rules",
        )),
        _ => Some(Finding::info(
            what,
            iptables::limits(config).join("; "),
            "nft, and a kernel with nft_tproxy, have none of them",
        )),
    }
}

/// Returns whether redirected SYNs pass the rules of other programs.
pub(crate) async fn arrival(config: &Config) -> Arrival {
    firewall::arrival(config).await
}

/// Rules of other programs that concern pepd.
pub(crate) struct Beside {
    /// Rules that interfere, each with its remedy in one line.
    pub(crate) lines: Vec<String>,
    /// Rules that pepd follows, of IPv4 and of IPv6; `None` if rules could not be read.
    pub(crate) followed: Option<[Followed; 2]>,
}

/// Rules of other programs that pepd follows, of a family.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Followed {
    /// The MSS to which they clamp hosts' SYNs, in bytes.
    pub(crate) clamp: Option<u16>,
    /// True if they drop SYNs that come back behind rules in the forward hook.
    pub(crate) is_obstacle: bool,
}

/// Returns rules of other programs that concern pepd; uncertain ones only if `doubtful`.
pub(crate) async fn beside(config: &Config, doubtful: bool) -> Beside {
    let net = Net::gather().await;
    let seen = firewall::inspect(config, &net, None).await;
    let followed = seen.as_ref().map(|seen| {
        [0, 1].map(|family| Followed {
            clamp: seen.clamped.minimum[family],
            is_obstacle: seen.obstacles[family],
        })
    });
    let mut findings = seen.map(|seen| seen.findings).unwrap_or_default();
    findings.extend(routes::policy(config, &net).await);
    findings.retain(|finding| match finding.state {
        State::Fail => true,
        State::Warn => doubtful || finding.what != firewall::WHAT,
        _ => false,
    });
    let line = |finding: Finding| {
        let remedy = finding.remedy.unwrap_or_default();
        let remedy: Vec<_> = remedy.lines().map(str::trim).collect();
        format!(
            "{}: {}; to do: {}",
            finding.what,
            finding.seen,
            remedy.join("; ")
        )
    };
    Beside {
        lines: findings.into_iter().map(line).collect(),
        followed,
    }
}

/// The kernel's interfaces and routes.
#[derive(Debug)]
struct Net {
    netlink: Option<Netlink>,
    interfaces: Vec<Interface>,
}

impl Net {
    async fn gather() -> Self {
        let Ok(netlink) = Netlink::connect() else {
            return Self {
                netlink: None,
                interfaces: Vec::new(),
            };
        };
        let links = netlink.links().await.unwrap_or_default();
        Self {
            interfaces: links.iter().filter_map(Interface::from_message).collect(),
            netlink: Some(netlink),
        }
    }

    fn named(&self, name: &str) -> Option<&Interface> {
        self.interfaces
            .iter()
            .find(|interface| interface.name == name)
    }

    fn name(&self, index: u32) -> Option<&str> {
        let mut all = self.interfaces.iter();
        let found = all.find(|interface| interface.index == index)?;
        Some(&found.name)
    }
}

/// Returns a numeric sysctl, by its path below `/proc/sys`.
fn sysctl(path: &str) -> Option<u64> {
    pepd_sys::sysctl(path)?.parse().ok()
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_is_a_line_and_what_to_do_beneath() {
        let fine = Finding::ok("clock", "synchronised");
        let bad = Finding::fail("interface lan0", "is not there", "name another\nor make it");
        let mut findings = Findings::sorted(vec![fine, bad]);
        let expected = "this machine:\n  fail     interface lan0: is not there\n           \
                        -> name another\n           -> or make it\n";
        assert_eq!(
            findings.to_string(),
            format!("{expected}  ok       clock: synchronised\n")
        );
        findings.only_amiss();
        assert_eq!(findings.to_string(), expected);
        assert!(findings.fails());
    }

    #[test]
    fn rules_that_drop_packets_come_before_what_follows_from_them() {
        let rules = |verb: &str| {
            let seen =
                format!("inet filter, chain output: its policy {verb} pepd's SYNs to servers");
            Finding::warn(firewall::WHAT, seen, "accept them there")
        };
        let fails = || Finding::fail(live::RETURN_PATH, "3 SYNs sent", "the path is asymmetric");
        let sorted = |mut findings: Vec<Finding>| {
            causes_first(&mut findings);
            Findings::sorted(findings).0
        };
        let found = sorted(vec![rules("drops"), fails()]);
        assert_eq!(
            (found[0].what.as_str(), found[0].state),
            (firewall::WHAT, State::Fail)
        );
        let remedy = found[1].remedy.as_ref().expect("a remedy");
        assert!(remedy.contains("first see firewall"), "{remedy}");
        // Neither an uncertain cause, nor one without that consequence.
        let uncertain = vec![rules("may drop"), fails()];
        assert_eq!(sorted(uncertain.clone())[0], fails());
        let harmless = vec![rules("drops"), Finding::ok(live::RETURN_PATH, "3 SYN-ACKs")];
        assert_eq!(sorted(harmless.clone()), harmless);
    }

    #[test]
    fn programs_read_what_to_do_as_do() {
        let bad = Finding::warn("clock", "not synchronised", "run an NTP client");
        let json = serde_json::to_value(Findings(vec![bad])).unwrap();
        assert_eq!(json[0]["state"], "warn");
        assert_eq!(json[0]["do"], "run an NTP client");
    }
}
