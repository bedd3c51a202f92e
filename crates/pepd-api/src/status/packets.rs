//! Text form of sites of modes `packet` and `boost`.

use std::{collections::BTreeMap, fmt};

use super::{PacketStatus, PeerStatus, Status};
use crate::text::{NAME, bytes, milliseconds, short};

/// Maximum width of the names of boosters.
const BOOSTERS: usize = 30;

/// Writes a line for each site of modes `packet` and `boost`, if any.
pub(super) fn write(f: &mut fmt::Formatter<'_>, status: &Status) -> fmt::Result {
    let mut sites = status.packet_sites().map(|(peer, site)| {
        let taken = peer.is_none_or(|peer| peer.takes_packets != Some(false));
        (site, taken)
    });
    let Some(first) = sites.next() else {
        return Ok(());
    };
    writeln!(
        f,
        "\n{:<NAME$} {:>10} {:>9} {:>10} {:>8} {:>7}  active boosters",
        "packet site", "from hosts", "bytes", "to hosts", "dropped", "queue",
    )?;
    [first]
        .into_iter()
        .chain(sites)
        .try_for_each(|(site, taken)| {
            let dropped = site.dropped_full + site.dropped_late + site.dropped_long;
            let note = match taken {
                true => boosters_on(site),
                false => "rejected by the peer".to_owned(),
            };
            let line = format!(
                "{:<NAME$} {:>10} {:>9} {:>10} {:>8} {:>7}  {note}",
                short(&site.site),
                site.packets,
                bytes(site.bytes),
                site.delivered,
                dropped,
                milliseconds(site.queued_s),
            );
            writeln!(f, "{}", line.trim_end())
        })?;
    let mut peers = status.peers.iter();
    peers.try_for_each(|peer| write_strangers(f, peer))
}

/// Writes the packets of a peer that no local site accepts.
fn write_strangers(f: &mut fmt::Formatter<'_>, peer: &PeerStatus) -> fmt::Result {
    let (name, count) = (short(&peer.name), peer.packets_unmatched);
    if count == 0 {
        return Ok(());
    }
    writeln!(
        f,
        "dropped packets of {name} that no site here accepts: {count}"
    )?;
    // Two IPv6 addresses would exceed a line.
    let last = peer
        .unmatched_last
        .iter()
        .flat_map(|last| last.split(" to "));
    let words = ["last: ", "to "].into_iter().zip(last);
    words
        .into_iter()
        .try_for_each(|(word, part)| writeln!(f, "  {word}{part}"))
}

/// Returns the names of the active boosters, shortened.
pub fn boosters_on(site: &PacketStatus) -> String {
    let is_on = |counts: &BTreeMap<String, u64>| counts.get("on").is_some_and(|on| *on > 0);
    let on = site.boosters.iter().filter(|(_, counts)| is_on(counts));
    let names: Vec<_> = on.map(|(name, _)| name.as_str()).collect();
    let names = names.join(" ");
    if names.chars().count() <= BOOSTERS {
        return names;
    }
    let begin = names.chars().take(BOOSTERS - 1);
    begin.chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lists_of_boosters_are_cut() {
        let on = BTreeMap::from([("on".to_owned(), 1)]);
        let off = BTreeMap::from([("on".to_owned(), 0)]);
        let status = |boosters: &[(&str, &BTreeMap<String, u64>)]| {
            let all = boosters.iter();
            let all = all.map(|(name, counts)| ((*name).to_owned(), (*counts).clone()));
            let mut status = crate::testing::status();
            let mut site = status.peers.remove(0).packets.remove(0);
            site.boosters = all.collect();
            boosters_on(&site)
        };
        assert_eq!(
            status(&[("arq", &on), ("fec", &off), ("jitter", &on)]),
            "arq jitter"
        );
        let all = [("ack_reconstruction", &on), ("arq", &on), ("compress", &on)];
        assert_eq!(status(&all), "ack_reconstruction arq compre…");
    }
}
