use std::collections::HashMap;

use etherparse::PacketBuilder;
use proptest::prelude::*;

use super::*;

const LEASE: Duration = Duration::from_secs(35);
const ROUTER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 1, 0, 1));

fn config() -> HolderConfig {
    HolderConfig::new(8, 4, 3, LEASE)
}

fn flow(client: u8, port: u16, server: u8) -> FlowTuple {
    FlowTuple {
        client: ([10, 1, 0, client], port).into(),
        destination: ([10, 2, 0, server], 80).into(),
    }
}

fn syn(flow: FlowTuple, sequence: u32) -> Vec<u8> {
    let (IpAddr::V4(client), IpAddr::V4(server)) = (flow.client.ip(), flow.destination.ip()) else {
        panic!("IPv4 only");
    };
    let segment = PacketBuilder::ipv4(client.octets(), server.octets(), 63)
        .tcp(
            flow.client.port(),
            flow.destination.port(),
            sequence,
            64_240,
        )
        .syn();
    let mut packet = Vec::new();
    segment.write(&mut packet, &[]).expect("a packet");
    packet
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn actions(holder: &mut Holder) -> Vec<Action> {
    std::iter::from_fn(|| holder.poll_action()).collect()
}

/// Kinds of the actions, without their contents.
fn kinds(holder: &mut Holder) -> Vec<&'static str> {
    let kind = |action: Action| match action {
        Action::Connect { .. } => "connect",
        Action::Release { .. } => "release",
        Action::Pass { .. } => "pass",
        Action::Answer { .. } => "answer",
        Action::Abort { .. } => "abort",
    };
    actions(holder).into_iter().map(kind).collect()
}

/// State of a flow.
#[derive(Debug, Clone, Copy, PartialEq)]
enum State {
    Unknown,
    Connecting,
    Released,
    Taken,
    Passed,
}

const FLOW_PORT: u16 = 40_000;

fn subject() -> FlowTuple {
    flow(2, FLOW_PORT, 2)
}

/// Returns a holder whose subject is in this state at time zero, with no actions left.
fn holder_in(state: State) -> Holder {
    let mut holder = Holder::new(config());
    let (now, subject) = (Duration::ZERO, subject());
    if state != State::Unknown {
        holder.handle_packet(&syn(subject, 1), 0, now);
    }
    match state {
        State::Unknown | State::Connecting => {}
        State::Released => assert!(holder.handle_connected(subject, now)),
        State::Taken => {
            holder.handle_connected(subject, now);
            holder.take(&subject, now).expect("released");
        }
        State::Passed => holder.handle_failed(subject, Failure::Ours, now),
    }
    actions(&mut holder);
    holder
}

fn state_of(holder: &Holder) -> State {
    let subject = subject();
    match holder.held.get(&subject) {
        Some(held) if held.released => State::Released,
        Some(_) => State::Connecting,
        None if holder.passed.get(&subject).is_some() => State::Passed,
        None if holder.taken.get(&subject).is_some() => State::Taken,
        None => State::Unknown,
    }
}

#[derive(Debug, Clone, Copy)]
enum Input {
    Syn,
    OtherSyn,
    Connected,
    Failed(Failure),
    Take,
    Time(u64),
}

impl Input {
    fn give(self, holder: &mut Holder) {
        let (now, subject) = (seconds(1), subject());
        match self {
            Self::Syn => holder.handle_packet(&syn(subject, 1), 0, now),
            Self::OtherSyn => holder.handle_packet(&syn(subject, 99), 0, now),
            Self::Connected => drop(holder.handle_connected(subject, now)),
            Self::Failed(failure) => holder.handle_failed(subject, failure, now),
            Self::Take => drop(holder.take(&subject, now)),
            Self::Time(at) => holder.handle_timeout(seconds(at)),
        }
    }
}

#[test]
fn every_input_in_every_state() {
    use Input::{Connected, Failed, OtherSyn, Syn, Take, Time};
    use State::{Connecting, Passed, Released, Taken, Unknown};
    let icmp = Failure::Icmp(IcmpError::from_router(ROUTER, packet::Unreachable::Host));
    let (refused, silent, ours) = (Failure::Refused, Failure::TimedOut, Failure::Ours);
    let table: &[(State, Input, &[&str], State)] = &[
        (Unknown, Syn, &["connect"], Connecting),
        (Unknown, OtherSyn, &["connect"], Connecting),
        (Unknown, Connected, &[], Unknown),
        (Unknown, Failed(refused), &[], Unknown),
        (Unknown, Failed(icmp), &[], Unknown),
        (Unknown, Failed(silent), &[], Unknown),
        (Unknown, Failed(ours), &[], Unknown),
        (Unknown, Take, &[], Unknown),
        (Unknown, Time(1000), &[], Unknown),
        (Connecting, Syn, &[], Connecting),
        (Connecting, OtherSyn, &[], Connecting),
        (Connecting, Connected, &["release"], Released),
        (Connecting, Failed(refused), &["answer"], Unknown),
        (Connecting, Failed(icmp), &["answer"], Unknown),
        (Connecting, Failed(silent), &[], Passed),
        (Connecting, Failed(ours), &["pass"], Passed),
        (Connecting, Take, &[], Connecting),
        (Connecting, Time(34), &[], Connecting),
        (Connecting, Time(35), &["abort"], Unknown),
        (Released, Syn, &["release"], Released),
        (Released, OtherSyn, &["release"], Released),
        (Released, Connected, &["release"], Released),
        (Released, Failed(refused), &[], Released),
        (Released, Failed(icmp), &[], Released),
        (Released, Failed(silent), &[], Released),
        (Released, Failed(ours), &[], Released),
        (Released, Take, &[], Taken),
        (Released, Time(9), &[], Released),
        (Released, Time(10), &["abort"], Unknown),
        (Taken, Syn, &["release"], Taken),
        (Taken, OtherSyn, &["connect"], Connecting),
        (Taken, Connected, &[], Taken),
        (Taken, Failed(refused), &[], Taken),
        (Taken, Failed(icmp), &[], Taken),
        (Taken, Failed(silent), &[], Taken),
        (Taken, Failed(ours), &[], Taken),
        (Taken, Take, &[], Taken),
        (Taken, Time(1), &[], Taken),
        (Taken, Time(2), &[], Unknown),
        (Passed, Syn, &["pass"], Passed),
        (Passed, OtherSyn, &["connect"], Connecting),
        (Passed, Connected, &[], Passed),
        (Passed, Failed(refused), &[], Passed),
        (Passed, Failed(icmp), &[], Passed),
        (Passed, Failed(silent), &[], Passed),
        (Passed, Failed(ours), &[], Passed),
        (Passed, Take, &[], Passed),
        (Passed, Time(129), &[], Passed),
        (Passed, Time(130), &[], Unknown),
    ];
    for &(before, input, expected, after) in table {
        let mut holder = holder_in(before);
        input.give(&mut holder);
        let seen = (kinds(&mut holder), state_of(&holder));
        assert_eq!(seen, (expected.to_vec(), after), "{input:?} in {before:?}");
    }
}

#[test]
fn a_repeated_syn_renews_the_lease_and_is_the_one_released() {
    let mut holder = holder_in(State::Connecting);
    holder.handle_packet(&syn(subject(), 7), 1, seconds(30));
    assert_eq!(holder.poll_timeout(), Some(seconds(30) + LEASE));
    holder.handle_timeout(seconds(60));
    assert!(holder.handle_connected(subject(), seconds(60)));
    let packet = syn(subject(), 7).into();
    assert_eq!(actions(&mut holder), [Action::Release { lan: 1, packet }]);
    assert_eq!(holder.poll_timeout(), Some(seconds(70)));
}

#[test]
fn the_answers_are_for_the_latest_syn() {
    let mut holder = holder_in(State::Connecting);
    holder.handle_packet(&syn(subject(), 7), 0, seconds(1));
    holder.handle_failed(subject(), Failure::Refused, seconds(2));
    let Some(Action::Answer { to, packet }) = holder.poll_action() else {
        panic!("no answer");
    };
    assert_eq!(to, subject().client.ip());
    assert_eq!(packet[28..32], 8u32.to_be_bytes(), "acknowledges 7 + 1");
}

#[test]
fn each_cap_passes_what_is_too_much_and_counts_it() {
    let mut holder = Holder::new(config());
    let held = |holder: &mut Holder, flow| {
        holder.handle_packet(&syn(flow, 1), 0, Duration::ZERO);
        kinds(holder) == ["connect"]
    };
    // Three for one destination.
    assert!((0..3).all(|port| held(&mut holder, flow(2, port, 2))));
    assert!(!held(&mut holder, flow(3, 0, 2)));
    // Four from one source.
    assert!(held(&mut holder, flow(2, 3, 3)));
    assert!(!held(&mut holder, flow(2, 4, 4)));
    // Eight in all.
    assert!((5..9).all(|host| held(&mut holder, flow(host, 0, host))));
    assert!(!held(&mut holder, flow(9, 0, 9)));
    let stats = *holder.stats();
    assert_eq!(
        (
            stats.passed_destination_full,
            stats.passed_source_full,
            stats.passed_full
        ),
        (1, 1, 1)
    );
    assert_eq!((stats.held, stats.passed()), (8, 3));
    // An end makes room in all three.
    holder.handle_failed(flow(2, 0, 2), Failure::Refused, seconds(1));
    actions(&mut holder);
    assert!(held(&mut holder, flow(2, 9, 2)));
}

#[test]
fn an_ipv6_source_is_a_whole_64() {
    let mut quota = Quota::new(Limits {
        all: 100,
        per_source: 1,
        per_destination: 100,
    });
    let from = |client: &str| FlowTuple {
        client: format!("[{client}]:1").parse().unwrap(),
        destination: "[2001:db8:f::1]:80".parse().unwrap(),
    };
    assert!(quota.add(&from("2001:db8::1")).is_ok());
    assert_eq!(quota.add(&from("2001:db8::ffff:2")), Err(Full::Source));
    assert!(quota.add(&from("2001:db8:0:1::1")).is_ok());
    quota.remove(&from("2001:db8::1"));
    assert!(quota.add(&from("2001:db8::ffff:2")).is_ok());
}

#[test]
fn the_oldest_passed_flow_is_forgotten_for_a_new_one() {
    let mut holder = Holder::new(HolderConfig {
        passed_max: 2,
        ..config()
    });
    for (second, port) in (0..3).enumerate() {
        let flow = flow(2, port, 2);
        holder.handle_packet(&syn(flow, 1), 0, seconds(second as u64));
        holder.handle_failed(flow, Failure::Ours, seconds(second as u64));
    }
    actions(&mut holder);
    let mut again = |port| {
        holder.handle_packet(&syn(flow(2, port, 2), 1), 0, seconds(3));
        kinds(&mut holder)
    };
    assert_eq!((again(1), again(2)), (vec!["pass"], vec!["pass"]));
    assert_eq!(again(0), ["connect"]);
}

/// Some devices open all their connections from one port.
#[test]
fn the_next_flow_from_the_port_of_one_that_passed_is_held() {
    let mut holder = holder_in(State::Passed);
    for (second, sequence) in [(60, 1), (120, 1), (180, 2)] {
        holder.handle_timeout(seconds(second));
        holder.handle_packet(&syn(subject(), sequence), 0, seconds(second));
    }
    assert_eq!(kinds(&mut holder), ["pass", "pass", "connect"]);
    holder.handle_connected(subject(), seconds(181));
    assert_eq!(state_of(&holder), State::Released);
}

#[test]
fn what_cannot_be_held_is_passed_or_dropped() {
    let mut holder = Holder::new(config());
    let mut fragment = syn(subject(), 1);
    fragment[6] = 0x20;
    holder.handle_packet(&fragment, 0, Duration::ZERO);
    holder.handle_packet(b"rubbish", 0, Duration::ZERO);
    assert_eq!(kinds(&mut holder), ["pass"]);
    assert_eq!((holder.stats().passed_odd, holder.stats().noise), (1, 1));
}

/// An operation on one of few flows, so that they meet.
#[derive(Debug, Clone, Copy)]
enum Step {
    Syn {
        client: u8,
        port: u16,
        server: u8,
        sequence: u32,
    },
    Connected(usize),
    Failed(usize, u8),
    Take(usize),
    Wait(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        5 => (0..3u8, 0..4u16, 0..3u8, 0..2u32).prop_map(|(client, port, server, sequence)| {
            Step::Syn { client, port, server, sequence }
        }),
        3 => any::<usize>().prop_map(Step::Connected),
        2 => (any::<usize>(), 0..4u8).prop_map(|(which, how)| Step::Failed(which, how)),
        3 => any::<usize>().prop_map(Step::Take),
        2 => (0..40_000u64).prop_map(Step::Wait),
    ]
}

/// Knowledge of a shell: flows with legs, connected or not.
#[derive(Default)]
struct Shell {
    legs: HashMap<FlowTuple, bool>,
    now: Duration,
}

impl Shell {
    fn pick(&self, which: usize, connected: bool) -> Option<FlowTuple> {
        let mut flows: Vec<_> = self
            .legs
            .iter()
            .filter(|(_, is)| **is == connected)
            .collect();
        flows.sort();
        (!flows.is_empty()).then(|| *flows[which % flows.len()].0)
    }

    fn apply(&mut self, holder: &mut Holder, step: Step) {
        match step {
            Step::Syn {
                client,
                port,
                server,
                sequence,
            } => {
                let packet = syn(flow(client, port, server), sequence);
                holder.handle_packet(&packet, 0, self.now);
            }
            Step::Connected(which) => {
                if let Some(flow) = self.pick(which, false) {
                    assert!(holder.handle_connected(flow, self.now));
                    self.legs.insert(flow, true);
                }
            }
            Step::Failed(which, how) => {
                if let Some(flow) = self.pick(which, false) {
                    let error = IcmpError::from_router(ROUTER, packet::Unreachable::Network);
                    let failures = [
                        Failure::Refused,
                        Failure::Icmp(error),
                        Failure::TimedOut,
                        Failure::Ours,
                    ];
                    holder.handle_failed(flow, failures[usize::from(how)], self.now);
                    self.legs.remove(&flow);
                }
            }
            Step::Take(which) => {
                if let Some(flow) = self.pick(which, true) {
                    assert!(holder.take(&flow, self.now).is_some());
                    self.legs.remove(&flow);
                }
            }
            Step::Wait(millis) => {
                self.now += Duration::from_millis(millis);
                holder.handle_timeout(self.now);
            }
        }
        for action in actions(holder) {
            match action {
                Action::Connect { flow, .. } => {
                    assert_eq!(
                        self.legs.insert(flow, false),
                        None,
                        "a second leg of {flow:?}"
                    );
                }
                Action::Abort { flow } => {
                    assert!(self.legs.remove(&flow).is_some(), "{flow:?} has no leg");
                }
                Action::Release { .. } | Action::Pass { .. } | Action::Answer { .. } => {}
            }
        }
    }

    fn check(&self, holder: &Holder) {
        let config = config();
        let stats = holder.stats();
        assert_eq!(holder.held_now(), self.legs.len(), "one leg per held SYN");
        assert_eq!(
            stats.held - stats.ended(),
            self.legs.len() as u64,
            "{stats:?}"
        );
        assert!(self.legs.len() <= config.held_max as usize);
        let most = |key: fn(&FlowTuple) -> IpAddr| {
            let mut counts = HashMap::<IpAddr, u32>::new();
            self.legs
                .keys()
                .for_each(|flow| *counts.entry(key(flow)).or_default() += 1);
            counts.into_values().max().unwrap_or(0)
        };
        assert!(most(|flow| flow.client.ip()) <= config.held_per_source_max);
        assert!(most(|flow| flow.destination.ip()) <= config.held_per_destination_max);
    }
}

proptest! {
    /// Caps are never exceeded. Each held SYN has one leg, and ends in exactly one outcome.
    #[test]
    fn legs_and_outcomes_add_up(steps in proptest::collection::vec(step(), 0..200)) {
        let mut holder = Holder::new(config());
        let mut shell = Shell::default();
        for step in steps {
            shell.apply(&mut holder, step);
            shell.check(&holder);
        }
        // In the end nothing is left: no leg, no memory, no deadline.
        shell.apply(&mut holder, Step::Wait(1_000_000));
        prop_assert!(shell.legs.is_empty());
        prop_assert_eq!(holder.stats().held, holder.stats().ended());
        prop_assert_eq!(holder.poll_timeout(), None);
        prop_assert_eq!(holder.quota.add(&subject()), Ok(()));
    }
}
