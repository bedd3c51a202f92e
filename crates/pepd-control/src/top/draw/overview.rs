//! Overview: link, sites, peers, limits.

use pepd_api::{
    link::{OutageReport, source},
    status::{PeerStatus, SiteStatus, Status, Traffic, Used, no_session, reach},
    text::{bits, bytes, milliseconds, span},
};
use ratatui::text::{Line, Span};

use super::{
    Page, Tone, packets,
    parts::{clock, fitted, graph, highest, name_width, percent, wrapped},
};
use crate::top::{
    history::{History, Point},
    ui::Ui,
};

/// Width of the name of a graph and its last value.
const LABEL: usize = 26;
/// Width of its maximum.
const HIGHEST: usize = 18;

pub(super) fn page(history: &History, ui: &Ui, width: usize) -> Page {
    let Some(status) = history.status() else {
        let head = vec![Line::from("waiting for an answer")];
        return Page { head, list: vec![] };
    };
    let mut head = link(status, ui, width);
    head.extend(graphs(history, status, ui, width));
    head.extend(amounts(status, ui));
    head.push(Line::default());
    let mut list = sites(status, ui, width);
    list.extend(peers(history, status, ui, width));
    list.extend(packets::table(history, status, ui, width));
    list.extend(ended(status, width));
    list.extend(outages(status, ui));
    Page { head, list }
}

fn link(status: &Status, ui: &Ui, width: usize) -> Vec<Line<'static>> {
    let (link, report) = (&status.link, &status.link.report);
    let state = if report.up {
        ui.span(Tone::Good, "UP")
    } else {
        ui.span(Tone::Bad, "DOWN")
    };
    let mut text = format!(" for {}, {}", span(report.for_s), source(&report.by));
    let rate = link.rate.map(|rate| bits(rate as f64));
    for part in [link.interface.clone(), rate, link.rtt_s.map(milliseconds)]
        .into_iter()
        .flatten()
    {
        text += &format!(", {part}");
    }
    if let Some(left) = report.next_planned_in_s {
        text += &format!("; next planned change in {}", span(left));
    }
    let (count, down) = (report.outages, span(report.down_s));
    let mut past = format!("outages {count}, {down} in total");
    for (begin, outage) in ["; last ", ", "].into_iter().zip(&report.history) {
        past += &format!("{begin}{} {}", clock(outage.began), lasted(outage));
    }
    vec![
        Line::from(vec![Span::raw("link "), state, Span::raw(text)]),
        Line::from(fitted(&past, width)),
    ]
}

fn lasted(outage: &OutageReport) -> String {
    let lasted = outage.lasted_s.map(span);
    lasted.map_or("ongoing".to_owned(), |lasted| format!("for {lasted}"))
}

/// Formatter of a value.
type Show = fn(f64) -> String;
/// Selector of a value of a point.
type Value = fn(&Point) -> Option<f64>;

fn graphs(history: &History, status: &Status, ui: &Ui, width: usize) -> Vec<Line<'static>> {
    let whole: Show = |value| bytes(value as u64);
    let mut all: Vec<(&str, Value, Show)> = vec![
        ("up", |point| Some(point.up), bits),
        ("down", |point| Some(point.down), bits),
        ("held", |point| Some(point.held), whole),
    ];
    if !status.peers.is_empty() {
        all.extend([
            ("loss", (|point| point.loss) as Value, percent as Show),
            ("unrepaired", |point| point.after, percent),
            ("FEC", |point| point.fec_overhead, percent),
        ]);
    }
    let line = |(name, value, show): (&str, Value, Show)| {
        let columns = history.columns(width.saturating_sub(LABEL + HIGHEST), value);
        let last = history.last().and_then(value);
        let last = last.map_or("-".to_owned(), show);
        let label = format!("{name:<10} {last:>12}");
        let most = highest(&columns).map_or("-".to_owned(), show);
        let most = format!("  max {most}");
        Line::from(vec![
            Span::raw(fitted(&label, LABEL)),
            ui.span(Tone::Graph, graph(&columns)),
            Span::raw(fitted(&most, HIGHEST)),
        ])
    };
    all.into_iter().map(line).collect()
}

/// Returns held data and the use of limits.
fn amounts(status: &Status, ui: &Ui) -> Vec<Line<'static>> {
    let held = status.total.held;
    let (memory, disk, kernel) = (bytes(held.memory), bytes(held.disk), bytes(held.kernel));
    let oldest = span(held.oldest_s as f64);
    let queue = format!("queue: pepd {memory}, disk {disk}, kernel {kernel}; oldest {oldest}");
    let (limits, custody) = (&status.limits, status.custody);
    let count = |number: u64| number.to_string();
    let mut lines = vec![Line::from(queue)];
    if !status.peers.is_empty() {
        let mut parts = vec![Span::raw("custody: memory ")];
        parts.extend(used(ui, custody.memory, bytes));
        if custody.disk.most > 0 {
            parts.push(Span::raw(", disk "));
            parts.extend(used(ui, custody.disk, bytes));
        } else {
            parts.push(Span::raw(", no disk"));
        }
        lines.push(Line::from(parts));
    }
    let mut parts = vec![Span::raw("flows ")];
    parts.extend(used(ui, limits.flows, count));
    parts.push(Span::raw(", memory "));
    parts.extend(used(ui, limits.memory, bytes));
    parts.push(Span::raw(", descriptors "));
    parts.extend(used(ui, limits.descriptors, count));
    lines.push(Line::from(parts));
    lines
}

/// Tenths of a limit from which it is marked.
const NEAR: u64 = 9;

/// Returns the use of a limit. The mark comes first, since a line may be cut at its end.
fn used(ui: &Ui, part: Used, show: impl Fn(u64) -> String) -> Vec<Span<'static>> {
    let text = Span::raw(format!("{} of {}", show(part.used), show(part.most)));
    if part.most == 0 || part.used.saturating_mul(10) < part.most.saturating_mul(NEAR) {
        return vec![text];
    }
    let near = if part.used >= part.most {
        "FULL"
    } else {
        "NEARLY FULL"
    };
    vec![ui.span(Tone::Bad, near), Span::raw(" "), text]
}

fn sites(status: &Status, ui: &Ui, width: usize) -> Vec<Line<'static>> {
    let name = name_width(width);
    let head = format!(
        "{:<name$} {:<6} {:>5} {:>11} {:>11} {:>9} {:>8}",
        "site", "mode", "open", "up", "down", "held", "oldest",
    );
    let mut lines = vec![Line::from(ui.span(Tone::Head, head))];
    let each = status.sites.iter().flat_map(|site| {
        let line = site_line(&site.name, &site.mode, &site.traffic, name);
        let line = Line::from(vec![Span::raw(line), ui.span(Tone::Bad, passes(site))]);
        let loss = site.loss();
        let loss = loss.map(|loss| Line::from(ui.span(Tone::Bad, format!("  {loss}"))));
        let clear = "  never in the clear: packets outside of the tunnel are dropped";
        let clear = site.clear_never.then(|| Line::from(clear));
        std::iter::once(line).chain(loss).chain(clear)
    });
    lines.extend(each);
    if let Some(traffic) = &status.from_peers {
        lines.push(Line::from(site_line(
            "(from peers)",
            "tunnel",
            traffic,
            name,
        )));
    }
    lines.push(Line::from(site_line("(all)", "", &status.total, name)));
    lines
}

fn site_line(site: &str, mode: &str, traffic: &Traffic, name: usize) -> String {
    let held = traffic.held;
    format!(
        "{} {mode:<6} {:>5} {:>11} {:>11} {:>9} {:>8} ",
        fitted(site, name),
        traffic.flows_open,
        bits(traffic.up_rate),
        bits(traffic.down_rate),
        bytes(held.memory + held.disk + held.kernel),
        span(held.oldest_s as f64),
    )
}

/// Returns the cause of a bypass that the mode does not show.
fn passes(site: &SiteStatus) -> String {
    match site.bypassed.as_deref() {
        // A lost interception has a line of its own.
        None | Some("mode" | "interception") => String::new(),
        Some("link") => "link down".to_owned(),
        Some("peer") => "peer down".to_owned(),
        Some("silence") => "no IPv6".to_owned(),
        Some(why) => why.to_owned(),
    }
}

fn peers(history: &History, status: &Status, ui: &Ui, width: usize) -> Vec<Line<'static>> {
    if status.peers.is_empty() {
        return vec![];
    }
    let name = name_width(width);
    let head = format!(
        "{:<name$} {:<7} {:<5} {:>5} {:>8} {:>8} {:>11} {:>5} {:>5} {:>5}",
        "peer", "state", "proto", "flows", "rtt", "delay", "rate", "loss", "unrep", "FEC",
    );
    let mut lines = vec![Line::default(), Line::from(ui.span(Tone::Head, head))];
    for peer in &status.peers {
        lines.push(peer_line(history, peer, ui, name));
        let reach = reach(peer, width.saturating_sub(2)).into_iter();
        lines.extend(reach.map(|line| Line::from(format!("  {line}"))));
    }
    lines
}

fn peer_line(history: &History, peer: &PeerStatus, ui: &Ui, name: usize) -> Line<'static> {
    let (is, tone) = match (&peer.session, peer.up) {
        (Some(session), true) if session.path == "up" => ("up", Tone::Good),
        (Some(session), true) => (session.path.as_str(), Tone::Bad),
        (_, true) => ("up", Tone::Good),
        (_, false) => ("DOWN", Tone::Bad),
    };
    let state = [
        Span::raw(format!("{} ", fitted(&peer.name, name))),
        ui.span(tone, is.to_owned()),
        Span::raw(format!("{:<1$} ", "", 7usize.saturating_sub(is.len()))),
    ];
    let flows = peer.flows;
    let rest = match &peer.session {
        None => {
            let why = no_session(peer).unwrap_or_default();
            format!("{:<5} {flows:>5}  {why}", "")
        }
        Some(session) => format!(
            "{:<5} {flows:>5} {:>8} {:>8} {:>11} {:>5} {:>5} {:>5}",
            session.carrier.as_deref().unwrap_or_default(),
            milliseconds(session.rtt_s),
            milliseconds((session.rtt_s - session.rtt_min_s).max(0.0)),
            bits(session.rate as f64),
            percent(session.loss),
            history.lost_after(peer).map_or("-".to_owned(), percent),
            percent(session.fec_overhead),
        ),
    };
    Line::from(
        state
            .into_iter()
            .chain([Span::raw(rest)])
            .collect::<Vec<_>>(),
    )
}

fn ended(status: &Status, width: usize) -> Vec<Line<'static>> {
    let ended = &status.total.flows_ended;
    if ended.is_empty() {
        return vec![];
    }
    let each = ended
        .iter()
        .map(|(reason, count)| format!("{reason} {count}"));
    let text = format!("flows ended: {}", each.collect::<Vec<_>>().join(", "));
    let lines = wrapped(&text, width).into_iter().map(Line::from);
    [Line::default()].into_iter().chain(lines).collect()
}

fn outages(status: &Status, ui: &Ui) -> Vec<Line<'static>> {
    let history = &status.link.report.history;
    if history.is_empty() {
        return vec![];
    }
    let head = ui.span(Tone::Head, "outages of the link, latest first (UTC)");
    let mut lines = vec![Line::default(), Line::from(head)];
    let each = history.iter().map(|outage| {
        let (began, ago) = (clock(outage.began), span(outage.ago_s));
        let lasted = match outage.lasted_s {
            Some(seconds) => format!("lasted {}", span(seconds)),
            None => "ongoing".to_owned(),
        };
        Line::from(format!(
            "{began:>15}, {ago} ago: {lasted}, {}",
            source(&outage.by)
        ))
    });
    lines.extend(each);
    lines
}
