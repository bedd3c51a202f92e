//! The daemon's counters, shared by all threads, and their log line.

use parking_lot::Mutex;
use pep_core::stats::Stats;

/// [`Stats`] shared by all threads. A lock suffices: flows begin and end some thousand times a
/// second, and bytes are added once per flow and second.
#[derive(Debug, Default)]
pub struct Counters(Mutex<Stats>);

impl Counters {
    /// Updates counters.
    pub fn update(&self, count: impl FnOnce(&mut Stats)) {
        count(&mut self.0.lock());
    }

    /// Returns all counters.
    pub fn snapshot(&self) -> Stats {
        *self.0.lock()
    }
}

macro_rules! counters_line {
    ($($name:ident),* $(,)?) => {
        /// Logs all counters as one line.
        pub fn log(stats: &Stats) {
            tracing::info!($($name = stats.$name,)* "counters");
        }

        /// Logs the counters that are not zero as one line, for people.
        pub fn log_counted(stats: &Stats) {
            let counted = |count: u64| (count > 0).then_some(count);
            // Fields without a value are left out.
            tracing::info!($($name = counted(stats.$name),)* "counters");
        }

        #[cfg(test)]
        const LOGGED: &[&str] = &[$(stringify!($name)),*];
    };
}

counters_line! {
    flows_accepted, flows_open, flows_open_max,
    ended_closed, ended_client_reset, ended_server_reset, ended_refused, ended_unreachable,
    ended_connect_timeout, ended_idle_timeout, ended_user_timeout, ended_drained, ended_peer_restarted, ended_peer_limit,
    ended_expired, ended_link_down, ended_error,
    restarts, hangs, reverts, flows_recovered, flows_lost_at_restart, bytes_corrected,
    up_bytes, down_bytes, up_undelivered_bytes, down_undelivered_bytes,
    syns_passed_gate, gate_closed, syns_passed_hosts, syns_passed_recent, syns_passed_rate,
    syns_passed_end_to_end, syns_passed_no_route, syns_passed_lost, syns_blocked_lost, syns_passed_filtered, syns_passed_other_route, syns_refused_unreached, interception_losses, hosts_at_cap, host_cap_reached, host_cap_exceeded, descriptors_short, memory_short, legs_failed,
    ring_growth_denied, ring_bytes, link_senders, link_level_bits, link_other_bytes, link_waited, link_probes, source_port_changed,
    midway_reset, midway_passed,
    tunnel_peers_up, tunnel_peers_by_tcp, tunnel_tcp_connections, tunnel_tcp_unauthenticated, tunnel_tcp_closed,
    tunnel_flows_near, tunnel_flows_far, tunnel_flows_refused, tunnel_flows_forbidden, tunnel_openings_delayed, tunnel_flows_held, tunnel_flows_resumed, tunnel_uncompressed_bytes, tunnel_compressed_bytes,
    tunnel_compression_blocks, tunnel_compression_blocks_stored, tunnel_compression_blocks_refused, tunnel_datagrams_sent,
    tunnel_datagrams_unsent, tunnel_send_calls, tunnel_receive_calls, tunnel_datagrams_dropped, tunnel_datagrams_shed,
    tunnel_datagrams_received, tunnel_datagrams_refused,
    packets_taken, packets_passed, packets_dropped, packets_delivered, packets_undeliverable, packets_unmatched, packets_forbidden, packets_martian,
    custody_memory_bytes, custody_disk_bytes, custody_spilled_bytes, custody_disk_errors, custody_flows_damaged,
    custody_records_dropped, custody_late_bytes,
    syns_held, syns_released, syns_refused, syns_unreachable, syns_repeated, syns_expired,
    syns_orphaned, syns_passed_held,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_counter_is_logged() {
        let names: Vec<_> = Stats::default().entries().map(|(name, _)| name).collect();
        assert_eq!(names, LOGGED);
    }
}
