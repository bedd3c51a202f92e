//! End of a flow in a tunnel: bytes still owed to its host, and its report.

use std::io;

use pep_core::{pace::Line, relay::Side, stats::EndReason};
use pepd_relay::flow::{FlowEnd, tail};
use tunnel::{compression::UnpackError, wire::ResetCode};

use super::{Joint, Sink};
use crate::{core::Kind, table::Loss};

/// End of relaying.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Over {
    /// Both directions are complete.
    Closed,
    /// The leg's host has sent an RST.
    ByHost,
    /// The peer, or its host, has reset the stream.
    ByPeer(ResetCode),
    /// The peer's compressed bytes cannot be decompressed.
    Malformed(UnpackError),
    /// Bytes of the flow's host cannot be delivered.
    Lost(Loss),
    /// The idle timeout has expired.
    Idle,
}

impl Joint {
    /// Relays until both directions are over, and ends the flow.
    pub(crate) async fn run(mut self) {
        match self.relay().await {
            Over::Closed => {
                self.ending = EndReason::Closed;
                self.code = None;
                if let Some(leg) = &self.leg {
                    leg.close_with_fin();
                }
                self.give_memory_back();
                self.delivered_within_orphan().await;
            }
            Over::ByHost => {
                self.ending = tail::broken(self.failure.as_ref(), self.side);
                self.code = Some(ResetCode::Host);
            }
            Over::ByPeer(code) => {
                self.delivered_within_orphan().await;
                self.ending = by_peer(code, self.side);
            }
            Over::Malformed(err) => self.on_malformed(err),
            Over::Lost(Loss::Expired) => {
                self.ending = EndReason::Expired;
                self.code = Some(ResetCode::Expired);
            }
            Over::Lost(Loss::Damaged) => {
                self.ending = EndReason::Error;
                self.code = Some(ResetCode::Internal);
            }
            Over::Idle => {
                self.ending = EndReason::IdleTimeout;
                self.code = Some(ResetCode::TimedOut);
            }
        }
    }

    fn on_malformed(&mut self, err: UnpackError) {
        let mut core = self.core.borrow_mut();
        let counters = &core.context.counters;
        counters.update(|stats| stats.tunnel_compression_blocks_refused += 1);
        if let Some(Line { left_out }) = core.line(self.key.peer, Kind::Malformed) {
            let (peer, client) = (core.peer_name(self.key.peer), self.ends.client);
            tracing::warn!(peer, %client, error = %err, left_out, "flow reset: the peer's compressed bytes are malformed");
        }
        drop(core);
        self.failure = Some(io::Error::new(io::ErrorKind::InvalidData, err));
        self.ending = EndReason::Error;
        self.code = Some(ResetCode::Internal);
    }

    async fn delivered_within_orphan(&self) {
        let limit = self.ends.site.timeouts.orphan;
        tail::delivered(limit, || self.has_tail()).await;
    }

    fn has_tail(&self) -> bool {
        let is_shut = self.sink == Sink::Shut;
        let leg = self.leg.as_ref().filter(|_| self.sink != Sink::Broken);
        leg.is_some_and(|leg| leg.has_tail(is_shut))
    }

    /// Adds the bytes moved since the last call to the counters.
    pub(super) fn count_bytes(&mut self) {
        let core = &mut *self.core.borrow_mut();
        let Some(carried) = core.entry(self.key).map(|entry| entry.delivered()) else {
            return;
        };
        let packing = self.packing.as_mut();
        let now = packing.map_or(carried, |packing| {
            let [acked, _] = by_leg(self.side, carried);
            by_leg(self.side, packing.delivered(acked))
        });
        let [up, down] = std::mem::replace(&mut self.counted, now);
        let moved = [now[0] - up, now[1] - down];
        self.ends.site.site_counters.relay(moved);
        core.context.counters.update(|stats| {
            stats.up_bytes += moved[0];
            stats.down_bytes += moved[1];
            if let Some(packing) = &mut self.packing {
                packing.count(stats);
            }
        });
    }
}

impl Drop for Joint {
    fn drop(&mut self) {
        self.count_bytes();
        let core = &mut *self.core.borrow_mut();
        let entry = core.entry(self.key);
        let (carried, held) =
            entry.map_or_else(Default::default, |entry| (entry.delivered(), entry.held()));
        let held = self
            .packing
            .as_ref()
            .map_or(held, |packing| by_leg(self.side, packing.held()));
        core.conclude(self.key, self.code);
        // Closed before its record goes: a leg without a record would be taken for a newly accepted
        // one.
        self.leg = None;
        core.remove(self.key, self.code);
        let undelivered = match self.ending {
            EndReason::Closed => [0; 2],
            _ => held,
        };
        let end = FlowEnd {
            reason: self.ending,
            up: self.counted[0],
            down: self.counted[1],
            up_undelivered: undelivered[0],
            down_undelivered: undelivered[1],
            growth_denied: 0,
            carried: self.packing.is_some().then_some(carried),
            duration: self.began.elapsed(),
            error: self.failure.as_ref(),
        };
        if core.tells_end(self.key.peer, &self.ends, self.ending) {
            end.record(&core.context, &self.ends);
        } else {
            end.record_unlogged(&core.context, &self.ends);
        }
    }
}

/// Converts counts between upstream and downstream and from-leg and to-leg, in either direction.
fn by_leg(side: Side, [up, down]: [u64; 2]) -> [u64; 2] {
    match side {
        Side::Client => [up, down],
        Side::Server => [down, up],
    }
}

/// Returns the end reason for a stream reset with this code, by the side of the local leg.
fn by_peer(code: ResetCode, side: Side) -> EndReason {
    match (code, side) {
        (ResetCode::Host, Side::Client) => EndReason::ServerReset,
        (ResetCode::Host, Side::Server) => EndReason::ClientReset,
        (ResetCode::Refused, _) => EndReason::Refused,
        (ResetCode::Unreachable, _) => EndReason::Unreachable,
        (ResetCode::TimedOut, _) => EndReason::ConnectTimeout,
        (ResetCode::Restarted, _) => EndReason::PeerRestarted,
        (ResetCode::Limit, _) => EndReason::PeerLimit,
        (ResetCode::Expired, _) => EndReason::Expired,
        (ResetCode::Internal | ResetCode::Ended, _) => EndReason::Error,
    }
}
