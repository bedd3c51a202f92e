//! Hybla against its formulas (Caini and Firrincieli 2004).

use bpf_cc::Control;
use proptest::prelude::*;

use crate::program::Socket;

const RTT0_US: u32 = 25_000;

fn rho(rtt_us: u32) -> f64 {
    (f64::from(rtt_us) / f64::from(RTT0_US)).max(1.0)
}

/// Returns a newly connected socket that uses its whole window.
fn socket(rtt_us: u32) -> Socket {
    let mut socket = Socket::new(Control::Hybla, rtt_us, 0);
    socket.view.acked = 1;
    socket
}

fn acknowledge(socket: &mut Socket, times: u32) {
    for _ in 0..times {
        socket.view.most_in_flight = socket.view.window;
        socket.view.delivered += 1;
        socket.acknowledge();
    }
}

proptest! {
    #[test]
    fn the_initial_window_is_rho(rtt_us in 1_000u32..1_500_000) {
        let window = socket(rtt_us).view.window;
        prop_assert_eq!(window, (rtt_us / RTT0_US).max(1));
    }

    #[test]
    fn slow_start_adds_two_to_the_rho_less_one(rtt_us in 25_000u32..250_000, acks in 1u32..20) {
        let mut socket = socket(rtt_us);
        let before = socket.view.window;
        acknowledge(&mut socket, acks);
        let grown = f64::from(socket.view.window - before);
        // rho is known in eighths, and 2^(n/8) to 1/128.
        let minimum = f64::from(acks) * (0.99 * (rho(rtt_us) - 0.125).exp2() - 1.0) - 1.0;
        let most = f64::from(acks) * (1.01 * rho(rtt_us).exp2() - 1.0) + 1.0;
        prop_assert!((minimum..=most).contains(&grown), "{} not in {}..{}", grown, minimum, most);
    }

    #[test]
    fn congestion_avoidance_adds_rho_squared_in_a_round_trip(
        rtt_us in 50_000u32..800_000,
        rounds in 1u32..8,
    ) {
        let mut socket = socket(rtt_us);
        let squared = rho(rtt_us).powi(2);
        socket.view.window = 10 + squared as u32;
        socket.view.threshold = 5;
        let before = socket.view.window;
        for _ in 0..rounds {
            let window = socket.view.window;
            acknowledge(&mut socket, window);
        }
        let slope = f64::from(socket.view.window - before) / f64::from(rounds);
        // W grows while its own segments are acknowledged, and 1/128 is the smallest part.
        prop_assert!((0.6 * squared - 1.0..=squared + 1.0).contains(&slope), "{} for {}", slope, squared);
    }

    #[test]
    fn rtt0_scales_rho(rtt_us in 25_000u32..800_000, rtt0_us in 5_000u32..100_000) {
        let socket = Socket::with_rtt0(Control::Hybla, rtt_us, rtt0_us);
        prop_assert_eq!(socket.view.window, (rtt_us / rtt0_us).max(1));
    }
}

#[test]
fn recovery_grows_as_reno_does() {
    let mut socket = socket(500_000);
    socket.view.window = 100;
    socket.view.threshold = 50;
    socket.enter(3);
    socket.view.state = 0;
    acknowledge(&mut socket, 100);
    assert_eq!(socket.view.window, 101);
}
