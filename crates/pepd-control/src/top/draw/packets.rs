//! Sites whose packets are carried one by one, as far as pepd has some.

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

/// What stands before what boosters do, beside the name.
const NUMBERS: usize = 52;

pub(super) fn table(
    history: &History,
    status: &Status,
    ui: &Ui,
    width: usize,
) -> Vec<Line<'static>> {
    let name = name_width(width);
    let sites = status.peers.iter().flat_map(|peer| {
        let sites = peer.packets.iter();
        sites.map(move |site| line(history, peer, site, ui, width))
    });
    let mut lines: Vec<_> = sites.collect();
    let strangers = status
        .peers
        .iter()
        .filter(|peer| peer.packets_unmatched > 0);
    lines.extend(strangers.map(|peer| {
        let (count, peer) = (peer.packets_unmatched, &peer.name);
        let text = format!("{count} packets of {peer} dropped, as no site here takes them");
        Line::from(ui.span(Tone::Bad, fitted(&text, width).trim_end()))
    }));
    if lines.is_empty() {
        return lines;
    }
    let head = format!(
        "{:<name$} {:>9} {:>11} {:>9} {:>8} {:>8}  boosters on",
        "packets of", "taken", "", "given", "dropped", "queue",
    );
    let head = [Line::default(), Line::from(ui.span(Tone::Head, head))];
    head.into_iter().chain(lines).collect()
}

fn line(
    history: &History,
    peer: &PeerStatus,
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
    let note = match peer.takes_packets {
        Some(false) => ui.span(Tone::Bad, "the peer takes none"),
        _ => {
            let room = width.saturating_sub(name + NUMBERS);
            Span::raw(fitted(&boosters_on(site), room).trim_end().to_owned())
        }
    };
    Line::from(vec![Span::raw(numbers), note])
}

/// So many packets a second.
fn a_second(rate: f64) -> String {
    match rate {
        ..9.95 => format!("{rate:.1}/s"),
        _ => format!("{rate:.0}/s"),
    }
}
