//! Plain counters. The daemon fills and exports them; nothing here knows how.

use std::fmt;

/// Why a flow ended. Each belongs to one party: the client's side, the server's side, or us.
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
    /// The network said that the server cannot be reached.
    Unreachable,
    /// The server did not answer within `timeouts.connect`.
    ConnectTimeout,
    /// No byte moved for `timeouts.idle`.
    IdleTimeout,
    /// Sent data, or a keepalive, was not acknowledged for too long.
    UserTimeout,
    /// pepd was stopped and the flow outlived `timeouts.drain`.
    Drained,
    /// The peer at the far end of the tunnel has begun anew, and knows nothing of the flow.
    PeerRestarted,
    /// The peer at the far end of the tunnel serves no more flows of ours.
    PeerLimit,
    /// What was held of the flow was held for longer than `custody.hold`.
    Expired,
    /// The link was away, and its site wants no flows then (`while_down = "refuse"`).
    LinkDown,
    /// Something failed here; the log says what.
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

    /// As it is written in logs and counters.
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
        /// Counters of the daemon: totals since it started, except where a line says "now".
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        pub struct Stats {
            $($(#[doc = $doc])+ pub $name: u64,)*
        }

        impl Stats {
            /// Every counter with its name, in a fixed order.
            pub fn entries(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
                [$((stringify!($name), self.$name),)*].into_iter()
            }

            /// What every counter means, in the order of [`entries`](Self::entries).
            pub const MEANINGS: &[&str] = &[$(concat!($($doc),+),)*];
        }
    };
}

counters! {
    /// Flows accepted from hosts.
    flows_accepted,
    /// Flows open now.
    flows_open,
    /// The most flows ever open at one time.
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
    /// Processes that have carried flows of this memory before: after a crash, a restart or an
    /// upgrade.
    restarts,
    /// Processes that were killed as they did not go on, since `pepd run` began or was last
    /// upgraded.
    hangs,
    /// Configurations that could not be put in place, so that the one before went on: 0 or 1, until
    /// the next reload or upgrade.
    reverts,
    /// Flows taken over from the process before.
    flows_recovered,
    /// Flows of the process before that could not be taken over, and were reset.
    flows_lost_at_restart,
    /// Bytes by which pepd's records lagged behind the sockets, corrected when a process took over
    /// flows.
    bytes_repaired,
    /// Bytes relayed from clients to servers.
    up_bytes,
    /// Bytes relayed from servers to clients.
    down_bytes,
    /// Bytes taken from clients that servers could no longer be given: their leg was reset.
    up_undelivered_bytes,
    /// Bytes taken from servers that clients could no longer be given.
    down_undelivered_bytes,
    /// SYNs that passed unaccelerated because the gate was closed.
    syns_passed_gate,
    /// Times the gate closed: flow cap reached, or descriptors or memory short.
    gate_closed,
    /// SYNs that passed unaccelerated because their host had as many flows as one may have.
    syns_passed_hosts,
    /// SYNs that passed unaccelerated because there were too many within ten seconds: a flood.
    syns_passed_recent,
    /// SYNs that passed unaccelerated because more came within a second than are to be held
    /// (`limits.held_rate`, `limits.held_rate_per_source`).
    syns_passed_rate,
    /// SYNs that passed unaccelerated because their connections are not to be split: signed
    /// (TCP-MD5, TCP-AO) or guarded by their TTL (GTSM).
    syns_passed_end_to_end,
    /// SYNs that passed unaccelerated because no route leads to their destination, or no server
    /// answers over IPv6 (`spoof`).
    syns_passed_no_route,
    /// SYNs that passed unaccelerated because those that pepd redirects did not arrive
    /// (`on_interception_loss`).
    syns_passed_lost,
    /// SYNs that were dropped because those that pepd redirects did not arrive
    /// (`on_interception_loss = "block"`).
    syns_blocked_lost,
    /// SYNs that passed unaccelerated because their route does not lead by the link
    /// (`link.elsewhere`).
    syns_passed_elsewhere,
    /// Times that redirected SYNs of a site did not arrive, by family: another program's rule
    /// dropped them.
    interception_losses,
    /// Hosts that have as many flows as one may have now (`limits.flows_per_host`): their further
    /// ones pass unaccelerated.
    hosts_at_cap,
    /// Times a host reached `limits.flows_per_host`.
    host_cap_reached,
    /// Flows above `limits.flows_per_host` that pepd served because the kernel had already answered
    /// their SYN.
    host_cap_exceeded,
    /// Times a descriptor was wanted and there was none.
    descriptors_short,
    /// Times memory was wanted, for a socket or a page of a ring, and there was none.
    memory_short,
    /// Times a server leg could not be made though nothing was short: the system refused it.
    legs_failed,
    /// Times a ring wanted to grow and `limits.memory` or `limits.ring_max` did not let it.
    ring_growth_denied,
    /// Bytes of all rings now, with what peers of tunnels were granted.
    ring_bytes,
    /// Flows now sharing the link's rate; keeps its last value while none sends.
    link_senders,
    /// Rate at which each flow that shares the link may send now, in bit/s of IP packets.
    link_level_bits,
    /// Flows that waited for the link before they connected.
    link_waited,
    /// Times a leg over the link was made to ask whether the link is back.
    link_probes,
    /// Flows whose server leg got another source port because the client's was taken.
    source_port_changed,
    /// Tunnel peers that are up.
    tunnel_peers_here,
    /// Peers reached by TCP: UDP does not get through, or `carrier` is `"tcp"`.
    tunnel_peers_by_tcp,
    /// TCP connections of peers, and of senders not yet proved to be peers.
    tunnel_tcp_connections,
    /// TCP connections that ended before their sender had proved to be a peer.
    tunnel_tcp_strangers,
    /// Flows that went into a tunnel here.
    tunnel_flows_near,
    /// Flows that came out of a tunnel here.
    tunnel_flows_far,
    /// Flows of peers that were reset as their peer had as many as it may, or there was no memory
    /// for them.
    tunnel_flows_refused,
    /// Times that a flow in a tunnel went on in another session than before.
    tunnel_flows_resumed,
    /// Bytes of hosts that went into compressed streams here.
    tunnel_plain_bytes,
    /// Bytes that compressed streams sent, after compression.
    tunnel_packed_bytes,
    /// Compression blocks sent.
    tunnel_parcels,
    /// Compression blocks stored uncompressed.
    tunnel_parcels_stored,
    /// Flows that were reset as what came for them could not be unpacked.
    tunnel_parcels_refused,
    /// Datagrams of tunnels that were sent, or at least given to the kernel.
    tunnel_datagrams_sent,
    /// Datagrams of tunnels that the kernel did not take.
    tunnel_datagrams_unsent,
    /// System calls that sent tunnel datagrams.
    tunnel_send_calls,
    /// System calls that received something of tunnels by UDP.
    tunnel_receive_calls,
    /// Datagrams that had arrived here by UDP when there was no room for them: we were busy for too
    /// long.
    tunnel_datagrams_dropped,
    /// Datagrams that arrived on the port of tunnels, from whomever.
    tunnel_datagrams_received,
    /// Tunnel datagrams rejected: damaged, repeated, forged or unmatched.
    tunnel_datagrams_refused,
    /// Packets of hosts that were taken to be carried beside flows (mode `packet`).
    packets_taken,
    /// Host packets the kernel forwarded because the peer was down or takes none.
    packets_passed,
    /// Host packets dropped because the peer was down (`packet.on_peer_loss`).
    packets_dropped,
    /// Packets of peers that were given to the kernel for hosts.
    packets_delivered,
    /// Peer packets the kernel did not accept.
    packets_undeliverable,
    /// Packets of peers that were dropped: they answer nothing that a site takes.
    packets_foreign,
    /// Packets of peers that were dropped: no router lets them go on, as their source or
    /// destination is no host's, both are the same, or their sender says by whom they go.
    packets_martian,
    /// Bytes of memory that flows in tunnels hold now of what peers lack, beyond their initial
    /// buffers.
    custody_memory_bytes,
    /// Bytes that flows in tunnels hold on disk now.
    custody_disk_bytes,
    /// Bytes that left memory for the disk.
    custody_spilled_bytes,
    /// Times the disk did not take or give what it should have.
    custody_disk_errors,
    /// Flows that were reset as what was held for them was damaged, on disk or in memory.
    custody_flows_damaged,
    /// Chunks on the disk that belonged to no flow after a restart, or were not whole.
    custody_records_dropped,
    /// Bytes that came for clients whose FIN had been answered early (`close = "early"`), and were
    /// dropped.
    custody_late_bytes,
    /// SYNs held (`syn = "defer"`) now.
    syns_held,
    /// Held SYNs released to the listener because the server answered.
    syns_released,
    /// Held SYNs answered by RST because the server refused.
    syns_refused,
    /// Held SYNs answered by ICMP because the server cannot be reached.
    syns_unreachable,
    /// SYNs that hosts sent again while their first one was held, or just released.
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
