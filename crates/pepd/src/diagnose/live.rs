//! State of a running pepd: connections arrive, are intercepted, and are answered.

use std::{collections::BTreeMap, time::Duration};

use pep_core::{config::Config, site::InterceptionLoss};
use pepd_api::{
    flows::{FlowStatus, FlowsReport},
    status::{SiteStatus, Status},
    text::span,
};
use pepd_control::client::{self, AskError};
use pepd_intercept::{
    iptables::{self, Differences},
    nft::{Nft, NftError, SEEN_SET},
    rules::{self, Counter},
};
use pepd_sys::admin_socket;
use units::counted;
use units::duration;

use super::{Finding, listing::Listing, manual, system};

/// Minimum number of SYNs for a verdict; fewer may be in transit, since a host repeats its first
/// SYN after a second.
const SOME: u64 = 3;
/// Seconds without an answer after which a server has had three SYNs.
const LONG_S: u64 = 3;
/// Timeout of the query: a live process answers at once, a stuck one never.
const PATIENCE: Duration = Duration::from_secs(10);
/// Number of half-open connections below which they prove nothing.
const HALF_OPEN: usize = 64;

/// Answers of a running pepd.
#[derive(Debug)]
pub(super) struct Running {
    /// Status of pepd.
    pub status: Status,
    /// Flows of pepd, oldest first.
    pub flows: Vec<FlowStatus>,
}

/// Queries the pepd that runs with this configuration.
///
/// # Errors
/// A finding if none answers.
pub(super) fn ask(config: &Config) -> Result<Running, Finding> {
    let what = "running pepd";
    let Some(socket) = admin_socket::path(config) else {
        return Err(Finding::unknown(
            what,
            "unknown: `admin.socket` is \"off\"",
            "set a socket to check rules, connections and return paths",
        ));
    };
    let answer = |target: &str| client::ask_within(PATIENCE, &socket, target);
    let asked = answer("/v1/status").and_then(|status| Ok((status, answer("/v1/flows?sort=age")?)));
    let (status, flows) = asked.map_err(|err| unanswered(&err))?;
    let status = serde_json::from_slice(&status);
    let flows = serde_json::from_slice::<FlowsReport>(&flows);
    match (status, flows) {
        (Ok(status), Ok(FlowsReport { flows, .. })) => Ok(Running { status, flows }),
        _ => Err(Finding::unknown(
            what,
            "its answer is not understood by this program",
            "versions differ: `pepd reload`, or restart pepd",
        )),
    }
}

fn unanswered(err: &AskError) -> Finding {
    let what = "running pepd";
    match err {
        AskError::Denied(path) => Finding::unknown(
            what,
            format!("{}: access denied to this user", path.display()),
            "run `pepd check` as root, or as a user of its socket's group (`admin.mode`)",
        ),
        AskError::Elsewhere(path, other) => Finding::unknown(
            what,
            format!(
                "none answers at {}, but one does at {}, with another configuration",
                path.display(),
                other.display()
            ),
            "check with the configuration that it runs with (`--config`)",
        ),
        AskError::NotRunning(path) | AskError::Unreachable(path, _) => Finding::unknown(
            what,
            format!("none answers at {}", path.display()),
            "start it and repeat `pepd check` to check rules, arriving connections and return paths",
        ),
        other => Finding::unknown(
            what,
            other.to_string(),
            "look at its log (`journalctl -u pepd`)",
        ),
    }
}

impl Running {
    /// Returns the finding that pepd runs.
    pub fn finding(&self) -> Finding {
        let Status {
            pid,
            uptime_s,
            draining,
            ..
        } = self.status;
        let since = span(uptime_s);
        let seen = format!("process {pid}, for {since}");
        if draining {
            return Finding::warn(
                "running pepd",
                format!("{seen}; draining, it takes no new flows"),
                "start another when it has ended",
            );
        }
        Finding::ok("running pepd", seen)
    }

    fn counter(&self, name: &str) -> u64 {
        self.status.counters.get(name).copied().unwrap_or(0)
    }

    fn sum(&self, names: &[&str]) -> u64 {
        names.iter().map(|name| self.counter(name)).sum()
    }
}

/// Returns the rules installed by this program, and a finding about them.
pub(super) async fn rules_by(program: &str, config: &Config) -> (Finding, Option<Listing>) {
    let name = config.intercept.table.as_str();
    let what = match program {
        "" | "nft" => format!("rules (nft table inet {name})"),
        "manual" => manual::WHAT.to_owned(),
        version => format!("rules ({version})"),
    };
    if !system::may_ask_nft() {
        let finding = Finding::unknown(
            what,
            "unknown: this process lacks CAP_NET_ADMIN",
            "run `pepd check` as root",
        );
        return (finding, None);
    }
    match program {
        "" | "nft" => nft_table(what, config).await,
        "manual" => manual::check(config).await,
        version => iptables_rules(what, version, config).await,
    }
}

/// Returns pepd's rules of this version of iptables, and a finding about them.
async fn iptables_rules(
    what: String,
    version: &str,
    config: &Config,
) -> (Finding, Option<Listing>) {
    match iptables::inspect(config, Some(version)).await {
        Ok(found) => {
            let Differences { missing, more } = &found.differences;
            let differences = [missing.clone(), more.clone()];
            let is_closed = iptables::gate_is_closed(config).unwrap_or(false);
            let finding = rules_finding(&what, found.rules, is_closed, &differences);
            (finding, Some(Listing::of_counters(found.counters)))
        }
        Err(err) => {
            let finding = Finding::unknown(what, err.to_string(), "check that `iptables -S` works");
            (finding, None)
        }
    }
}

async fn nft_table(what: String, config: &Config) -> (Finding, Option<Listing>) {
    let name = config.intercept.table.as_str();
    let listed = async {
        let nft = Nft::find().await?;
        let table = nft.list(&["table", "inet", name]).await?;
        let seen = nft.list(&["set", "inet", name, SEEN_SET]).await;
        Ok(Listing::from_table(&table, seen.ok().as_ref()))
    };
    match listed.await {
        Ok(listing) => {
            let differences = listing.differences(config);
            let (rules, is_closed) = (listing.rules(), listing.gate_is_closed());
            let finding = rules_finding(&what, rules, is_closed, &differences);
            (finding, Some(listing))
        }
        Err(NftError::Refused(why)) if why.contains("No such file") => {
            let finding = Finding::fail(
                what,
                "missing",
                "pepd reinstalls it within a second or two: repeat the check, and see its log. It may run in another network namespace",
            );
            (finding, None)
        }
        Err(err) => {
            let finding =
                Finding::unknown(what, err.to_string(), "check that `nft list tables` works");
            (finding, None)
        }
    }
}

fn rules_finding(
    what: &str,
    rules: usize,
    is_closed: bool,
    differences: &[Vec<String>; 2],
) -> Finding {
    const REMEDY: &str = "either the configuration changed since pepd started, or another program \
        edits pepd's rules. `pepd reload` reinstalls the rules; flows continue";
    let [missing, more] = differences;
    let few = |list: &[String]| {
        let first = list.iter().take(3).cloned().collect::<Vec<_>>().join("; ");
        if list.len() > 3 {
            format!("{first}; ...")
        } else {
            first
        }
    };
    if !missing.is_empty() {
        let seen = format!(
            "{} rules of the configuration are missing: {}",
            missing.len(),
            few(missing)
        );
        return Finding::fail(what, seen, REMEDY);
    }
    if !more.is_empty() {
        let seen = format!(
            "{} rules are not from the configuration: {}",
            more.len(),
            few(more)
        );
        return Finding::warn(what, seen, REMEDY);
    }
    let seen = format!("all {rules} rules installed");
    if is_closed {
        return Finding::fail(
            what,
            format!("{seen}; the gate is closed: new flows pass unaccelerated"),
            "a limit is reached (flows, descriptors, memory): `pepd status` and the log name the key of [limits]",
        );
    }
    Finding::ok(what, seen)
}

/// Returns findings for sites whose redirected SYNs do not arrive.
pub(super) fn losses(config: &Config, status: &Status) -> Vec<Finding> {
    let lost = status
        .sites
        .iter()
        .filter(|site| !site.interception_lost.is_empty());
    let finding = |site: &SiteStatus| {
        let mut sites = config.sites.iter().map(|(_, site)| site);
        let blocks = sites
            .any(|of| of.name == site.name && of.on_interception_loss == InterceptionLoss::Block);
        let fate = match (blocks, site.mode.as_str()) {
            (true, _) => "are blocked",
            (false, "tunnel") => "pass unprotected, outside the tunnel",
            (false, _) => "pass unaccelerated",
        };
        Finding::fail(
            format!("redirection of site {}", site.name),
            format!(
                "{}: redirected SYNs do not arrive; new connections {fate}",
                site.interception_lost.join(", ")
            ),
            "a firewall's `input` or a reverse path filter of another program: docs/interception.md, \"Beside your \
             firewall\"; pepd retries by itself, and at once after a restart",
        )
    };
    lost.map(finding).collect()
}

/// Counts of connections.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Traffic {
    /// Time span of the counts, and its start in words.
    span: Duration,
    since: String,
    /// Process that was queried.
    pid: u32,
    /// SYNs that arrived; `None` if the table has no such counter.
    syns: Option<u64>,
    intercepted: u64,
    /// SYNs that passed because of a limit.
    passed: u64,
    /// SYNs that passed because of their kind or destination.
    left_alone: u64,
    called: u64,
    answered: u64,
    /// Packets with urgent data.
    urgent: u64,
    /// SYNs that were held.
    held: u64,
    accepted: u64,
    /// Servers that refused.
    refused: u64,
    timed_out: u64,
    /// Servers that have not answered for long.
    silent: u64,
    /// Packets of peers that match no local site.
    unmatched: u64,
    /// Interfaces by which SYNs arrived, with the seconds since the last one.
    seen: BTreeMap<String, u64>,
}

impl Traffic {
    /// Returns the counts since the installation of the rules, which a process does at its start.
    pub fn new(running: &Running, listing: &Listing) -> Self {
        let counter = |counter| listing.counter(counter).unwrap_or(0);
        let uptime_s = running.status.uptime_s;
        let is_silent = |flow: &&FlowStatus| {
            let server = flow.server_leg.as_ref();
            flow.flow.age_s >= LONG_S && server.is_some_and(|leg| leg.state == "syn-sent")
        };
        Self {
            span: Duration::from_secs(uptime_s as u64),
            since: format!("since pepd started {} ago", span(uptime_s)),
            pid: running.status.pid,
            syns: listing.counter(Counter::Syns),
            intercepted: counter(Counter::Intercepted),
            passed: Counter::PASSED_LIMITS.map(counter).iter().sum(),
            left_alone: [
                Counter::PassedEndToEnd,
                Counter::PassedNoRoute,
                Counter::PassedOtherRoute,
            ]
            .map(counter)
            .iter()
            .sum(),
            called: counter(Counter::Connecting),
            answered: counter(Counter::Answered),
            urgent: counter(Counter::Urgent),
            held: running.sum(&[
                "syns_held",
                "syns_released",
                "syns_refused",
                "syns_unreachable",
                "syns_expired",
                "syns_orphaned",
            ]),
            accepted: running.status.total.flows_accepted,
            refused: running.sum(&[
                "ended_refused",
                "ended_unreachable",
                "syns_refused",
                "syns_unreachable",
            ]),
            timed_out: running.sum(&["ended_connect_timeout", "syns_expired"]),
            silent: running.flows.iter().filter(is_silent).count() as u64,
            unmatched: running.counter("packets_unmatched"),
            seen: listing.seen.clone(),
        }
    }

    /// Returns the counts since `before`. A new process has restarted its counters.
    pub fn since(self, before: &Self, watched: Duration) -> Self {
        let since = format!("within {}", duration::format(watched));
        if self.pid != before.pid {
            return self;
        }
        let more = |now: u64, before: u64| now.saturating_sub(before);
        let recent = |(_, ago): &(String, u64)| *ago <= watched.as_secs() + 1;
        Self {
            span: watched,
            since,
            syns: self.syns.map(|syns| more(syns, before.syns.unwrap_or(0))),
            intercepted: more(self.intercepted, before.intercepted),
            passed: more(self.passed, before.passed),
            left_alone: more(self.left_alone, before.left_alone),
            called: more(self.called, before.called),
            answered: more(self.answered, before.answered),
            urgent: more(self.urgent, before.urgent),
            held: more(self.held, before.held),
            accepted: more(self.accepted, before.accepted),
            refused: more(self.refused, before.refused),
            timed_out: more(self.timed_out, before.timed_out),
            seen: self.seen.into_iter().filter(recent).collect(),
            unmatched: more(self.unmatched, before.unmatched),
            pid: self.pid,
            silent: self.silent,
        }
    }
}

/// Returns a finding about the interfaces by which connections arrive.
pub(super) fn arrivals(config: &Config, traffic: &Traffic) -> Finding {
    let what = "connections arrive";
    let lan: Vec<&str> = config.intercept.lan.iter().map(AsRef::as_ref).collect();
    let list = lan.join(", ");
    let since = &traffic.since;
    let Some(syns) = traffic.syns else {
        return Finding::unknown(
            what,
            "the rules are from another version without this counter",
            "`pepd reload`",
        );
    };
    let ago = |(name, ago): (&String, &u64)| format!("{name} (the last one {ago} s ago)");
    if syns > 0 {
        let by = traffic
            .seen
            .iter()
            .filter(|(name, _)| lan.contains(&name.as_str()));
        let by: Vec<_> = by.map(ago).collect();
        return Finding::ok(
            what,
            format!(
                "{} {since}, by {}",
                counted(syns, "SYN"),
                or(&by.join(", "), &list)
            ),
        );
    }
    let tuns: Vec<_> = rules::lans(config)
        .into_iter()
        .filter_map(|lan| lan.tun)
        .collect();
    let mut others = traffic.seen.clone();
    others.retain(|name, _| name != "lo" && !tuns.contains(name) && !lan.contains(&name.as_str()));
    let link = config.link.as_ref().map(|link| link.interface.as_str());
    let by_link = link.and_then(|link| others.remove_entry(link));
    let seen = format!("no SYN has arrived by {list} {since}");
    if !others.is_empty() {
        let by = others.iter().map(ago).collect::<Vec<_>>().join(", ");
        let names: Vec<_> = others.keys().map(|name| format!("\"{name}\"")).collect();
        return Finding::fail(
            what,
            format!("{seen}, but by {by}"),
            format!(
                "check that {list} is the right interface; if hosts are behind the other: intercept.lan = [{}]",
                names.join(", ")
            ),
        );
    }
    if config.packet_sites().next().is_some() {
        return Finding::ok(
            what,
            format!("{seen}; packets of sites are listed by themselves"),
        );
    }
    let beyond = by_link.map_or(String::new(), |(name, _)| {
        format!("; some came over the link {name}")
    });
    Finding::warn(
        what,
        format!("{seen}{beyond}"),
        format!(
            "check that {list} is the right interface, and this machine the hosts' gateway. Connect from a host and repeat, or \
             `pepd check --watch 10s`, or `tcpdump -ni {} 'tcp[tcpflags] & tcp-syn != 0'`",
            lan.first().copied().unwrap_or("any")
        ),
    )
}

fn or<'a>(text: &'a str, other: &'a str) -> &'a str {
    if text.is_empty() { other } else { text }
}

/// Object of the finding about handshakes with clients.
pub(super) const HANDSHAKES: &str = "handshakes with clients";

/// Object of the finding about answers of servers.
pub(super) const RETURN_PATH: &str = "return path of servers";

/// Returns a finding about redirection, and the completion of handshakes with clients.
pub(super) fn interception(config: &Config, traffic: &Traffic, half_open: usize) -> Finding {
    let what = HANDSHAKES;
    let Traffic {
        intercepted,
        held,
        passed,
        left_alone,
        accepted,
        since,
        ..
    } = traffic;
    let syns = traffic.syns.unwrap_or(0);
    let counts = format!(
        "{} redirected to pepd {since}, {} accepted, {half_open} half-open now",
        counted(*intercepted, "SYN"),
        counted(*accepted, "flow")
    );
    if intercepted + held == 0 {
        return match (*passed, syns) {
            (0, _) if *left_alone > 0 => Finding::info(
                what,
                format!(
                    "{} passed unaccelerated {since}",
                    counted(*left_alone, "SYN")
                ),
                format!(
                    "this machine has no route to their destinations, or one that does not lead by the link \
                     (`link.other_routes`), or they are signed or guarded by their TTL: docs/interception.md; counts of \
                     each cause: nft list counters table inet {}",
                    config.intercept.table
                ),
            ),
            (0, 0..SOME) => Finding::ok(what, counts),
            (0, _) => Finding::warn(
                what,
                format!("{syns} SYNs arrived {since}, and none was redirected"),
                "they were for this machine itself, or for sites with mode = \"bypass\", or rules of other programs in the hook \
                 `forward` dropped them; else see the rules above. `pepd check` lists \
                 the sites: the first match applies",
            ),
            (passed, _) => Finding::fail(
                what,
                format!(
                    "{passed} SYNs passed unaccelerated {since}: the gate is closed, or their \
                     hosts reached `limits.flows_per_host`"
                ),
                "a limit is reached: `pepd status` and the log name the key of [limits]",
            ),
        };
    }
    if *accepted == 0 && *intercepted >= SOME {
        return never(what, &counts);
    }
    if half_open > HALF_OPEN && half_open as u64 > *accepted {
        return Finding::warn(
            what,
            counts,
            "a flood of SYNs, or clients whose packets take another path: all packets of hosts must pass this machine",
        );
    }
    Finding::ok(what, counts)
}

fn never(what: &str, counts: &str) -> Finding {
    Finding::fail(
        what,
        format!("{counts}: no handshake completed"),
        "pepd's SYN-ACKs do not reach clients, or their answers take another path (asymmetric): both must pass this machine; see \
         the route to clients below\n\
         or a firewall or the reverse path check drops redirected packets: see those findings",
    )
}

/// Returns a finding about the return path of servers.
pub(super) fn servers(traffic: &Traffic) -> Finding {
    let what = RETURN_PATH;
    let Traffic {
        called,
        answered,
        refused,
        timed_out,
        silent,
        unmatched,
        since,
        ..
    } = traffic;
    let counts = format!(
        "{} sent to servers {since}, {} received, {} refused or unreachable",
        counted(*called, "SYN"),
        counted(*answered, "SYN-ACK"),
        counted(*refused, "server")
    );
    if *called == 0 {
        return Finding::ok(
            what,
            format!("not tested yet: no SYN sent to a server {since}"),
        );
    }
    if answered + refused == 0 && *unmatched > 0 {
        return Finding::fail(
            what,
            format!(
                "{counts}; pepd dropped {unmatched} packets of peers: no local site carries their \
                 answers"
            ),
            "answers of servers may arrive by the tunnel: a peer has a site of mode \"packet\" for them without a counterpart here. See packets below",
        );
    }
    if answered + refused == 0 && (*called >= SOME || *timed_out > 0) {
        return Finding::fail(
            what,
            counts,
            "if servers are up, the path is asymmetric: their answers reach the hosts without passing this machine. \
             At the servers' end route the hosts' prefixes to this machine, or masquerade, or set `source = \"self\"` in the site. \
             `tcpdump` at the server shows the path of its answers",
        );
    }
    if *silent > 0 && silent + timed_out > *answered {
        return Finding::warn(
            what,
            format!(
                "{counts}; {silent} without an answer for more than {LONG_S} s, {timed_out} timed out"
            ),
            "servers are down, or answers of some take another path: see `pepd flows`, state `accepted`",
        );
    }
    Finding::ok(what, counts)
}

/// Returns a warning if a host has sent urgent data.
pub(super) fn urgent(traffic: &Traffic) -> Option<Finding> {
    let Traffic { urgent, since, .. } = traffic;
    let seen = || {
        let packets = counted(*urgent, "packet");
        format!("{packets} {since}; pepd delivers the bytes in the stream, without the urgent mark")
    };
    (*urgent > 0).then(|| {
        Finding::warn(
            "urgent data",
            seen(),
            "a protocol that needs the mark (rlogin, an Oracle client that interrupts) needs a site with `mode = \"bypass\"`",
        )
    })
}

#[cfg(test)]
#[path = "live_tests.rs"]
mod tests;
