use super::*;

const BYTES: u64 = 1468;
const SECOND: Duration = Duration::from_secs(1);

/// Sends for a second whenever the pacer permits, asked `late` after each deadline; returns the
/// send times.
fn run(rate: u64, late: Duration) -> Vec<Duration> {
    let mut pacer = Pacer::new(rate, Batch::default());
    let (mut now, mut left) = (Duration::ZERO, Vec::new());
    while now < SECOND {
        if pacer.may_send(now) {
            pacer.on_sent(now, BYTES);
            left.push(now);
        } else {
            now = pacer.deadline() + late;
        }
    }
    left
}

#[test]
fn the_rate_is_kept_however_late_it_is_asked_within_a_millisecond() {
    for rate in [500_000, 2_000_000, 10_000_000, 100_000_000, 1_000_000_000] {
        for late_us in [0, 100, 900] {
            let left = run(rate, Duration::from_micros(late_us));
            let bits = (left.len() as u64 * BYTES * 8) as f64;
            let most = rate as f64 * 1.003 + 20.0 * BYTES as f64 * 8.0;
            assert!(
                bits > 0.995 * rate as f64 && bits < most,
                "{rate} {late_us}: {bits}"
            );
        }
    }
}

#[test]
fn over_a_long_path_more_may_be_caught_up() {
    let ms = Duration::from_millis;
    let late = |rtt| Batch::for_path(rtt, false).late;
    assert_eq!(
        [late(ms(1)), late(ms(256)), late(ms(5000))],
        [ms(1), ms(2), ms(5)]
    );
    // Repeated wake-ups 4 ms late reduce the rate at 20 ms, but not at 600 ms.
    for (rtt, kept) in [(ms(600), true), (ms(20), false)] {
        let mut pacer = Pacer::new(10_000_000, Batch::for_path(rtt, false));
        let (mut now, mut bytes) = (Duration::ZERO, 0);
        while now < SECOND {
            if pacer.may_send(now) {
                pacer.on_sent(now, BYTES);
                bytes += BYTES;
            } else {
                now = pacer.deadline() + ms(4);
            }
        }
        // The last batch may not be complete.
        assert_eq!(bytes * 8 > 9_850_000, kept, "{bytes} bytes at {rtt:?}");
    }
}

#[test]
fn over_a_long_path_batches_are_longer_and_urgent_packets_wait_for_none() {
    let ms = Duration::from_millis;
    let single = time_of(BYTES, 10_000_000);
    for (rtt, batch) in [(ms(5), 1), (ms(40), 2), (ms(600), 4)] {
        let mut pacer = Pacer::new(10_000_000, Batch::default());
        pacer.set_batch(Batch::for_path(rtt, false));
        let (mut now, mut wakes, mut sent) = (Duration::ZERO, 0, 0);
        while now < SECOND {
            if pacer.may_send(now) {
                pacer.on_sent(now, BYTES);
                sent += 1;
            } else {
                assert!(pacer.next() <= now + single, "an urgent packet may leave");
                now = pacer.deadline();
                wakes += 1;
            }
        }
        assert_eq!(
            (f64::from(sent) / f64::from(wakes)).round(),
            f64::from(batch),
            "{rtt:?}"
        );
    }
}

/// Packets that stand in the queue once batches are short would delay urgent ones for as long as
/// others fill the link.
#[test]
fn the_queue_of_long_batches_drains_when_they_become_short() {
    let rate = 10_000_000;
    let long = Batch::for_path(Duration::from_millis(600), true);
    let short = long.within(Duration::ZERO);
    let mut pacer = Pacer::new(rate, long);
    // The link is busy until then.
    let (mut now, mut busy) = (SECOND, SECOND);
    let mut carried = 0;
    let mut run = |pacer: &mut Pacer, until: Duration| {
        let mut most = Duration::ZERO;
        while now < until {
            if pacer.may_send(now) {
                pacer.on_sent(now, BYTES);
                carried += 1;
                busy = busy.max(now) + time_of(BYTES, rate);
                most = most.max(busy - now);
            } else {
                now = pacer.deadline();
            }
        }
        (most, carried)
    };
    let (most, _) = run(&mut pacer, SECOND * 2);
    assert!(most > long.time, "{most:?}");
    for second in (2..20).step_by(2) {
        pacer.set_batch(short);
        run(&mut pacer, SECOND * second + SECOND / 10);
        let (most, _) = run(&mut pacer, SECOND * (second + 1));
        let packet = time_of(BYTES, rate);
        assert!(most <= short.late + packet * 2, "{most:?}");
        pacer.set_batch(long);
        run(&mut pacer, SECOND * (second + 2));
    }
    let (_, carried) = run(&mut pacer, SECOND * 21);
    let expected = rate * 20 / (8 * BYTES);
    assert!(carried >= expected, "{carried} of {expected}");
}

#[test]
fn no_span_carries_more_than_the_rate_a_batch_and_what_was_late() {
    for rate in [2_000_000, 20_000_000, 300_000_000] {
        let left = run(rate, Duration::from_micros(700));
        let batch = time_of(16 * BYTES, rate).min(Duration::from_millis(1));
        for (i, from) in left.iter().enumerate() {
            for (n, to) in left[i..].iter().enumerate().take(200) {
                let due = time_of(n as u64 * BYTES, rate);
                assert!(
                    due <= *to - *from + 2 * batch + LATE_MIN,
                    "{rate}: {n} packets from {from:?}"
                );
            }
        }
    }
}

#[test]
fn slow_links_have_no_batches() {
    let left = run(10_000_000, Duration::ZERO);
    let spacing = time_of(BYTES, 10_000_000);
    assert!(left.windows(2).all(|pair| pair[1] - pair[0] >= spacing));
}

#[test]
fn fast_links_wake_once_a_batch() {
    let left = run(1_000_000_000, Duration::ZERO);
    let wakes = 1 + left.windows(2).filter(|pair| pair[0] != pair[1]).count();
    assert!(wakes * 12 < left.len(), "{wakes} for {}", left.len());
}

#[test]
fn after_idle_one_packet_leaves_at_once_and_no_flood_follows() {
    let mut pacer = Pacer::new(10_000_000, Batch::default());
    pacer.on_sent(Duration::ZERO, BYTES);
    let mut burst = 0;
    while pacer.may_send(SECOND) {
        pacer.on_sent(SECOND, BYTES);
        burst += 1;
    }
    assert!((1..=2).contains(&burst), "{burst}");
}

#[test]
fn a_new_rate_holds_for_what_is_still_to_be_waited() {
    let mut pacer = Pacer::new(1, Batch::default());
    pacer.on_sent(Duration::ZERO, BYTES);
    assert!(pacer.deadline() > 10_000 * SECOND);
    pacer.set_rate(Duration::ZERO, 10_000_000);
    assert!(pacer.deadline() < Duration::from_millis(2));
    pacer.set_rate(Duration::ZERO, 0);
    assert_eq!(pacer.rate(), 1);
    assert!(!pacer.may_send(SECOND));
}

#[test]
fn absurd_values_do_not_overflow() {
    let mut pacer = Pacer::new(u64::MAX, Batch::default());
    pacer.on_sent(Duration::MAX, u64::MAX);
    pacer.set_rate(Duration::ZERO, 1);
    pacer.on_sent(Duration::ZERO, u64::MAX);
    assert!(!pacer.may_send(SECOND));
}

#[test]
fn batches_are_long_only_while_nothing_is_lost() {
    let ms = Duration::from_millis;
    let time = |rtt, calm| Batch::for_path(rtt, calm).time;
    assert_eq!([time(ms(1), true), time(ms(600), false)], [ms(1), ms(1)]);
    assert_eq!([time(ms(40), true), time(ms(600), true)], [ms(2), ms(16)]);
    let long = Batch::for_path(ms(600), true);
    let within = |most| [long.within(most).time, long.within(most).time_of_few];
    assert_eq!(within(ms(0)), [ms(1), ms(0)], "beside interactive streams");
    assert_eq!(within(ms(2)), [ms(2); 2]);
    assert_eq!(long.within(ms(20)), long);
    let mut calm = Calm::new(SECOND);
    assert!(!calm.is_calm(SECOND) && calm.is_calm(2 * SECOND));
    calm.on_loss(10 * SECOND);
    assert!(!calm.is_calm(13 * SECOND) && calm.is_calm(14 * SECOND));
    // Losses in between do not make it longer: batches were not their cause.
    for second in 10..20 {
        calm.on_loss(second * SECOND);
    }
    assert!(calm.is_calm(23 * SECOND));
    for round in 1..10 {
        calm.on_loss(round * 10_000 * SECOND);
    }
    assert!(calm.is_calm(90_600 * SECOND) && !calm.is_calm(90_599 * SECOND));
}
