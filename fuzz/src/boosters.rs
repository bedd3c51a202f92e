//! Boosters under packets, messages and replies of all kinds, at any times.

use std::time::Duration;

use arbitrary::Arbitrary;
use boosters::{
    arq,
    booster::{Booster, Out},
    compress, data_filter, divacks, fec, jitter,
    packet::Packet,
    rule::{Path, Rule},
    snoop,
    stack::{Layer, Stack},
    udp_checksum,
    wire::Abilities,
};

use crate::shapes::{Bytes, Shape};

/// Settings in each booster's own format.
type Settings = [u16; 4];

/// Settings and a sequence of events.
#[derive(Arbitrary, Debug)]
pub struct Case {
    settings: Settings,
    /// A minimum of steps, as random bytes make short lists.
    first: [Step; 24],
    steps: Vec<Step>,
}

#[derive(Arbitrary, Debug)]
struct Step {
    /// Delay after the step before, in milliseconds or seconds.
    after: u8,
    seconds: bool,
    what: What,
}

#[derive(Arbitrary, Debug)]
enum What {
    /// A number of packets of a flow.
    Down(Shape, u8),
    Up(Shape),
    /// A message to a receiver: made up, or a sent one with a byte changed.
    Message {
        kind: u8,
        bytes: Bytes,
    },
    Again {
        back: u8,
        at: u8,
        byte: u8,
    },
    /// A reply to a sender.
    Reply {
        kind: u8,
        bytes: Bytes,
    },
    Path {
        loss: u8,
        able: bool,
        rtt: u16,
        room: u16,
    },
}

/// Boosters with two ends: a sender, and its receiver, which outputs the sender's input.
type Pair = fn(&Settings) -> (Box<dyn Booster>, Box<dyn Booster>);

const PAIRS: &[Pair] = &[
    |s| (Box::new(jitter_sender(s)), Box::new(jitter_receiver(s))),
    |s| {
        (
            Box::new(compress_sender(s)),
            Box::new(compress::Receiver::new()),
        )
    },
    |s| (Box::new(arq_sender(s)), Box::new(arq::Receiver::new())),
    |s| (Box::new(fec_sender(s)), Box::new(fec::Receiver::new(1500))),
];

/// Boosters with one end.
type Alone = fn(&Settings) -> Box<dyn Booster>;

const ALONE: &[Alone] = &[
    |_| Box::new(udp_checksum::UdpChecksum::new()),
    |_| Box::new(data_filter::DataFilter::new()),
    |s| {
        Box::new(snoop::Snoop::new(snoop::Config {
            cache: usize::from(s[0]) * 4,
            tries: s[1] as u8,
            flows_max: usize::from(s[2] % 5),
        }))
    },
    |s| {
        Box::new(divacks::DivAcks::new(divacks::Config {
            mode: [divacks::Mode::Controlled, divacks::Mode::BruteForce][usize::from(s[0] % 2)],
            parts: s[1] as u8,
            max_count: s[2].into(),
            flows_max: usize::from(s[3] % 5),
        }))
    },
];

fn arq_sender(settings: &Settings) -> arq::Sender {
    arq::Sender::new(arq::Config {
        tries: settings[0] as u8,
        order: settings[1].is_multiple_of(2),
        cache: settings[2].into(),
        wait: Duration::from_millis(settings[3].into()),
        seed: settings[0].into(),
    })
}

fn fec_sender(settings: &Settings) -> fec::Sender {
    let scheme = if settings[0].is_multiple_of(2) {
        let window = settings[1] as u8;
        fec::Scheme::Window { window }
    } else {
        fec::Scheme::Block {
            k: settings[1] as u8,
            depth: settings[2] as u8,
        }
    };
    fec::Sender::new(fec::Config {
        scheme,
        overhead_max: f64::from(settings[3] % 100) / 100.0,
        seed: settings[2].into(),
        ..fec::Config::default()
    })
}

fn jitter_sender(settings: &Settings) -> jitter::Sender {
    let delay = Duration::from_millis(settings[0].into());
    jitter::Sender::new(jitter::Config { delay })
}

fn jitter_receiver(settings: &Settings) -> jitter::Receiver {
    jitter::Receiver::new(usize::from(settings[1]) * 16)
}

fn compress_sender(settings: &Settings) -> compress::Sender {
    compress::Sender::new(compress::Config {
        // Higher levels only take longer.
        level: i32::from(settings[0] % 6),
        headers: settings[1] & 7 > 0,
        payload: settings[1] & 0x38 > 0,
        flows_max: usize::from(settings[2] % 5),
    })
}

/// Returns stacks of several boosters and their receivers. A stack's output goes to the link, so
/// receivers process it in the same order.
fn stacks(settings: &Settings) -> [Stack; 2] {
    let rule = Rule::ALWAYS;
    let near = vec![
        Layer::new(
            "compress",
            Abilities::COMPRESS,
            rule,
            compress_sender(settings),
        ),
        Layer::new("jitter", Abilities::JITTER, rule, jitter_sender(settings)),
    ];
    let far = vec![
        Layer::new("compress", 0, rule, compress::Receiver::new()),
        Layer::new("jitter", 0, rule, jitter_receiver(settings)),
    ];
    [near, far].map(Stack::new)
}

/// A booster, or a stack of several.
trait Any {
    fn down(&mut self, now: Duration, packet: Packet, out: &mut Out);
    fn up(&mut self, now: Duration, packet: Packet, out: &mut Out);
    fn on_time(&mut self, now: Duration, out: &mut Out);
    fn deadline(&self) -> Option<Duration>;
    fn set_path(&mut self, now: Duration, path: &Path);
}

macro_rules! any {
    ($($type:ty),*) => { $(
        impl Any for $type {
            fn down(&mut self, now: Duration, packet: Packet, out: &mut Out) {
                let before = out.down.len();
                (**self).down(now, packet, out);
                // A stack has no queue here.
                for packet in &out.down[before..] {
                    (**self).leaving(now, packet);
                }
            }
            fn up(&mut self, now: Duration, packet: Packet, out: &mut Out) {
                (**self).up(now, packet, out);
            }
            fn on_time(&mut self, now: Duration, out: &mut Out) {
                (**self).on_time(now, out);
            }
            fn deadline(&self) -> Option<Duration> {
                (**self).deadline()
            }
            fn set_path(&mut self, now: Duration, path: &Path) {
                (**self).set_path(now, path);
            }
        }
    )* };
}
any!(Box<dyn Booster>, Box<Stack>);

/// Calls `wake` until no deadline is due; fails if deadlines never end.
fn wake(any: &mut dyn Any, now: Duration, out: &mut Out) {
    for _ in 0..8 {
        if any.deadline().is_none_or(|at| at > now) {
            return;
        }
        any.on_time(now, out);
    }
    assert!(
        any.deadline().is_none_or(|at| at > now),
        "a deadline that stays"
    );
}

/// Checks that nothing panics, that no deadline stays due, and that packets pass a sender and its
/// receiver unchanged.
pub fn run(case: &Case) {
    for pair in PAIRS {
        let (mut near, mut far) = pair(&case.settings);
        hostile(case, &mut near, Some(&mut far));
        let (mut near, mut far) = pair(&case.settings);
        honest(case, &mut near, &mut far);
    }
    for make in ALONE {
        hostile(case, &mut make(&case.settings), None);
    }
    let [near, far] = stacks(&case.settings).map(Box::new);
    let (mut near, mut far) = (near, far);
    hostile(case, &mut near, Some(&mut far));
    let [near, far] = stacks(&case.settings).map(Box::new);
    let (mut near, mut far) = (near, far);
    honest(case, &mut near, &mut far);
}

fn later(now: Duration, step: &Step) -> Duration {
    let after = u64::from(step.after);
    let unit = if step.seconds { 1000 } else { 1 };
    now + Duration::from_millis(after * unit)
}

/// Feeds arbitrary input to both ends.
fn hostile(case: &Case, near: &mut dyn Any, mut far: Option<&mut dyn Any>) {
    let (mut now, mut out, mut sent) = (Duration::ZERO, Out::default(), Vec::new());
    for step in case.first.iter().chain(&case.steps).take(200) {
        now = later(now, step);
        wake(near, now, &mut out);
        let packet = |bytes| Packet::new(bytes, now);
        let mut message = None;
        match &step.what {
            What::Down(shape, count) => {
                for n in 0..u16::from(count % 12) {
                    near.down(now, packet(shape.bytes(n)), &mut out);
                }
            }
            What::Up(shape) => near.up(now, packet(shape.bytes(0)), &mut out),
            What::Reply { kind, bytes } => {
                near.up(
                    now,
                    packet([&[kind % 0x20], &bytes.0[..]].concat()),
                    &mut out,
                );
            }
            What::Message { kind, bytes } => {
                message = Some([&[kind % 0x20], &bytes.0[..]].concat());
            }
            What::Again { back, at, byte } => {
                let old: Option<&Packet> = sent.iter().rev().nth((*back).into());
                message = old.map(|old| old.bytes.clone());
                let at = message
                    .as_mut()
                    .and_then(|old| old.get_mut(usize::from(*at)));
                if let Some(at) = at {
                    *at = *byte;
                }
            }
            What::Path { .. } => near.set_path(now, &path(&step.what)),
        }
        out.up.clear();
        let fresh = std::mem::take(&mut out.down);
        if let Some(far) = far.as_deref_mut() {
            wake(far, now, &mut out);
            for message in message.map(packet).into_iter().chain(fresh.iter().cloned()) {
                far.up(now, message, &mut out);
            }
            wake(far, now, &mut out);
            for reply in std::mem::take(&mut out.down) {
                near.up(now, reply, &mut out);
            }
            out.up.clear();
        }
        sent.extend(fresh);
        wake(near, now, &mut out);
        sent.append(&mut out.down);
    }
}

fn path(what: &What) -> Path {
    let What::Path {
        loss,
        able,
        rtt,
        room,
    } = what
    else {
        return Path::default();
    };
    Path {
        loss: f64::from(*loss) / 255.0,
        abilities: if *able { Abilities::ALL } else { 0 },
        rtt: Duration::from_millis((*rtt).into()),
        room: (*room).into(),
        ..Path::default()
    }
}

/// Checks that packets and replies arrive at once and unchanged.
fn honest(case: &Case, near: &mut dyn Any, far: &mut dyn Any) {
    let able = Path {
        abilities: Abilities::ALL,
        ..Path::default()
    };
    near.set_path(Duration::ZERO, &able);
    far.set_path(Duration::ZERO, &able);
    let (mut now, mut expected, mut came) = (Duration::ZERO, Vec::new(), Vec::new());
    for step in case.first.iter().chain(&case.steps).take(200) {
        now = later(now, step);
        let mut out = Out::default();
        if let What::Down(shape, count) = &step.what {
            let packets = (0..u16::from(count % 12)).map(|n| shape.bytes(n));
            // A message that no sender wrote is no packet, and a receiver may parse it differently.
            for bytes in packets.filter(|bytes| boosters::ip::version(bytes).is_some()) {
                expected.push(bytes.clone());
                near.down(now, Packet::new(bytes, now), &mut out);
            }
        }
        exchange(near, far, now, out, &mut came);
    }
    for _ in 0..1000 {
        let deadlines = [near.deadline(), far.deadline()];
        let Some(at) = deadlines.into_iter().flatten().min() else {
            break;
        };
        now = now.max(at);
        exchange(near, far, now, Out::default(), &mut came);
    }
    expected.sort_unstable();
    came.sort_unstable();
    assert_eq!(came, expected);
}

fn exchange(
    near: &mut dyn Any,
    far: &mut dyn Any,
    now: Duration,
    mut out: Out,
    came: &mut Vec<Vec<u8>>,
) {
    wake(near, now, &mut out);
    for _ in 0..8 {
        assert!(out.up.is_empty(), "the sender's hosts receive no packet");
        let mut there = Out::default();
        for message in out.down.drain(..) {
            far.up(now, message, &mut there);
        }
        wake(far, now, &mut there);
        came.extend(there.up.drain(..).map(|packet| packet.bytes));
        for reply in there.down.drain(..) {
            near.up(now, reply, &mut out);
        }
        if out.down.is_empty() {
            return;
        }
    }
}
