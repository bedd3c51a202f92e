use std::{collections::BTreeSet, net::SocketAddr, time::Duration};

use proptest::prelude::*;

use super::{window::WINDOW, *};

/// RFC 7748, section 5.2: after one iteration.
#[test]
fn public_keys_are_those_of_x25519() {
    let mut private = [0; 32];
    private[0] = 9;
    let public = "422c8e7a6227d7bca1350b3e2bb7279f7897b87bb6854b783c60e80311ae3079";
    let hex: String = public_key(&private)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    assert_eq!(hex, public);
}

struct Pair {
    ours: Keys,
    theirs: Keys,
}

/// Returns the keys of a handshake, with each message damaged in transit.
fn handshake(psks: [Key; 2], damage: impl Fn(usize, &mut Vec<u8>)) -> Result<Pair, &'static str> {
    let (one, two) = (Identity::new([1; 32]), Identity::new([2; 32]));
    let (mut first, mut payload) = (Vec::new(), [0; 5]);
    let begun = Initiating::begin(&one, &two.public, &psks[0], [3; 32], b"hello", &mut first);
    let mut begun = begun.unwrap();
    assert_eq!(first.len(), 5 + INITIATION_OVERHEAD);
    damage(0, &mut first);
    let read = Responding::read(&two, [4; 32], &first, &mut payload).map_err(|_| "first")?;
    assert_eq!((read.peer, &payload), (one.public, b"hello"));
    let mut second = Vec::new();
    let theirs = read.answer(&psks[1], b"world", &mut second).unwrap();
    assert_eq!(second.len(), 5 + RESPONSE_OVERHEAD);
    damage(1, &mut second);
    let ours = begun.finish(&second, &mut payload).map_err(|_| "second")?;
    assert_eq!(&payload, b"world");
    assert_eq!(ours.name, theirs.name);
    Ok(Pair { ours, theirs })
}

fn keys() -> Pair {
    handshake([[9; 32]; 2], |_, _| {}).unwrap()
}

#[test]
fn both_ends_come_to_the_same_keys() {
    let Pair { ours, theirs } = keys();
    for (sealer, opener, other) in [(&ours, &theirs, &ours), (&theirs, &ours, &theirs)] {
        let mut datagram = b"....headpacket".to_vec();
        sealer.seal(7, 4, 4, &mut datagram);
        assert_eq!(datagram.len(), 14 + TAG_LEN);
        let sealed = &mut datagram[4..];
        assert!(other.open(7, 4, &mut sealed.to_vec()).is_err(), "reflected");
        assert!(
            opener.open(8, 4, &mut sealed.to_vec()).is_err(),
            "another number"
        );
        assert_eq!(opener.open(7, 4, sealed).unwrap(), b"packet");
    }
}

#[test]
fn no_bit_of_a_sealed_packet_can_be_changed_and_no_byte_cut() {
    let Pair { ours, theirs } = keys();
    let mut datagram = b"headpacket".to_vec();
    ours.seal(1, 0, 4, &mut datagram);
    for bit in 0..datagram.len() * 8 {
        let mut changed = datagram.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        assert!(theirs.open(1, 4, &mut changed).is_err(), "bit {bit}");
    }
    for length in 0..datagram.len() {
        let mut cut = datagram[..length].to_vec();
        assert!(theirs.open(1, 4, &mut cut).is_err(), "{length}");
    }
}

#[test]
fn confirmations_are_the_other_sides_only() {
    let Pair { ours, theirs } = keys();
    let mut confirmation = b"head".to_vec();
    ours.confirm(0, 4, &mut confirmation);
    assert!(!ours.is_confirmation(4, &mut confirmation.clone()));
    assert!(theirs.is_confirmation(4, &mut confirmation.clone()));
    confirmation[0] ^= 1;
    assert!(!theirs.is_confirmation(4, &mut confirmation));
}

#[test]
fn no_bit_of_the_handshake_can_be_changed() {
    let lengths = [5 + INITIATION_OVERHEAD, 5 + RESPONSE_OVERHEAD];
    for (message, length) in lengths.into_iter().enumerate() {
        for byte in 0..length {
            let bit = 1 << (byte % 8);
            let damage = |which: usize, bytes: &mut Vec<u8>| {
                if which == message {
                    bytes[byte] ^= bit;
                }
            };
            let expected = ["first", "second"][message];
            // The highest bit of a point does not count (RFC 7748, section 5), but it is hashed.
            assert_eq!(
                handshake([[9; 32]; 2], damage).err(),
                Some(expected),
                "{byte}"
            );
        }
    }
}

#[test]
fn without_the_same_psk_there_are_no_keys() {
    let unlike = handshake([[9; 32], [8; 32]], |_, _| {});
    assert_eq!(unlike.err(), Some("second"));
}

#[test]
fn an_initiation_for_another_key_is_not_read() {
    let (one, two, three) = (
        Identity::new([1; 32]),
        Identity::new([2; 32]),
        Identity::new([3; 32]),
    );
    let mut first = Vec::new();
    let (psk, seed) = ([0; 32], [3; 32]);
    Initiating::begin(&one, &two.public, &psk, seed, &[], &mut first).unwrap();
    assert!(Responding::read(&three, [4; 32], &first, &mut []).is_err());
    assert!(Responding::read(&two, [4; 32], &first, &mut []).is_ok());
}

#[test]
fn randomness_comes_from_the_seed() {
    let (one, two) = (Identity::new([1; 32]), Identity::new([2; 32]));
    let begin = |seed: u8| {
        let mut out = Vec::new();
        Initiating::begin(&one, &two.public, &[0; 32], [seed; 32], &[], &mut out).unwrap();
        out
    };
    assert_eq!(begin(5), begin(5));
    assert_ne!(begin(5)[..32], begin(6)[..32]);
}

#[test]
fn cookies_are_bound_to_an_address_and_a_time() {
    let jar = CookieJar::new(&[5; 32]);
    let at: SocketAddr = "192.0.2.1:7".parse().unwrap();
    let elsewhere: [SocketAddr; 3] =
        ["192.0.2.2:7", "192.0.2.1:8", "[::1]:7"].map(|at| at.parse().unwrap());
    let seconds = Duration::from_secs;
    let cookie = jar.bake(seconds(1000), at);
    let mac = MacKey::new(&cookie).mac(b"message");
    let good = |now, from, message: &[u8]| jar.is_ours(seconds(now), from, message, &mac);
    assert!(good(1000, at, b"message") && good(1100, at, b"message"));
    assert!(!good(1240, at, b"message") && !good(1000, at, b"Message"));
    assert!(elsewhere.iter().all(|from| !good(1000, *from, b"message")));
    assert!(!CookieJar::new(&[6; 32]).is_ours(seconds(1000), at, b"message", &mac));
}

#[test]
fn a_sealed_cookie_is_for_one_initiation() {
    let key = CookieKey::of_responder(&[1; 32]);
    let (mac1, cookie, mut sealed) = ([2; 16], [3; 16], Vec::new());
    key.seal([4; 12], &mac1, cookie, &mut sealed);
    assert_eq!(sealed.len(), SEALED_COOKIE_LEN);
    assert_eq!(key.open(&mac1, &mut sealed.clone()), Ok(cookie));
    assert!(key.open(&[0; 16], &mut sealed.clone()).is_err());
    let other = CookieKey::of_responder(&[2; 32]);
    assert!(other.open(&mac1, &mut sealed.clone()).is_err());
    sealed[20] ^= 1;
    assert!(key.open(&mac1, &mut sealed).is_err());
    assert!(key.open(&mac1, &mut sealed[..11]).is_err());
}

proptest! {
    /// Compared with a set of all numbers that ever came.
    #[test]
    fn the_window_takes_each_number_once(
        start in prop_oneof![Just(0u64), 0..5000u64, Just(u64::from(u32::MAX) - 900)],
        steps in proptest::collection::vec((-2100i64..300, any::<bool>(), 0..40u8), 1..400),
    ) {
        let (mut window, mut seen) = (Window::default(), BTreeSet::new());
        let mut highest = start;
        for (step, jump, far) in steps {
            let far = if jump && far == 0 { 5000 } else { 0 };
            let number = highest.saturating_add_signed(step + far);
            let next = seen.last().map_or(0, |last| last + 1);
            let new = !seen.contains(&number) && (number >= next || next - number <= WINDOW);
            prop_assert_eq!(window.is_new(number), new, "{} of {}", number, next);
            if new {
                prop_assert_eq!(window.insert(number), number >= next);
                seen.insert(number);
                highest = highest.max(number);
            }
            prop_assert_eq!(window.next(), seen.last().map_or(0, |last| last + 1));
        }
    }
}
