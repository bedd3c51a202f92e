//! Current values of the process's counters.

use pep_core::stats::Stats;
use pepd_intercept::rules::Counter;
use pepd_relay::flow::FlowContext;
use pepd_sys::held::HeldLegs;

/// Sets the counters that only the kernel knows: SYNs that pepd did not take, by cause
/// ([`Counter::PASSED`]).
pub fn set_passed(stats: &mut Stats, passed: [u64; Counter::PASSED.len()]) {
    let fields = [
        &mut stats.syns_passed_gate,
        &mut stats.syns_passed_hosts,
        &mut stats.syns_passed_recent,
        &mut stats.syns_passed_rate,
        &mut stats.syns_passed_end_to_end,
        &mut stats.syns_passed_no_route,
        &mut stats.syns_passed_lost,
        &mut stats.syns_blocked_lost,
        &mut stats.syns_passed_filtered,
        &mut stats.syns_passed_other_route,
        &mut stats.syns_refused_unreached,
    ];
    for (field, count) in fields.into_iter().zip(passed) {
        *field = count;
    }
}

/// Returns all counters; those that only the kernel knows are at most a second old.
pub fn gather(context: &FlowContext) -> Stats {
    let mut stats = context.counters.snapshot();
    stats.ring_bytes = context.budget.taken();
    stats.hosts_at_cap = context.admission.hosts_at_cap().len() as u64;
    if let Some(link) = &context.link {
        stats.link_senders = link.senders();
        stats.link_level_bits = link.limit_bits();
        stats.link_other_bytes = link.other_bytes();
    }
    if let Some(held) = &context.held {
        add_held(&mut stats, held);
    }
    stats
}

fn add_held(stats: &mut Stats, held: &HeldLegs) {
    let counted = held.stats();
    stats.source_port_changed += held.source_port_changed();
    stats.syns_held = held.held_now() as u64;
    stats.syns_released = counted.released;
    stats.syns_refused = counted.refused;
    stats.syns_unreachable = counted.unreachable;
    stats.syns_repeated = counted.repeated;
    stats.syns_expired = counted.timed_out + counted.expired;
    stats.syns_orphaned = counted.orphaned;
    stats.syns_passed_held = counted.passed_failed
        + counted.passed_full
        + counted.passed_source_full
        + counted.passed_destination_full;
}
