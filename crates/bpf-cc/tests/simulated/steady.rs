//! Tests of the constant window.

use bpf_cc::Control;
use proptest::prelude::*;

use crate::{link::Link, sender::Flow};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn the_window_is_that_of_the_stated_rate_whatever_is_lost(
        mbps in 1u32..100,
        rtt_ms in 20u32..800,
        loss in 0.0f64..0.3,
        seed: u64,
    ) {
        let bytes = f64::from(mbps) * 125_000.0;
        let link = Link::new(bytes / 1448.0, f64::from(rtt_ms) * 1e3, 1e6, loss, seed);
        let bdp = link.bdp();
        let capacity = link.rate;
        let rtt = link.rtt;
        let mut flow = Flow::new(Control::Steady, link, bytes as u64, 0.0);
        flow.run(2.0 * rtt);
        let before = flow.delivered();
        let window = flow.socket.view.window;
        flow.run(20.0 * rtt);
        prop_assert_eq!(flow.socket.view.window, window);
        prop_assert!((1.1 * bdp..1.2 * bdp + 14.0).contains(&f64::from(window)), "{} for {}", window, bdp);
        let share = f64::from(flow.delivered() - before) / (capacity * 20.0 * rtt / 1e6);
        prop_assert!(share > 0.85 * (1.0 - loss), "{} of the capacity at loss {}", share, loss);
    }
}
