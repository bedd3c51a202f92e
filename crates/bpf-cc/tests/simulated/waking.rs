//! Tests of the segments by which a connection finds out what an outage took.

use bpf_cc::Control;

use crate::program::Socket;

const OPEN: u32 = 0;
const LOSS: u32 = 4;
const CONTROLS: [Control; 2] = [Control::HyblaSat, Control::Steady];

/// Returns a socket at 10 Mbit/s with a full window in flight, `silent_us` after the last
/// acknowledgement.
fn silent(control: Control, rtt_us: u32, silent_us: u64) -> Socket {
    let mut socket = Socket::new(control, rtt_us, 1_250_000);
    for _ in 0..50 {
        let view = &mut socket.view;
        view.now_us += u64::from(rtt_us) / 4;
        view.delivered_at_us = view.now_us;
        view.in_flight = view.window;
        view.most_in_flight = view.window;
        view.prior_delivered = view.delivered;
        view.acked = 4;
        view.delivered += 4;
        view.interval_us = u64::from(rtt_us) / 4;
        socket.acknowledge();
    }
    let view = &mut socket.view;
    view.now_us += silent_us;
    view.in_flight = view.window;
    view.acked = 0;
    view.prior_delivered = view.delivered;
    // The sample contains the outage.
    view.rtt_us = silent_us as u32;
    socket
}

#[test]
fn an_answer_after_a_silence_lets_new_segments_go_once() {
    for control in CONTROLS {
        let mut socket = silent(control, 600_000, 5_000_000);
        let before = socket.view.window;
        socket.acknowledge();
        assert_eq!(socket.view.window, before + 4, "{control}");
        // The next acknowledgement acknowledges some of them.
        socket.view.delivered_at_us = socket.view.now_us;
        (socket.view.acked, socket.view.rtt_us) = (1, 600_000);
        socket.view.delivered += 1;
        socket.acknowledge();
        assert!(socket.view.window.abs_diff(before) <= 1, "{control}");
    }
}

#[test]
fn answers_that_acknowledge_nothing_let_no_more_than_a_second_window_go() {
    for (control, rtt_us) in CONTROLS
        .into_iter()
        .flat_map(|one| [(one, 1_000), (one, 600_000)])
    {
        let mut socket = silent(control, rtt_us, 5_000_000);
        let before = socket.view.window;
        for _ in 0..1000 {
            socket.view.in_flight = socket.view.window;
            socket.acknowledge();
        }
        assert!(socket.view.window <= 2 * before + 4, "{control}");
    }
}

#[test]
fn over_a_short_path_half_a_window_goes() {
    for control in CONTROLS {
        let mut socket = silent(control, 1_000, 200_000);
        let in_flight = socket.view.in_flight;
        socket.acknowledge();
        assert_eq!(
            socket.view.window,
            in_flight + 4 + in_flight / 2,
            "{control}"
        );
    }
}

#[test]
fn a_duplicate_while_acknowledgements_flow_lets_nothing_go() {
    for control in CONTROLS {
        let mut socket = silent(control, 600_000, 300_000);
        let before = socket.view.window;
        socket.view.rtt_us = 600_000;
        socket.acknowledge();
        assert!(socket.view.window <= before, "{control}");
    }
}

#[test]
fn a_timeout_that_is_taken_for_spurious_lets_new_segments_go() {
    for control in CONTROLS {
        let mut socket = silent(control, 600_000, 5_000_000);
        let before = socket.view.window;
        socket.enter(LOSS);
        socket.view.delivered_at_us = socket.view.now_us;
        (socket.view.acked, socket.view.in_flight) = (10, before - 10);
        socket.view.delivered += 10;
        socket.undo();
        socket.acknowledge();
        assert_eq!(socket.view.state, OPEN);
        assert!(socket.view.window >= before - 10 + 4, "{control}");
    }
}

#[test]
fn the_minimum_of_the_retransmission_timer_is_set_where_it_is_stated() {
    for control in [Control::HyblaSat, Control::Steady, Control::Hybla] {
        let stated = Socket::with_rto_min(control, 1_000, 50_000);
        assert_eq!(stated.view.rto_min_set_us, 50_000, "{control}");
        let other = Socket::new(control, 1_000, 0);
        assert_eq!(other.view.rto_min_set_us, 0, "{control}");
    }
}
