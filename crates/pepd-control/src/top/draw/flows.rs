//! View of flows, with the kernel's state of their connections.

use std::cmp::Reverse;

use pepd_api::{
    flows::{FlowStatus, LegStatus},
    text::{bits, bytes, milliseconds, span},
};
use ratatui::text::Line;
use units::counted;

use super::{
    Page, Tone,
    parts::{fitted, name_width, wrapped},
};
use crate::top::{
    history::{Flows, History, sum},
    ui::{Order, Ui},
};

pub(super) fn page(history: &History, ui: &Ui, width: usize) -> Page {
    let flows = match history.flows() {
        Ok(Some(flows)) => flows,
        Ok(None) => {
            let head = vec![Line::from("waiting for the flows")];
            return Page { head, list: vec![] };
        }
        Err(why) => {
            let lines = wrapped(&format!("pepd does not list flows: {why}"), width);
            let head = lines.into_iter().map(Line::from).collect();
            return Page { head, list: vec![] };
        }
    };
    let mut head = vec![Line::from(summary(flows, ui))];
    let not_accelerated = flows.report.not_accelerated.to_string();
    head.extend(
        wrapped(&not_accelerated, width)
            .into_iter()
            .take(NOT_ACCELERATED_LINES)
            .map(Line::from),
    );
    let columns = format!(
        "{} {:<5} {:>9} {:>9} {:>11} {:>8} {:>7} {}",
        fitted("site", name_width(width)),
        "kind",
        "age",
        "bytes",
        "rate",
        "rtt",
        "retrans",
        "control",
    );
    head.push(Line::default());
    head.push(Line::from(ui.span(Tone::Head, columns)));
    let list = sorted(flows, ui.order).into_iter();
    let list = list.flat_map(|(flow, rate)| lines(flow, rate, width));
    Page {
        head,
        list: list.collect(),
    }
}

/// Maximum lines for unaccelerated connections; `pepd flows` lists all of them.
const NOT_ACCELERATED_LINES: usize = 4;

fn summary(flows: &Flows, ui: &Ui) -> String {
    let (total, listed) = (flows.report.total, flows.report.flows.len());
    let of = match &ui.site {
        Some(site) => format!(" of site {site}"),
        None => String::new(),
    };
    let order = ui.order.name();
    match (total, ui.order) {
        _ if total == listed => format!("{}{of}, by {order}", counted(total as u64, "flow")),
        (_, Order::Age) => format!("{total} flows{of}: the {listed} oldest"),
        (_, Order::Bytes) => format!("{total} flows{of}: the {listed} with most bytes"),
        _ => format!("{total} flows{of}: the {listed} with most bytes, by {order}"),
    }
}

/// Returns the flows in order, each with its rate.
fn sorted(flows: &Flows, order: Order) -> Vec<(&FlowStatus, Option<f64>)> {
    let rates = flows.rates.iter().copied();
    let mut all: Vec<_> = flows.report.flows.iter().zip(rates).collect();
    match order {
        Order::Bytes => all.sort_by_key(|(flow, _)| Reverse(sum(flow))),
        Order::Age => all.sort_by_key(|(flow, _)| Reverse(flow.flow.age_s)),
        Order::Rate => {
            all.sort_by(|(_, a), (_, b)| b.unwrap_or(-1.0).total_cmp(&a.unwrap_or(-1.0)));
        }
        Order::Rtt => all.sort_by(|(a, _), (b, _)| rtt(b).total_cmp(&rtt(a))),
    }
    all
}

/// Returns the longer round trip of its connections.
fn rtt(flow: &FlowStatus) -> f64 {
    let legs = legs(flow).filter_map(|leg| leg.rtt_s);
    legs.fold(-1.0, f64::max)
}

fn legs(flow: &FlowStatus) -> impl Iterator<Item = &LegStatus> {
    flow.client_leg.iter().chain(&flow.server_leg)
}

/// Returns the connection with the longer round trip: the one over the link, if any.
fn slow_leg(flow: &FlowStatus) -> Option<&LegStatus> {
    let rtt = |leg: &LegStatus| leg.rtt_s.unwrap_or(-1.0);
    legs(flow).max_by(|a, b| rtt(a).total_cmp(&rtt(b)))
}

/// Returns the congestion control of a leg; for a leg that only receives, that of the remote sender
/// decides.
fn control<'a>(flow: &FlowStatus, leg: &'a LegStatus) -> &'a str {
    let (up, down) = (flow.up_bytes, flow.down_bytes);
    let client = flow.client_leg.as_ref();
    let is_client = client.is_some_and(|client| std::ptr::eq(client, leg));
    let (sent, received) = if is_client { (down, up) } else { (up, down) };
    // A download sends requests too.
    let receives = sent < received / SENDS_LITTLE;
    if receives {
        "receives"
    } else {
        &leg.congestion
    }
}

/// A leg counts as receiving if it has sent less than this fraction of the received bytes.
const SENDS_LITTLE: u64 = 20;

fn lines(status: &FlowStatus, rate: Option<f64>, width: usize) -> [Line<'static>; 2] {
    let flow = &status.flow;
    let slow = slow_leg(status);
    let rtt = slow.and_then(|leg| leg.rtt_s);
    let retransmitted: u64 = legs(status).map(|leg| u64::from(leg.retransmitted)).sum();
    let first = format!(
        "{} {:<5} {:>9} {:>9} {:>11} {:>8} {retransmitted:>7} {}",
        fitted(
            flow.site.as_deref().unwrap_or("(from peers)"),
            name_width(width)
        ),
        flow.kind,
        span(flow.age_s as f64),
        bytes(sum(status)),
        rate.map_or("-".to_owned(), bits),
        rtt.map_or("-".to_owned(), milliseconds),
        slow.map_or("-", |leg| control(status, leg)),
    );
    let mut second = format!("   {} -> {}", flow.client, flow.destination);
    if let Some(peer) = &status.peer {
        second += &format!(", via {peer}");
    }
    if status.state != "relaying" {
        second += &format!(", {}", status.state);
    }
    if flow.total() > 0 {
        second += &format!(", {} held", bytes(flow.total()));
    }
    if let Some(leg) = slow {
        second += &leg.limits();
    }
    [first, second].map(|line| Line::from(fitted(&line, width)))
}
