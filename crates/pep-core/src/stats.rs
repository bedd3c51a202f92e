//! Plain counters. The daemon fills and exports them.

use std::fmt;

/// Reason why a flow ended. Each belongs to one party: the client's side, the server's side, or
/// pepd.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EndReason {
    /// Both ends closed and every byte was delivered.
    Closed,
    /// The client reset the connection.
    ClientReset,
    /// The server reset the connection.
    ServerReset,
    /// The server refused the connection.
    Refused,
    /// The network reported that the server cannot be reached.
    Unreachable,
    /// The server did not answer within `timeouts.connect`.
    ConnectTimeout,
    /// No byte moved for `timeouts.idle`.
    IdleTimeout,
    /// Sent data, or a keepalive, was not acknowledged for too long.
    UserTimeout,
    /// pepd was stopped and the flow outlived `timeouts.drain`.
    Drained,
    /// The peer at the other end of the tunnel does not know the flow. It has restarted, or the
    /// flow ended there while the session was lost.
    PeerRestarted,
    /// The peer at the far end of the tunnel accepts no more flows from here.
    PeerLimit,
    /// Data of the flow was held for longer than `custody.hold`.
    Expired,
    /// The link was down, and the site refuses flows then (`while_down = "refuse"`).
    LinkDown,
    /// pepd failed; the log has the cause.
    Error,
}

impl EndReason {
    /// Every reason, in the order of the counters.
    pub const ALL: [Self; 14] = [
        Self::Closed,
        Self::ClientReset,
        Self::ServerReset,
        Self::Refused,
        Self::Unreachable,
        Self::ConnectTimeout,
        Self::IdleTimeout,
        Self::UserTimeout,
        Self::Drained,
        Self::PeerRestarted,
        Self::PeerLimit,
        Self::Expired,
        Self::LinkDown,
        Self::Error,
    ];

    /// Name in logs and counters.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::ClientReset => "client_reset",
            Self::ServerReset => "server_reset",
            Self::Refused => "refused",
            Self::Unreachable => "unreachable",
            Self::ConnectTimeout => "connect_timeout",
            Self::IdleTimeout => "idle_timeout",
            Self::UserTimeout => "user_timeout",
            Self::Drained => "drained",
            Self::PeerRestarted => "peer_restarted",
            Self::PeerLimit => "peer_limit",
            Self::Expired => "expired",
            Self::LinkDown => "link_down",
            Self::Error => "error",
        }
    }
}

impl fmt::Display for EndReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $name:ident,)*) => {
        /// Counters of the daemon: totals since its start, except where a description has "now".
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        pub struct Stats {
            $($(#[doc = $doc])+ pub $name: u64,)*
        }

        impl Stats {
            /// Every counter with its name, in a fixed order.
            pub fn entries(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
                [$((stringify!($name), self.$name),)*].into_iter()
            }

            /// Description of every counter, in the order of [`entries`](Self::entries).
            pub const MEANINGS: &[&str] = &[$(concat!($($doc),+),)*];
        }
    };
}

counters! {
    /// Flows accepted from hosts.
    flows_accepted,
    /// Flows open now, of all sites.
    flows_open,
    /// Maximum number of flows open at one time since the start.
    flows_open_max,
    /// Flows that ended as [`EndReason::Closed`].
    ended_closed,
    /// Flows that ended as [`EndReason::ClientReset`].
    ended_client_reset,
    /// Flows that ended as [`EndReason::ServerReset`].
    ended_server_reset,
    /// Flows that ended as [`EndReason::Refused`].
    ended_refused,
    /// Flows that ended as [`EndReason::Unreachable`].
    ended_unreachable,
    /// Flows that ended as [`EndReason::ConnectTimeout`].
    ended_connect_timeout,
    /// Flows that ended as [`EndReason::IdleTimeout`].
    ended_idle_timeout,
    /// Flows that ended as [`EndReason::UserTimeout`].
    ended_user_timeout,
    /// Flows that ended as [`EndReason::Drained`].
    ended_drained,
    /// Flows that ended as [`EndReason::PeerRestarted`].
    ended_peer_restarted,
    /// Flows that ended as [`EndReason::PeerLimit`].
    ended_peer_limit,
    /// Flows that ended as [`EndReason::Expired`].
    ended_expired,
    /// Flows that ended as [`EndReason::LinkDown`].
    ended_link_down,
    /// Flows that ended as [`EndReason::Error`].
    ended_error,
    /// Earlier worker processes of this pepd: replaced after a crash, a reload or an upgrade.
    restarts,
    /// Worker processes killed because they hung, since `pepd run` started or was last upgraded.
    hangs,
    /// Configurations that failed to start and were reverted: 0 or 1, until the next reload or
    /// upgrade.
    reverts,
    /// Flows taken over from the previous process.
    flows_recovered,
    /// Flows of the previous process that could not be taken over, and were reset.
    flows_lost_at_restart,
    /// Bytes by which pepd's records lagged behind the sockets, corrected when a process took over
    /// flows.
    bytes_corrected,
    /// Bytes relayed from clients to servers.
    up_bytes,
    /// Bytes relayed from servers to clients.
    down_bytes,
    /// Bytes received from clients and not delivered because the server leg was reset.
    up_undelivered_bytes,
    /// Bytes received from servers and not delivered because the client leg was reset.
    down_undelivered_bytes,
    /// SYNs that passed unaccelerated because the gate was closed.
    syns_passed_gate,
    /// Times the gate closed because of `limits.flows`, or a shortage of descriptors or memory.
    gate_closed,
    /// SYNs that passed unaccelerated because their host had reached `limits.flows_per_host`.
    syns_passed_hosts,
    /// SYNs that passed unaccelerated because of a flood: too many within ten seconds.
    syns_passed_recent,
    /// SYNs that passed unaccelerated because of the rate limits (`limits.held_rate`,
    /// `limits.held_rate_per_source`).
    syns_passed_rate,
    /// SYNs that passed unaccelerated because their connections cannot be split: signed (TCP-MD5,
    /// TCP-AO) or guarded by their TTL (GTSM).
    syns_passed_end_to_end,
    /// SYNs that passed unaccelerated because no route leads to their destination, or no server
    /// answers over IPv6 (`spoof`).
    syns_passed_no_route,
    /// SYNs that passed unaccelerated because redirected SYNs did not arrive
    /// (`on_interception_loss`).
    syns_passed_lost,
    /// SYNs dropped because redirected SYNs did not arrive (`on_interception_loss = "block"`).
    syns_blocked_lost,
    /// SYNs that passed unaccelerated because a rule of another program drops packets of such
    /// connections on their way to pepd.
    syns_passed_filtered,
    /// SYNs that passed unaccelerated because their route does not use the link
    /// (`link.other_routes`).
    syns_passed_other_route,
    /// SYNs refused because the peer of their tunnel reaches no hosts of IPv4, or of IPv6.
    syns_refused_unreached,
    /// Times that redirected SYNs of a site did not arrive, by family: another program's rule
    /// dropped them.
    interception_losses,
    /// Hosts now at `limits.flows_per_host`; their further flows pass unaccelerated.
    hosts_at_cap,
    /// Times a host reached `limits.flows_per_host`.
    host_cap_reached,
    /// Flows above `limits.flows_per_host` that pepd served because the kernel had already answered
    /// their SYN.
    host_cap_exceeded,
    /// Times that pepd needed a descriptor and had none.
    descriptors_short,
    /// Times that pepd could not get memory for a socket or a page of a ring.
    memory_short,
    /// Times that the kernel refused a server leg although no resource was short.
    legs_failed,
    /// Times that `limits.memory` or `limits.ring_max` kept a ring from growing.
    ring_growth_denied,
    /// Bytes of all rings now, including credit granted to tunnel peers.
    ring_bytes,
    /// Flows that share the link's rate now; keeps its last value while none sends.
    link_senders,
    /// Highest rate at which a flow that shares the link may send now, in bit/s of IP packets.
    link_level_bits,
    /// Bytes of IP packets that left by `link.interface` and are not of flows that share the link.
    link_other_bytes,
    /// Flows that waited for the link before they connected.
    link_waited,
    /// Probes of the link over a flow's link leg during an outage.
    link_probes,
    /// Flows whose server leg got another source port because the client's was in use, or has had
    /// hundreds of connections within a minute.
    source_port_changed,
    /// Connections reset at both ends: another pepd had split them, or this one before it lost
    /// power.
    midway_reset,
    /// Connections that began elsewhere and pass: their ends speak with each other.
    midway_passed,
    /// Tunnel peers that are up now.
    tunnel_peers_up,
    /// Tunnel peers reached by TCP now: UDP is blocked, or `carrier` is `"tcp"`.
    tunnel_peers_by_tcp,
    /// TCP connections to the tunnel port now, of peers and of unauthenticated senders.
    tunnel_tcp_connections,
    /// TCP connections to the tunnel port that ended before their sender was authenticated.
    tunnel_tcp_unauthenticated,
    /// TCP connections of peers that pepd closed: the peer had opened too many, or one brought
    /// what is not the peer's.
    tunnel_tcp_closed,
    /// Flows that entered a tunnel at this pepd.
    tunnel_flows_near,
    /// Flows that left a tunnel at this pepd.
    tunnel_flows_far,
    /// Tunnel flows of peers that were reset: the peer had reached its limit, or memory was short.
    tunnel_flows_refused,
    /// Tunnel flows of peers that were reset: `from` and `to` of the peer do not permit them.
    tunnel_flows_forbidden,
    /// Tunnel flows of peers whose connection to the server waited: the peer opened more a second
    /// than its `openings`.
    tunnel_openings_delayed,
    /// Times that pepd asked a peer to send no more of a tunnel flow for now: too many bytes
    /// waited for connections of the flow's host.
    tunnel_flows_held,
    /// Times that a flow in a tunnel resumed in a new session.
    tunnel_flows_resumed,
    /// Bytes of hosts that entered compressed tunnel streams, before compression.
    tunnel_uncompressed_bytes,
    /// Bytes that compressed tunnel streams sent, after compression.
    tunnel_compressed_bytes,
    /// Compression blocks sent on tunnel streams.
    tunnel_compression_blocks,
    /// Compression blocks sent uncompressed on tunnel streams, since compression did not shrink
    /// them.
    tunnel_compression_blocks_stored,
    /// Flows reset because a received compression block could not be decompressed.
    tunnel_compression_blocks_refused,
    /// Tunnel datagrams handed to the kernel.
    tunnel_datagrams_sent,
    /// Tunnel datagrams that the kernel did not accept.
    tunnel_datagrams_unsent,
    /// System calls that sent tunnel datagrams.
    tunnel_send_calls,
    /// System calls that received tunnel datagrams by UDP.
    tunnel_receive_calls,
    /// Tunnel datagrams that the kernel dropped on arrival by UDP: pepd was busy and the receive
    /// buffer full. Also datagrams and connections that one tunnel thread passed to another whose
    /// queue was full.
    tunnel_datagrams_dropped,
    /// Tunnel datagrams dropped because a tunnel thread was overloaded and their sender, a peer or
    /// all strangers together, had more of them waiting than the others.
    tunnel_datagrams_shed,
    /// Datagrams received on the tunnel port, from any sender.
    tunnel_datagrams_received,
    /// Tunnel datagrams rejected: damaged, repeated, forged or unmatched.
    tunnel_datagrams_refused,
    /// Packets taken into tunnels (mode `packet`), or through boosters (mode `boost`).
    packets_taken,
    /// Host packets that the kernel forwarded because the peer was down or takes none.
    packets_passed,
    /// Host packets dropped because the peer was down (`packet.on_peer_loss`), or malformed.
    packets_dropped,
    /// Packets delivered to the kernel: those of peers, and behind boosters (mode `boost`).
    packets_delivered,
    /// Packets of peers, or behind boosters, that the kernel did not accept.
    packets_undeliverable,
    /// Peer packets dropped as unmatched: they answer nothing that a site takes.
    packets_unmatched,
    /// Peer packets dropped because `from` and `to` of the peer do not permit them.
    packets_forbidden,
    /// Peer packets dropped as martians: invalid source or destination, both equal, or
    /// source-routed.
    packets_martian,
    /// Memory that tunnel flows hold now for peers, beyond their initial buffers, in bytes.
    custody_memory_bytes,
    /// Bytes that tunnel flows hold on disk now.
    custody_disk_bytes,
    /// Bytes that custody moved from memory to disk.
    custody_spilled_bytes,
    /// Errors and short transfers of custody's disk reads and writes.
    custody_disk_errors,
    /// Flows reset because data held for them was damaged, on disk or in memory.
    custody_flows_damaged,
    /// Chunks on custody's disk dropped after a restart: without a flow, or incomplete.
    custody_records_dropped,
    /// Bytes dropped because they came for clients whose FIN had been answered early (`close =
    /// "early"`).
    custody_late_bytes,
    /// SYNs held now (`syn = "defer"`).
    syns_held,
    /// Held SYNs released to the listener because the server answered.
    syns_released,
    /// Held SYNs answered by RST because the server refused.
    syns_refused,
    /// Held SYNs answered by ICMP because the server cannot be reached.
    syns_unreachable,
    /// SYNs that hosts retransmitted while their first one was held, or just released.
    syns_repeated,
    /// Held SYNs forgotten because the client went silent or the server never answered.
    syns_expired,
    /// Held SYNs whose client went silent, or reset, after the server had answered.
    syns_orphaned,
    /// Held SYNs that passed unaccelerated: a cap on held SYNs, or an address in use.
    syns_passed_held,
}

impl Stats {
    /// Counts the end of a flow.
    pub fn on_flow_end(&mut self, reason: EndReason) {
        *match reason {
            EndReason::Closed => &mut self.ended_closed,
            EndReason::ClientReset => &mut self.ended_client_reset,
            EndReason::ServerReset => &mut self.ended_server_reset,
            EndReason::Refused => &mut self.ended_refused,
            EndReason::Unreachable => &mut self.ended_unreachable,
            EndReason::ConnectTimeout => &mut self.ended_connect_timeout,
            EndReason::IdleTimeout => &mut self.ended_idle_timeout,
            EndReason::UserTimeout => &mut self.ended_user_timeout,
            EndReason::Drained => &mut self.ended_drained,
            EndReason::PeerRestarted => &mut self.ended_peer_restarted,
            EndReason::PeerLimit => &mut self.ended_peer_limit,
            EndReason::Expired => &mut self.ended_expired,
            EndReason::LinkDown => &mut self.ended_link_down,
            EndReason::Error => &mut self.ended_error,
        } += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_has_a_counter_of_its_name() {
        for reason in EndReason::ALL {
            let mut stats = Stats::default();
            stats.on_flow_end(reason);
            let counted: Vec<_> = stats.entries().filter(|(_, value)| *value != 0).collect();
            assert_eq!(counted, [(format!("ended_{reason}").as_str(), 1)]);
        }
    }
}
