//! Conversion of the tunnels' packet counters to the API.

use std::collections::BTreeMap;

use pepd_api::status::{PacketStatus, ReceivedStatus};
use pepd_tunnel::packets::{ReceivedFacts, SiteFacts};

pub(super) fn status(facts: &SiteFacts) -> PacketStatus {
    let chain = &facts.chain;
    PacketStatus {
        site: facts.site.clone(),
        packets: chain.packets,
        bytes: chain.bytes,
        messages: chain.messages,
        message_bytes: chain.message_bytes,
        delivered: chain.packets_up,
        dropped_full: chain.dropped_full,
        dropped_late: chain.dropped_late,
        dropped_long: chain.dropped_long,
        queued_bytes: facts.queued as u64,
        queued_s: facts.delay.as_secs_f64(),
        boosters: by_name(&facts.boosters),
    }
}

pub(super) fn received_status(facts: &ReceivedFacts) -> ReceivedStatus {
    let stats = &facts.stats;
    ReceivedStatus {
        chain: facts.chain,
        messages: stats.messages,
        packets: stats.packets,
        unreadable: stats.unreadable,
        given_up: stats.given_up,
        dropped_congested: stats.dropped_congested,
        boosters: by_name(&facts.boosters),
    }
}

fn by_name(
    counts: &[(&'static str, &'static str, u64)],
) -> BTreeMap<String, BTreeMap<String, u64>> {
    let mut boosters: BTreeMap<String, BTreeMap<String, u64>> = BTreeMap::new();
    for (booster, count, value) in counts {
        let counts = boosters.entry((*booster).to_owned()).or_default();
        counts.insert((*count).to_owned(), *value);
    }
    boosters
}
