//! Causes for which one direction of a flow waits, deduced from two samples.

use pep_core::arena::DirectionRecord;
use pepd_api::{flows::LegStatus, trace::WaitsFor};

/// Destination of the bytes.
#[derive(Debug, Clone, Copy)]
pub(super) enum Sink<'a> {
    /// A connection with a host, at the previous sample and now; `None` if it is closed.
    Leg {
        before: Option<&'a LegStatus>,
        now: Option<&'a LegStatus>,
        /// Bytes in its send queue.
        queue: u64,
        /// True if it crosses the link.
        is_links: bool,
    },
    /// A tunnel, with the state of its peer.
    Tunnel { is_up: bool },
}

/// Returns the cause for which a direction waits. Both legs exist unless the flow is only
/// `accepted`.
pub(super) fn waits_for(
    direction: &DirectionRecord,
    sink: Sink<'_>,
    is_accepted: bool,
    link_down: bool,
) -> Option<WaitsFor> {
    let held = direction.tail.saturating_sub(direction.head);
    if is_accepted {
        return Some(WaitsFor::Answer);
    }
    match sink {
        Sink::Tunnel { .. } if held == 0 => (!direction.fin_in).then_some(WaitsFor::Source),
        Sink::Tunnel { is_up: false } => Some(WaitsFor::Peer),
        Sink::Tunnel { is_up: true } if link_down => Some(WaitsFor::Link),
        Sink::Tunnel { is_up: true } => Some(WaitsFor::Tunnel),
        Sink::Leg { now: None, .. } => None,
        Sink::Leg { queue, .. } if held + queue == 0 => {
            (!direction.fin_in).then_some(WaitsFor::Source)
        }
        Sink::Leg { is_links: true, .. } if link_down => Some(WaitsFor::Link),
        Sink::Leg {
            before,
            now: Some(now),
            queue,
            ..
        } => Some(leg_waits_for(before, now, queue)),
    }
}

/// Returns the cause for which a connection with bytes to send waits.
fn leg_waits_for(before: Option<&LegStatus>, now: &LegStatus, queue: u64) -> WaitsFor {
    let since = |time: fn(&LegStatus) -> f64| time(now) - before.map_or(0.0, time);
    let busy = since(|leg| leg.busy_s);
    let mostly = |time: f64| time > 0.0 && 2.0 * time >= busy;
    let under_way = u64::from(now.unacked) * u64::from(now.mss);
    if mostly(since(|leg| leg.rwnd_limited_s)) {
        WaitsFor::ReceiverWindow
    } else if mostly(since(|leg| leg.sndbuf_limited_s)) {
        WaitsFor::SendBuffer
    } else if now.in_flight >= now.cwnd {
        WaitsFor::CongestionWindow
    } else if now.pacing_rate.is_some() && queue > under_way + u64::from(now.mss) {
        WaitsFor::Pacing
    } else {
        WaitsFor::Acknowledgements
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leg() -> LegStatus {
        serde_json::from_value(serde_json::json!({
            "state": "established", "congestion": "cubic", "rtt_s": 0.6, "rtt_min_s": 0.6, "cwnd": 10, "mss": 1000,
            "unacked": 4, "in_flight": 4, "retransmitted": 0, "pacing_rate": null, "delivery_rate": null, "busy_s": 5.0,
            "rwnd_limited_s": 0.0, "sndbuf_limited_s": 0.0,
        }))
        .expect("a leg")
    }

    fn direction(head: u64, tail: u64) -> DirectionRecord {
        DirectionRecord {
            head,
            tail,
            ..DirectionRecord::default()
        }
    }

    /// Returns the cause with `queue` bytes in the send queue of a leg that changes from one state
    /// to the other.
    fn waits(queue: u64, before: &LegStatus, now: &LegStatus, link_down: bool) -> Option<WaitsFor> {
        let sink = Sink::Leg {
            before: Some(before),
            now: Some(now),
            queue,
            is_links: true,
        };
        waits_for(&direction(9, 9), sink, false, link_down)
    }

    #[test]
    fn what_has_changed_since_the_look_before_is_what_it_waits_for() {
        let before = leg();
        let later = |change: fn(&mut LegStatus)| {
            let mut leg = leg();
            leg.busy_s += 0.25;
            change(&mut leg);
            leg
        };
        for (expected, now) in [
            (
                WaitsFor::ReceiverWindow,
                later(|leg| leg.rwnd_limited_s = 0.2),
            ),
            (
                WaitsFor::SendBuffer,
                later(|leg| leg.sndbuf_limited_s = 0.2),
            ),
            (WaitsFor::CongestionWindow, later(|leg| leg.in_flight = 10)),
            (WaitsFor::Pacing, later(|leg| leg.pacing_rate = Some(8))),
            (WaitsFor::Acknowledgements, later(|_| ())),
        ] {
            assert_eq!(waits(20_000, &before, &now, false), Some(expected));
            assert_eq!(waits(20_000, &before, &now, true), Some(WaitsFor::Link));
            assert_eq!(waits(0, &before, &now, true), Some(WaitsFor::Source));
        }
        // The limit was long ago.
        let mut before = leg();
        before.rwnd_limited_s = 5.0;
        let now = before.clone();
        assert_eq!(
            waits(4000, &before, &now, false),
            Some(WaitsFor::Acknowledgements)
        );
    }

    #[test]
    fn a_tunnel_is_waited_for_while_it_has_something() {
        let waits = |direction: &DirectionRecord, is_up: bool, link_down: bool| {
            waits_for(direction, Sink::Tunnel { is_up }, false, link_down)
        };
        assert_eq!(waits(&direction(5, 5), true, true), Some(WaitsFor::Source));
        assert_eq!(waits(&direction(5, 9), true, false), Some(WaitsFor::Tunnel));
        assert_eq!(waits(&direction(5, 9), true, true), Some(WaitsFor::Link));
        assert_eq!(waits(&direction(5, 9), false, true), Some(WaitsFor::Peer));
        let ended = DirectionRecord {
            fin_in: true,
            ..direction(5, 5)
        };
        assert_eq!(waits(&ended, true, false), None);
        let sink = Sink::Tunnel { is_up: true };
        let accepted = waits_for(&direction(0, 0), sink, true, false);
        assert_eq!(accepted, Some(WaitsFor::Answer));
    }
}
