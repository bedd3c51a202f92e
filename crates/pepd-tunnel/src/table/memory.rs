//! Memory and throughput of a bulk flow at both ends, over emulated links in virtual time.

use std::time::Duration;

use pep_core::config::Config;
use tunnel::{
    class::Class,
    ecn::Ecn,
    session::{Event, Session},
};
use winkemu_link::{Direction as Way, Engine, LinkOptions};

use super::*;
use crate::{
    credit::{self, Credits, Pool, Usage},
    rig::context_with,
    setup,
};

/// Bytes of IP, UDP and tunnel headers.
const OVERHEAD: usize = 28 + tunnel::wire::DATAGRAM_OVERHEAD;
const BUDGET: u64 = 1 << 30;

/// One end of a tunnel with a flow whose leg sends and takes all it may.
struct End {
    table: Table,
    session: Session,
    credits: Credits,
    flow: Option<FlowId>,
    /// The leg sends, rather than takes.
    gives: bool,
    peak: u64,
}

impl End {
    fn new(config: &Config, initiator: bool) -> Self {
        let context = context_with(2, BUDGET, setup::extent(config), 64 << 10);
        let (mut session, sizes) = setup::sizes_and_session(config, 0);
        session.initiator = initiator;
        let mut credits = Credits::new(&Pool::new(&context.budget));
        let table = Table::new(&context, sizes, 1);
        credits.add(session.session_credit, sizes.first, table.memory());
        Self {
            table,
            session: Session::new(session, Duration::ZERO),
            credits,
            flow: None,
            gives: initiator,
            peak: 0,
        }
    }

    /// Returns the bytes held by the flow, without the credit of the peer.
    fn held(&self) -> u64 {
        self.table.context.budget.taken() - self.credits.granted()
    }

    fn begin(&mut self) {
        let memory = self.table.context.take_memory().unwrap();
        let flow = self.table.add(memory, Direction::Up);
        let stream = self.session.open(Class::Bulk, 0, b"").unwrap();
        self.table.bind(flow, stream);
        self.flow = Some(flow);
    }

    fn move_bytes(&mut self) {
        while let Some(event) = self.session.poll_event() {
            match event {
                Event::Opened { stream, .. } => self.flow = self.table.opened(stream),
                Event::Readable { stream, until } => {
                    self.table.on_readable(stream, until);
                }
                Event::Acked { stream, until } => self.table.on_acked(stream, until),
                _ => {}
            }
        }
        self.peak = self.peak.max(self.held());
        let Some(flow) = self.flow else {
            return;
        };
        let Some(entry) = self.table.get(flow) else {
            return;
        };
        let stream = entry.stream().unwrap();
        while self.gives {
            let given = entry.space(u64::MAX).len();
            if given == 0 {
                break;
            }
            entry.on_received(given);
            self.session.written(stream, entry.advance());
        }
        let mut taken = 0;
        while let Some(count) = entry.send(|_, _, data| data.len()) {
            self.session.allow(stream, entry.on_sent(count));
            taken += count;
        }
        self.table.on_consumed(flow, taken);
    }

    fn grant(&mut self, now: Duration) {
        let usage = Usage::new(&self.session, &self.table);
        let round = || credit::round(&self.session);
        let until = self.credits.grant(0, now, round, &usage);
        self.session.allow_session(until);
    }
}

struct Run {
    ends: [End; 2],
    link: Engine,
    now: Duration,
    /// Time of the next second tick.
    tick: Duration,
}

impl Run {
    /// Creates both ends with a link. `peer` and `link` are in the syntax of pepd's and winkemu's
    /// configurations.
    fn new(peer: &str, link: &str, back: Option<&str>, seed: u64) -> Self {
        let text = format!(
            "[intercept]\nlan = [\"eth0\"]\n[identity]\nkey_file = \"a\"\n[peer.other]\n{peer}\n\
             public_key = \"AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyA=\"\n"
        );
        let config = pep_core::config::parse(&text).unwrap();
        let mut options: LinkOptions = link.parse().unwrap();
        options.ba = back.map(|back| back.parse().unwrap());
        let mut ends = [true, false].map(|initiator| End::new(&config, initiator));
        ends[0].begin();
        Self {
            ends,
            link: Engine::new(&options.resolve_without_files().unwrap(), seed),
            now: Duration::ZERO,
            tick: Duration::ZERO,
        }
    }

    fn until(&mut self, until: Duration) {
        while self.now < until {
            for (side, direction) in [(0, Way::AtoB), (1, Way::BtoA)] {
                self.send(side, direction);
            }
            let link = self.link.poll_timeout().map(Duration::from_nanos);
            let own = self.ends.each_mut().map(|end| end.session.deadline());
            let next = own
                .into_iter()
                .chain([link])
                .flatten()
                .min()
                .unwrap_or(until);
            self.now = next.max(self.now + Duration::from_nanos(1)).min(until);
            self.deliver();
            if self.now >= self.tick {
                self.tick = self.now + Duration::from_secs(1);
                let now = self.now;
                self.ends.iter_mut().for_each(|end| end.table.age(now));
            }
        }
    }

    fn send(&mut self, side: usize, direction: Way) {
        let end = &mut self.ends[side];
        loop {
            end.move_bytes();
            let mut datagram = vec![0; OVERHEAD];
            let written = end
                .session
                .poll_packet(self.now, &mut datagram, &mut end.table);
            let Some(written) = written else {
                return;
            };
            datagram[..8].copy_from_slice(&written.number.to_be_bytes());
            self.link
                .handle_packet(direction, &datagram, self.now.as_nanos() as u64);
        }
    }

    fn deliver(&mut self) {
        while let Some((direction, packet)) = self.link.poll_deliver(self.now.as_nanos() as u64) {
            let end = &mut self.ends[usize::from(direction == Way::AtoB)];
            let number = u64::from_be_bytes(packet.bytes[..8].try_into().unwrap());
            let plain = &packet.bytes[OVERHEAD..];
            let length = packet.bytes.len() - 28;
            let (session, table) = (&mut end.session, &mut end.table);
            let taken = session.handle_packet(self.now, number, plain, length, Ecn::NotEct, table);
            taken.expect("what the peer wrote");
            end.grant(self.now);
        }
    }

    /// Returns the bytes that the far leg has taken.
    fn delivered(&mut self) -> u64 {
        let far = &mut self.ends[1];
        let entry = far.flow.and_then(|flow| far.table.get(flow));
        entry.map_or(0, |entry| entry.delivered()[0])
    }

    /// Returns the bytes delivered from second `from` to second `to`, and the maximum that each end
    /// held.
    fn measure(&mut self, from: u64, to: u64) -> (u64, [u64; 2]) {
        self.until(Duration::from_secs(from));
        let before = self.delivered();
        for end in &mut self.ends {
            end.peak = 0;
        }
        self.until(Duration::from_secs(to));
        let peaks = self.ends.each_ref().map(|end| end.peak);
        (self.delivered() - before, peaks)
    }
}

const GEO: &str = "rate = \"10Mbit/s\"\nrtt = \"600ms\"";
const FAST: &str = "rate = \"100Mbit/s\"\nrtt = \"100ms\"";

/// Median, minimum and maximum.
struct Spread([f64; 3]);

impl Spread {
    fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let at = |index: usize| values[index];
        Self([at(values.len() / 2), at(0), at(values.len() - 1)])
    }
}

impl std::fmt::Display for Spread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [median, min, max] = self.0;
        write!(f, "{median:.3} ({min:.3}..{max:.3})")
    }
}

/// Without loss a flow holds little more than the bytes in flight. With bytes lost n times in a row
/// it also holds what arrives in n round trips. The far end cannot deliver these bytes yet. The
/// near end keeps them because the far end may lose them with its session.
#[test]
fn a_bulk_flow_holds_what_it_needs_and_is_as_fast_as_the_link() {
    let geo = "rate=10mbit,delay=300ms,queue=100%bdp";
    let fast = "rate=100mbit,delay=50ms,queue=100%bdp";
    println!(
        "rate, loss: goodput of rate x (1 - loss); held by the near and the far end, in bandwidth-delay products"
    );
    for (peer, link, rate, rtt, seconds, loss, most) in [
        (GEO, geo, 10e6, 0.6, 40, 0.0, [1.4, 0.2]),
        (GEO, geo, 10e6, 0.6, 40, 0.1, [2.4, 1.3]),
        (GEO, geo, 10e6, 0.6, 40, 1.0, [3.4, 2.3]),
        (GEO, geo, 10e6, 0.6, 40, 2.0, [3.4, 2.3]),
        // Of 33,000 packets, about one loses its second retransmission and the copy of it.
        (GEO, geo, 10e6, 0.6, 40, 8.0, [4.2, 3.1]),
        (FAST, fast, 100e6, 0.1, 5, 0.0, [1.5, 0.2]),
        (FAST, fast, 100e6, 0.1, 5, 0.1, [2.5, 1.3]),
        (FAST, fast, 100e6, 0.1, 5, 2.0, [3.5, 2.3]),
        (FAST, fast, 100e6, 0.1, 5, 8.0, [4.6, 3.4]),
    ] {
        let content: f64 = rate / 8.0 * rtt;
        let [mut shares, mut nears, mut fars] = [const { Vec::new() }; 3];
        for seed in 1..=5 {
            let mut run = Run::new(peer, &format!("{link},loss={loss}%"), None, seed);
            let (bytes, peaks) = run.measure(5, 5 + seconds);
            shares.push(bytes as f64 * 8.0 / seconds as f64 / rate / (1.0 - loss / 100.0));
            let [near, far] = peaks.map(|bytes| bytes as f64 / content);
            nears.push(near);
            fars.push(far);
        }
        let [share, near, far] = [shares, nears, fars].map(Spread::of);
        println!("{rate} {loss} %: {share}; {near}, {far}");
        assert!(share.0[0] > 0.935, "{share} at {loss} %");
        assert!(
            near.0[0] < most[0] && far.0[0] < most[1],
            "{near}, {far} at {loss} %"
        );
    }
}

/// Without acknowledgements, a dedicated link is used further as long as there is memory.
#[test]
fn while_only_the_return_path_is_down_a_dedicated_link_is_used_and_the_memory_is_freed() {
    let (link, back) = (
        "rate=10mbit,delay=300ms,queue=100%bdp",
        Some("outages=10s+10s"),
    );
    for (peer, minimum, most) in [("dedicated = true", 0.9, 14.0), ("", 0.0, 4.0)] {
        let mut run = Run::new(&format!("{GEO}\n{peer}"), link, back, 1);
        run.until(Duration::from_secs(5));
        let (bytes, peaks) = run.measure(10, 18);
        let share = bytes as f64 / 8.0 / 1.25e6;
        let held = peaks[0] as f64 / 750e3;
        println!("{peer}: {share:.3} of the rate, {held:.1} bandwidth-delay products held");
        assert!(
            share > minimum && share < 1.0 && held < most,
            "{peer}: {share:.3}, {held:.1}"
        );
        let (_, peaks) = run.measure(30, 40);
        let held = peaks[0] as f64 / 750e3;
        assert!(held < 1.7, "{peer}: {held:.1} later");
    }
}
