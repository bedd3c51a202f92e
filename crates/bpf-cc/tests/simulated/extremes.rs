//! Windows stay sane for any values of a socket. The functions run on the host's CPU, where a
//! division by zero is a fault.

use bpf_cc::Control;
use proptest::prelude::*;

use crate::program::{INFINITE, Socket, View};

fn extreme() -> impl Strategy<Value = u32> {
    prop_oneof![Just(0), Just(1), Just(u32::MAX), 0u32..100, any::<u32>()]
}

fn any_view() -> impl Strategy<Value = View> {
    let times = (any::<u32>(), extreme(), extreme(), extreme());
    let counts = (extreme(), extreme(), extreme(), 0u32..1000, 0u32..1000);
    let rates = (
        prop_oneof![Just(0u64), Just(1), 1u64..10_000_000_000],
        prop_oneof![Just(0u32), Just(1), 500u32..9000],
    );
    (times, counts, rates, 0u32..5).prop_map(
        |((now, srtt, rtt, interval), (flight, prior, sent, acked, lost), (rate, mss), state)| {
            View {
                now_us: now.into(),
                srtt_us: srtt,
                rtt_us: rtt,
                interval_us: interval.into(),
                in_flight: flight,
                most_in_flight: flight,
                prior_delivered: prior,
                delivered: prior.wrapping_add(acked),
                sent,
                acked,
                lost,
                stated_rate: rate,
                mss,
                state,
                ..View::default()
            }
        },
    )
}

proptest! {
    #[test]
    fn windows_stay_sane(views in prop::collection::vec(any_view(), 1..40), srtt in extreme()) {
        for control in Control::ALL {
            let mut socket = Socket::new(control, srtt, views[0].stated_rate);
            socket.view.threshold = INFINITE;
            for view in &views {
                socket.view = View {
                    window: socket.view.window,
                    threshold: socket.view.threshold,
                    pacing_rate: socket.view.pacing_rate,
                    ..*view
                };
                if view.state != 0 {
                    socket.enter(view.state);
                }
                socket.acknowledge();
                let window = socket.view.window;
                prop_assert!((1..1 << 20).contains(&window), "{}: {}", control, window);
                prop_assert!(socket.view.pacing_rate > 0, "{}", control);
            }
        }
    }
}
