//! Table of sites of modes `packet` and `boost`, if any.

use pepd_api::{
    status::{PacketStatus, PeerStatus, Status, boosters_on},
    text::{bits, milliseconds},
};
use ratatui::text::{Line, Span};

use super::{
    Tone,
    parts::{fitted, name_width},
};
use crate::top::{
    history::{History, PacketRates},
    ui::Ui,
};

/// Width of the numbers between the name and the boosters.
const NUMBERS: usize = 52;

pub(super) fn table(
    history: &History,
    status: &Status,
    ui: &Ui,
    width: usize,
) -> Vec<Line<'static>> {
    let name = name_width(width);
    let sites = status.packet_sites();
    let sites = sites.map(|(peer, site)| line(history, peer, site, ui, width));
    let mut lines: Vec<_> = sites.collect();
    let unmatched = status
        .peers
        .iter()
        .filter(|peer| peer.packets_unmatched > 0);
    lines.extend(unmatched.map(|peer| {
        let (count, peer) = (peer.packets_unmatched, &peer.name);
        let text = format!("dropped {count} packets of {peer} that no site here accepts");
        Line::from(ui.span(Tone::Bad, fitted(&text, width).trim_end()))
    }));
    if lines.is_empty() {
        return lines;
    }
    let head = format!(
        "{:<name$} {:>9} {:>11} {:>9} {:>8} {:>8}  active boosters",
        "packet site", "", "from hosts", "to hosts", "dropped", "queue",
    );
    let head = [Line::default(), Line::from(ui.span(Tone::Head, head))];
    head.into_iter().chain(lines).collect()
}

fn line(
    history: &History,
    peer: Option<&PeerStatus>,
    site: &PacketStatus,
    ui: &Ui,
    width: usize,
) -> Line<'static> {
    let name = name_width(width);
    let rates = history.packet_rates(peer, site);
    let each =
        |of: fn(PacketRates) -> f64| rates.map_or("-".to_owned(), |rates| a_second(of(rates)));
    let dropped = site.dropped_full + site.dropped_late + site.dropped_long;
    let numbers = format!(
        "{} {:>9} {:>11} {:>9} {dropped:>8} {:>8}  ",
        fitted(&site.site, name),
        each(|rates| rates.taken),
        rates.map_or("-".to_owned(), |rates| bits(rates.taken_bits)),
        each(|rates| rates.given),
        milliseconds(site.queued_s),
    );
    let note = match peer.and_then(|peer| peer.takes_packets) {
        Some(false) => ui.span(Tone::Bad, "rejected by the peer"),
        _ => {
            let room = width.saturating_sub(name + NUMBERS);
            Span::raw(fitted(&boosters_on(site), room).trim_end().to_owned())
        }
    };
    Line::from(vec![Span::raw(numbers), note])
}

/// Formats a rate in packets per second.
fn a_second(rate: f64) -> String {
    match rate {
        ..9.95 => format!("{rate:.1}/s"),
        _ => format!("{rate:.0}/s"),
    }
}
