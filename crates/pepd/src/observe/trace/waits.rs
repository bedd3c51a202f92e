//! What one direction of a flow waits for, as far as can be told from two looks at it.

use pep_core::arena::DirectionRecord;
use pepd_api::{flows::LegStatus, trace::WaitsFor};

/// What is known of where the bytes go.
#[derive(Debug, Clone, Copy)]
pub(super) enum Sink<'a> {
    /// A connection with a host, as it was at the look before and as it is; none where it is gone.
    Leg {
        before: Option<&'a LegStatus>,
        now: Option<&'a LegStatus>,
        /// Bytes in its send queue.
        queue: u64,
        /// It crosses the link.
        is_links: bool,
    },
    /// A tunnel; whether its other end is there.
    Tunnel { is_up: bool },
}

/// What a half of a flow waits for, whose legs are both there unless it is `accepted` only.
pub(super) fn waits_for(
    half: &DirectionRecord,
    sink: Sink<'_>,
    is_accepted: bool,
    link_down: bool,
) -> Option<WaitsFor> {
    let held = half.tail.saturating_sub(half.head);
    if is_accepted {
        return Some(WaitsFor::Answer);
    }
    match sink {
        Sink::Tunnel { .. } if held == 0 => (!half.fin_in).then_some(WaitsFor::Source),
        Sink::Tunnel { is_up: false } => Some(WaitsFor::Peer),
        Sink::Tunnel { is_up: true } if link_down => Some(WaitsFor::Link),
        Sink::Tunnel { is_up: true } => Some(WaitsFor::Tunnel),
        Sink::Leg { now: None, .. } => None,
        Sink::Leg { queue, .. } if held + queue == 0 => (!half.fin_in).then_some(WaitsFor::Source),
        Sink::Leg { is_links: true, .. } if link_down => Some(WaitsFor::Link),
        Sink::Leg {
            before,
            now: Some(now),
            queue,
            ..
        } => Some(leg_waits_for(before, now, queue)),
    }
}

/// What a connection waits for that has something to send.
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

    fn half(head: u64, tail: u64) -> DirectionRecord {
        DirectionRecord {
            head,
            tail,
            ..DirectionRecord::default()
        }
    }

    /// With `queue` bytes in the send queue of a leg that changes from one to the other.
    fn waits(queue: u64, before: &LegStatus, now: &LegStatus, link_down: bool) -> Option<WaitsFor> {
        let sink = Sink::Leg {
            before: Some(before),
            now: Some(now),
            queue,
            is_links: true,
        };
        waits_for(&half(9, 9), sink, false, link_down)
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
        // It was limited long ago.
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
        let waits = |half: &DirectionRecord, is_up: bool, link_down: bool| {
            waits_for(half, Sink::Tunnel { is_up }, false, link_down)
        };
        assert_eq!(waits(&half(5, 5), true, true), Some(WaitsFor::Source));
        assert_eq!(waits(&half(5, 9), true, false), Some(WaitsFor::Tunnel));
        assert_eq!(waits(&half(5, 9), true, true), Some(WaitsFor::Link));
        assert_eq!(waits(&half(5, 9), false, true), Some(WaitsFor::Peer));
        let ended = DirectionRecord {
            fin_in: true,
            ..half(5, 5)
        };
        assert_eq!(waits(&ended, true, false), None);
        let sink = Sink::Tunnel { is_up: true };
        let accepted = waits_for(&half(0, 0), sink, true, false);
        assert_eq!(accepted, Some(WaitsFor::Answer));
    }
}
