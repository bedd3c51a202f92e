//! Two ends with all boosters on, in virtual time, over a link that loses, reorders and duplicates
//! messages. Its MTU changes, and its sessions end. A run is determined by its seed;
//! `BOOSTERS_TEST_SEED` repeats one.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use boosters::{
    chain::Chain,
    ecn::Ecn,
    exchange::Exchange,
    fec::{Backend, Scheme},
    rule::{Path, Rule},
    settings::{self, Boosted, Settings},
    wire::PIECE,
};
use etherparse::PacketBuilder;
use splitmix::SplitMix64;

fn ms(time: u64) -> Duration {
    Duration::from_millis(time)
}

/// Time for which a test sends, and until which it waits for packets in flight (ms).
const SENDING: u64 = 8000;
const END: u64 = SENDING + 6000;
/// Bytes kept for retransmission.
const CACHE: usize = 256 << 10;

fn chain(seed: u64, scheme: Scheme, code: Backend) -> Chain {
    fn on<T>(config: T) -> Option<Boosted<T>> {
        let rule = Rule::ALWAYS;
        Some(Boosted { rule, config })
    }
    settings::chain(&Settings {
        queue: 4 << 20,
        deadline: Duration::from_secs(2),
        seed,
        checksum: on(()),
        data_filter: on(()),
        snoop: on(Default::default()),
        divacks: on(Default::default()),
        ack_filter: on(Default::default()),
        congestion: on(Default::default()),
        ack_reconstruction: on(Default::default()),
        jitter: on(Default::default()),
        compress: on(Default::default()),
        arq: on(boosters::arq::Config {
            cache: CACHE,
            ..Default::default()
        }),
        fec: on(boosters::fec::Config {
            scheme,
            code,
            ..Default::default()
        }),
    })
}

/// Returns a datagram of one of six flows whose payload is its number and incompressible random
/// bytes.
fn packet(draws: &mut SplitMix64, number: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    let flow = draws.below(6) as u16;
    let len = match draws.below(40) {
        0 => 1200 + draws.below(1600),
        1..10 => draws.below(1000),
        _ => draws.below(200),
    };
    let mut payload = (number ^ 0x5bd1_e995_97f4_a7c5).to_be_bytes().to_vec();
    payload.extend(draws.bytes(len as usize));
    let port = 5000 + flow;
    let written = if flow.is_multiple_of(2) {
        let builder = PacketBuilder::ipv4([10, 0, 0, 1], [10, 9, 0, 2], 64);
        builder.udp(port, 80).write(&mut bytes, &payload)
    } else {
        let builder = PacketBuilder::ipv6([0xfd; 16], [0xfe; 16], 64);
        builder.udp(port, 80).write(&mut bytes, &payload)
    };
    written.expect("fits");
    bytes
}

/// One direction of the link.
#[derive(Default)]
struct LinkDirection {
    flying: BTreeMap<(Duration, u64), (Vec<u8>, Ecn)>,
    counts: [u64; 3],
    was_lost: bool,
    sent: u64,
}

struct Run {
    draws: SplitMix64,
    loss: f64,
    /// Near and far end, and the paths from them.
    ends: [Exchange; 2],
    directions: [LinkDirection; 2],
    room: usize,
    /// Packets sent but not received, by number; true if a message that has arrived contained the
    /// whole packet.
    sent: BTreeMap<u64, (Vec<u8>, bool)>,
    /// Packets of earlier sessions that have not come.
    before: BTreeMap<u64, Vec<u8>>,
    /// Received packets.
    came: BTreeSet<u64>,
    /// True if all packets pass boosters that suppress duplicates.
    numbers: u64,
}

impl Run {
    fn new(seed: u64) -> Self {
        let mut draws = SplitMix64::new(seed);
        let scheme = match draws.below(3) {
            0 => Scheme::Block { k: 10, depth: 2 },
            _ => Scheme::Window { window: 32 },
        };
        let end = |number: u64, code: Backend| {
            Exchange::new(vec![chain(seed ^ number, scheme, code)]).with_code(code)
        };
        Self {
            loss: [0.0, 0.01, 0.05, 0.2][draws.below(4) as usize],
            draws,
            ends: [end(1, Backend::default()), end(2, Backend::Reference)],
            directions: Default::default(),
            room: 1200,
            sent: BTreeMap::new(),
            before: BTreeMap::new(),
            came: BTreeSet::new(),
            numbers: 0,
        }
    }

    /// Returns whether both ends know the abilities of the other.
    fn is_introduced(&self) -> bool {
        self.ends.iter().all(|end| end.abilities().is_some())
    }

    /// Delivers the messages of `from` that have arrived.
    fn deliver(&mut self, now: Duration, from: usize) {
        let site = &mut |_: &[u8]| Some(0);
        while let Some(entry) = self.directions[from].flying.first_entry()
            && entry.key().0 <= now
        {
            let (message, ecn) = entry.remove();
            self.ends[1 - from].handle(now, message[0], &message[1..], ecn, site);
            if from == 0 {
                self.note_arrival(&message);
            }
        }
        self.ends[1 - from].on_time(now, site);
    }

    /// Notes the packets that are complete in a message. Pieces are ignored.
    fn note_arrival(&mut self, message: &[u8]) {
        if message[1] == PIECE || message[0] >= 64 {
            return;
        }
        for (bytes, has_come) in self.sent.values_mut().filter(|(_, come)| !come) {
            // All of its payload, which is not compressed, at the message's end.
            let payload = &bytes[if bytes[0] == 0x45 { 28 } else { 48 }..];
            *has_come |= message.ends_with(payload);
        }
    }

    /// Puts the messages of an end onto the link.
    fn speak(&mut self, now: Duration, from: usize) {
        let room = self.room + 1;
        let doubles = self.is_introduced();
        loop {
            let (end, mut message) = (&mut self.ends[from], Vec::new());
            let mut ecn = Some(Ecn::Ect0).filter(|_| end.poll_word(now, room, &mut message));
            if ecn.is_none() {
                ecn = end.poll_message(now, 0, room, &mut message);
            }
            let Some(ecn) = ecn else { return };
            assert!(message.len() <= room);
            let direction = &mut self.directions[from];
            let lost = self.draws.chance(self.loss);
            direction.counts[0] += 1;
            direction.counts[1] += u64::from(lost);
            direction.counts[2] += u64::from(lost && !direction.was_lost);
            direction.was_lost = lost;
            let twice = doubles && self.draws.below(50) == 0;
            for _ in 0..if lost { 0 } else { 1 + u32::from(twice) } {
                direction.sent += 1;
                let late = if self.draws.below(20) == 0 { 60 } else { 8 };
                let at = now + ms(30 + self.draws.below(late));
                direction
                    .flying
                    .insert((at, direction.sent), (message.clone(), ecn));
            }
        }
    }

    /// Checks that each packet at the far end entered at the near end, unchanged and earlier.
    fn take(&mut self) {
        while let Some((_, packet)) = self.ends[1].poll_host() {
            let at = if packet.bytes[0] == 0x45 { 28 } else { 48 };
            let number: [u8; 8] = packet.bytes[at..at + 8].try_into().expect("eight");
            let number = u64::from_be_bytes(number) ^ 0x5bd1_e995_97f4_a7c5;
            assert!(self.came.insert(number), "{number} came twice");
            let sent = self.sent.remove(&number).map(|(bytes, _)| bytes);
            let sent = sent.or_else(|| self.before.remove(&number));
            let bytes = sent.expect("a packet that was sent");
            assert_eq!(packet.bytes, bytes, "{number}");
        }
        assert!(self.ends[0].poll_host().is_none());
    }

    fn set_path(&mut self, now: Duration) {
        for (end, direction) in self.ends.iter_mut().zip(&self.directions) {
            let path = Path {
                loss: direction.counts[1] as f64 / direction.counts[0].max(1) as f64,
                counts: direction.counts,
                rate: 10_000_000,
                rtt: ms(80),
                room: self.room,
                ..Path::default()
            };
            end.set_path(now, &path);
        }
    }

    /// Ends a session and begins another, possibly with another process at the far end.
    fn renew(&mut self, seed: u64) {
        for direction in &mut self.directions {
            *direction = LinkDirection::default();
        }
        // Messages in flight are lost; packets held back for hosts may still come.
        let sent = std::mem::take(&mut self.sent).into_iter();
        let sent = sent.map(|(number, (bytes, _))| (number, bytes));
        self.before.extend(sent);
        self.ends[0].renew();
        if self.draws.below(2) == 0 {
            let scheme = Scheme::Window { window: 32 };
            let chain = chain(seed ^ 77, scheme, Backend::default());
            self.ends[1] = Exchange::new(vec![chain]);
        } else {
            self.ends[1].renew();
        }
    }

    fn check_bounds(&self, now: Duration) {
        let mut sums: BTreeMap<(&str, &str), u64> = BTreeMap::new();
        let mut add = |booster, name, count| *sums.entry((booster, name)).or_default() += count;
        for end in &self.ends {
            assert!(end.chains()[0].queued(now).0 <= 4 << 20);
            end.chains()[0].counters(&mut add);
            assert!(end.receivers().count() <= 1);
            end.receivers()
                .for_each(|(_, receiver)| receiver.counters(&mut add));
        }
        assert!(sums[&("arq", "kept_bytes")] <= 2 * CACHE as u64);
        let held = sums.get(&("jitter", "held")).copied().unwrap_or_default();
        assert!(
            held <= 60,
            "{held} with a path of 90 ms and a delay of 60 ms"
        );
    }

    fn run(&mut self, seed: u64) {
        let renewed: Vec<u64> = (0..2).map(|_| 1000 + self.draws.below(6000)).collect();
        for step in 0..END {
            let now = ms(step);
            if step % 20 == 0 {
                self.set_path(now);
            }
            if step % 1000 == 999 {
                let rooms = [1200, 700, 1400, 4000, 8945];
                self.room = rooms[self.draws.below(5) as usize];
                self.set_path(now);
                self.check_bounds(now);
            }
            if renewed.contains(&step) {
                self.renew(seed + step);
            }
            if step < SENDING && step % 3 == 0 {
                let packet = packet(&mut self.draws, self.numbers);
                self.ends[0].from_host(now, 0, &packet);
                self.sent.insert(self.numbers, (packet, false));
                self.numbers += 1;
            }
            for from in [0, 1] {
                self.deliver(now, from);
                let site = &mut |_: &[u8]| Some(0);
                self.ends[from].on_time(now, site);
                self.speak(now, from);
            }
            self.take();
        }
        let mut work: BTreeMap<(&str, &str), u64> = BTreeMap::new();
        let mut add = |booster, name, count| *work.entry((booster, name)).or_default() += count;
        for (_, receiver) in self.ends[1].receivers() {
            receiver.counters(&mut add);
        }
        println!(
            "seed {seed}: loss {}, {} of {} came, {:?} restored, {:?} retransmitted, {:?} rebuilt",
            self.loss,
            self.came.len(),
            self.numbers,
            work[&("fec", "restored")],
            work[&("arq", "repaired")],
            work[&("compress", "rebuilt")],
        );
        assert!(work[&("fec", "restored")] > 0 || self.loss < 0.01);
        assert!(work[&("compress", "rebuilt")] > 100);
        let lost = self.sent.iter().filter(|(_, (_, has_come))| *has_come);
        let lost: Vec<_> = lost.map(|(number, _)| *number).collect();
        assert_eq!(lost, [0; 0], "arrived, but were not delivered");
        // Twice the loss that remains after one retransmission.
        let most = (self.numbers as f64 * self.loss * self.loss * 2.0) as usize + 3;
        assert!(self.sent.len() <= most, "{} of {most}", self.sent.len());
    }
}

#[test]
fn packets_come_once_and_as_they_were_whatever_happens_on_the_link() {
    let chosen = std::env::var("BOOSTERS_TEST_SEED").ok();
    let chosen = chosen.map(|seed| seed.parse().expect("a number"));
    for seed in chosen.map_or(1..=24, |seed: u64| seed..=seed) {
        Run::new(seed).run(seed);
    }
}
