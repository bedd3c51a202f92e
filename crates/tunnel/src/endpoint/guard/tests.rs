//! Shares of initiations.

use splitmix::SplitMix64;

use super::*;

const S: Duration = Duration::from_secs(1);
const MS: Duration = Duration::from_millis(1);

fn v4(number: u32) -> IpAddr {
    IpAddr::V4(number.into())
}

fn v6(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

#[test]
fn prefixes_are_those_of_a_host_and_a_site() {
    let ip = v6("2001:db8:1:2:3:4:5:6");
    assert_eq!(subnet_of(ip), v6("2001:db8:1:2::"));
    assert_eq!(block_of(ip), v6("2001:db8:1::"));
    for ip in [v6("192.0.2.1"), v6("::ffff:192.0.2.1")] {
        assert_eq!([subnet_of(ip), block_of(ip)], [v6("192.0.2.1"); 2]);
    }
}

/// Lets sources ask at random times, each with its own rate per second. Returns the turns of each.
fn turns(shares: &mut Shares, rates: &[u64], seconds: u32, seed: u64) -> Vec<u32> {
    let (mut random, mut turns) = (SplitMix64::new(seed), vec![0; rates.len()]);
    for ms in 0..seconds * 1000 {
        let now = 1000 * S + MS * ms;
        for (number, rate) in rates.iter().enumerate() {
            let source = v4(number as u32);
            if random.below(1000) < *rate && shares.visit(now, source) != Standing::Early {
                shares.pay(now, source);
                turns[number] += 1;
            }
        }
    }
    turns
}

#[test]
fn fast_sources_get_no_more_turns_than_slow_ones() {
    for seed in 0..4 {
        let rates: Vec<_> = (0..40)
            .map(|number| if number % 4 == 0 { 100 } else { 5 })
            .collect();
        // 24 turns per second are shared.
        let turns = turns(&mut Shares::new(30), &rates, 60, seed);
        let fair = 24 * 60 / 40;
        for (number, turns) in turns.iter().enumerate() {
            let expected = fair - fair / 4..=fair + BURST_AND_START;
            assert!(expected.contains(turns), "{number}: {turns}, seed {seed}");
        }
    }
}

/// Turns beyond the share: at once, and before all sources are known.
const BURST_AND_START: u32 = 24;

#[test]
fn a_source_that_was_quiet_is_new_again_and_others_are_not() {
    let mut shares = Shares::new(30);
    let mut now = 1000 * S;
    let (one, other) = (v4(1), v4(2));
    assert_eq!(shares.visit(now, one), Standing::New);
    assert_eq!(
        shares.visit(now, one),
        Standing::New,
        "nothing was admitted"
    );
    shares.pay(now, one);
    assert_eq!(shares.visit(now, one), Standing::Due);
    for _ in 0..60 {
        now += S;
        assert_eq!(shares.visit(now, one), Standing::Due);
        shares.pay(now, one);
    }
    assert_eq!(shares.visit(now, other), Standing::New);
    assert_eq!(shares.visit(now + 17 * S, one), Standing::New);
}

#[test]
fn the_number_of_sources_in_memory_is_bounded() {
    let (mut shares, now) = (Shares::new(30), 1000 * S);
    for number in 0..100_000 {
        assert_eq!(shares.visit(now, v4(number)), Standing::New);
        shares.pay(now, v4(number));
    }
    let all = (0..100_000).filter(|number| shares.visit(now, v4(*number)) != Standing::New);
    assert_eq!(all.count(), 4096);
    // A day later nothing is left of them.
    let now = now + 86_400 * S;
    for number in 0..4096 {
        assert_eq!(shares.visit(now, v4(100_000 + number)), Standing::New);
        shares.pay(now, v4(100_000 + number));
        shares.pay(now, v4(100_000 + number));
        shares.pay(now, v4(100_000 + number));
    }
    assert_eq!(shares.visit(now, v4(104_095)), Standing::Early);
}

#[test]
fn sources_of_peers_have_a_part_and_each_of_them_a_limit() {
    let limits = Limits {
        initiations_open: 1,
        ..Limits::default()
    };
    let mut guard = Guard::new(&limits, &[1; 32], 2);
    let (mut now, peer, same) = (1000 * S, v6("2001:db8::1"), v6("2001:db8::ffff:2"));
    guard.expect([peer].into_iter());
    let (mut random, mut of_peer) = (SplitMix64::new(3), 0);
    for _ in 0..20_000 {
        now += MS;
        // Anybody, and a host beside the peer.
        guard.admit_source(now, v4(random.below(1 << 32) as u32));
        of_peer += u32::from(guard.admit_source(now, same));
        if random.below(500) == 0 {
            guard.expect([peer, v4(7)].into_iter());
        }
    }
    assert!((100..=105).contains(&of_peer), "{of_peer} in 20 s");
    guard.expect([v4(7)].into_iter());
    now += 10 * S;
    assert!(guard.admit_source(now, v4(7)));
}
