//! A rogue peer on sockets.

use std::{
    fmt,
    io::{ErrorKind, Read as _, Write as _},
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    thread,
    time::{Duration, Instant},
};

use pepd_tests::{
    host::{Dial, Host},
    tunnel::{End, PORT, TunnelBed},
    wait::{PATIENCE, wait_within},
};
use rogue::{
    Side, Step,
    cases::Case,
    floods::{Flood, GENEROUS, Target},
    peer::{Config, Rogue, generous},
    wire,
};
use splitmix::SplitMix64;
use tunnel::{
    crypto::public_key,
    endpoint::{Carriers, Remote},
};

/// A port of the victim at which nothing listens.
const CLOSED_PORT: u16 = 5002;
/// Receive buffer of an attacker that does not read.
const SMALL: usize = 4096;
/// Time for which a connection may accept nothing.
const STUCK: Duration = Duration::from_millis(100);
/// Longest wait for an answer that the victim need not send.
const ROUND_TRIP: Duration = Duration::from_millis(30);
const MOMENT: Duration = Duration::from_millis(1);
/// Headers of IPv4 and UDP.
const HEADERS: usize = 28;
/// Most that an attacker sends, in bit/s.
const LOAD: f64 = 10e6;
/// Time without a session that it makes up for. More would be another load: a burst at the speed of
/// this machine.
const CATCH_UP: f64 = 0.1;

/// Carrier of an attacker's datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carrier {
    /// UDP.
    Udp,
    /// TCP.
    Tcp,
    /// TCP, of which nothing is read once there is a session.
    DeafTcp,
}

impl fmt::Display for Carrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Udp => "UDP",
            Self::Tcp => "TCP",
            Self::DeafTcp => "TCP, unread",
        })
    }
}

/// Datagrams and sessions of an attacker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// Datagrams.
    pub datagrams: u64,
    /// Bytes of all datagrams.
    pub bytes: u64,
    /// Sessions begun.
    pub sessions: u64,
    /// Turns, each a burst of datagrams.
    pub turns: u64,
}

/// Bytes from and to an address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// Bytes from it.
    pub sent: u64,
    /// Bytes to it.
    pub came: u64,
}

/// A rogue peer, and its sockets. It calls the hub, or a boat calls it.
pub struct Attacker {
    rogue: Rogue,
    side: Side,
    host: Host,
    /// Address of the hub, or of the boat without its port.
    victim: SocketAddr,
    udp: UdpSocket,
    listener: Option<TcpListener>,
    tcp: Option<Connection>,
    carrier: Carrier,
    began: Instant,
    sent: Sent,
    /// Bytes that came by UDP, headers included.
    came: u64,
}

struct Connection {
    stream: TcpStream,
    from: SocketAddr,
    received: Vec<u8>,
    over: bool,
}

/// Address at which a rogue hub is called.
pub fn rogue_hub(bed: &TunnelBed) -> SocketAddr {
    let [address, _] = bed.addresses_toward("boat2", "hub");
    SocketAddr::new(address, PORT)
}

impl Attacker {
    /// Creates an attacker in the place of the second boat, with that boat's key.
    pub fn new(bed: &TunnelBed, side: Side, carrier: Carrier) -> Self {
        let host = bed.host("boat2");
        let (victim, key, local) = match side {
            Side::Caller => (bed.hub_for(End::SecondBoat), "hub", ([0; 4], 0).into()),
            Side::Called => (
                SocketAddr::new(bed.addresses_toward("boat", "hub")[0], 0),
                "boat",
                rogue_hub(bed),
            ),
        };
        let udp = host.enter(|| UdpSocket::bind(local).expect("a free port"));
        udp.set_nonblocking(true).expect("a socket");
        let listener = (side == Side::Called).then(|| host.listen(local));
        if let Some(listener) = &listener {
            listener.set_nonblocking(true).expect("a socket");
        }
        let config = Config {
            private_key: bed.private_key("boat2"),
            public_key: public_key(&bed.private_key(key)),
            psk: bed.private_key("psk"),
            other: (side == Side::Caller).then_some(victim),
            carriers: carriers(carrier),
            session: generous(),
        };
        // Ephemeral keys of earlier processes must not come again.
        let now = std::time::UNIX_EPOCH.elapsed().expect("a clock after 1970");
        Self {
            rogue: Rogue::new(config, now.as_nanos() as u64),
            side,
            host,
            victim,
            udp,
            listener,
            tcp: None,
            carrier,
            began: Instant::now(),
            sent: Sent::default(),
            came: 0,
        }
    }

    fn now(&self) -> Duration {
        // Times are never 0.
        self.began.elapsed() + Duration::from_secs(1)
    }

    /// Takes what has arrived, and sends what a handshake needs.
    fn pump(&mut self) {
        let now = self.now();
        let was_up = self.rogue.is_up();
        let mut buffer = [0; 1 << 16];
        while let Ok((length, from)) = self.udp.recv_from(&mut buffer) {
            self.came += (length + HEADERS) as u64;
            // A boat may call by both.
            if self.carrier == Carrier::Udp {
                self.rogue.handle(now, from.into(), &mut buffer[..length]);
            }
        }
        if let Some(Ok((stream, from))) = self.listener.as_ref().map(TcpListener::accept) {
            self.tcp = Connection::new(stream, from);
        }
        if !(self.carrier == Carrier::DeafTcp && self.rogue.is_up())
            && let Some(tcp) = &mut self.tcp
        {
            for mut datagram in tcp.receive(&mut buffer) {
                self.rogue.handle(now, Remote::tcp(tcp.from), &mut datagram);
            }
            if tcp.over {
                self.lose_connection();
            }
        }
        if !was_up && self.rogue.is_up() {
            self.sent.sessions += 1;
        }
        let mut out = Vec::new();
        while let Some(to) = self.rogue.poll(now, &mut out) {
            self.send(&std::mem::take(&mut out), to.address);
        }
    }

    fn lose_connection(&mut self) {
        self.tcp = None;
        // What the victim may still send is lost.
        if self.rogue.closed().is_none() {
            self.rogue.renew();
        }
    }

    /// Sends a datagram; what does not fit is lost, as with UDP.
    fn send(&mut self, datagram: &[u8], to: SocketAddr) {
        self.sent.datagrams += 1;
        self.sent.bytes += datagram.len() as u64;
        if self.carrier == Carrier::Udp {
            let _ = self.udp.send_to(datagram, to);
            return;
        }
        if self.tcp.is_none() && self.side == Side::Caller {
            let deaf = self.carrier == Carrier::DeafTcp;
            self.tcp = Connection::open(&self.host, self.victim, deaf);
        }
        let written = self.tcp.as_mut().is_some_and(|tcp| tcp.send(datagram));
        if !written {
            // A record that is cut makes the connection useless.
            self.lose_connection();
        }
    }

    /// Ends the session and its flows. A boat calls again sooner if it learns of that.
    fn close(&mut self) {
        self.take(&Step::Packet(vec![6, 0, 0]));
        self.rogue.renew();
    }

    /// Waits for a session. Returns false if the victim accepts none.
    pub fn connect(&mut self) -> bool {
        if self.rogue.closed().is_some() {
            self.rogue.renew();
        }
        let up = wait_within(PATIENCE, || {
            self.pump();
            self.rogue.is_up().then_some(())
        });
        // The confirmation.
        self.pump();
        up.is_some()
    }

    /// Returns true if the victim accepts a session in which all is right, and answers in it.
    pub fn can_begin(&mut self) -> bool {
        if self.carrier == Carrier::DeafTcp {
            self.carrier = Carrier::Tcp;
        }
        // Flows that stay would count beside those of later kinds.
        self.close();
        if self.side == Side::Caller {
            self.tcp = None;
        }
        if !self.connect() {
            return false;
        }
        let answered = wait_within(PATIENCE, || {
            self.take(&Step::Packet(vec![3]));
            self.take(&Step::Report);
            self.pump();
            (self.rogue.is_up() && self.rogue.arrived() > 0).then_some(())
        });
        answered.is_some()
    }

    fn take(&mut self, step: &Step) {
        if *step == Step::Renew && self.side == Side::Called {
            return self.close();
        }
        if let Some(datagram) = self.rogue.step(self.now(), step) {
            let remote = self.rogue.remote().map(|remote| remote.address);
            self.send(&datagram, remote.unwrap_or(self.victim));
        }
    }

    /// Plays a flood for so long, with so many turns per second or as many as [`LOAD`] allows.
    pub fn flood(
        &mut self,
        flood: &Flood,
        rate: Option<u32>,
        target: &Target,
        duration: Duration,
    ) -> Sent {
        self.sent = Sent::default();
        if flood.stream_credit < GENEROUS {
            self.close();
            self.rogue.renew_with(flood.stream_credit);
        }
        // A token that a flow of an earlier kind still has would be refused.
        let seed = flood.name.bytes().fold(self.carrier as u64, |seed, byte| {
            seed.wrapping_mul(31).wrapping_add(byte.into())
        });
        let mut random = SplitMix64::new(seed);
        let began = Instant::now();
        let (mut of_session, mut sessions, mut left_out) = (0, 0, 0.0);
        while began.elapsed() < duration {
            let elapsed = began.elapsed().as_secs_f64();
            let due = rate.map_or(u64::MAX, |rate| (elapsed * f64::from(rate)) as u64);
            let turns = self.sent.turns;
            let behind = elapsed - left_out - self.sent.bytes as f64 * 8.0 / LOAD;
            left_out += (behind - CATCH_UP).max(0.0);
            if turns >= due || behind < 0.0 {
                self.pump();
                thread::sleep(MOMENT);
                continue;
            }
            if !self.rogue.is_up() {
                self.connect();
            }
            if std::mem::replace(&mut sessions, self.sent.sessions) != self.sent.sessions {
                of_session = 0;
            }
            for step in (flood.turn)(of_session, target, &mut random) {
                self.take(&step);
            }
            if turns.is_multiple_of(16) {
                self.pump();
            }
            self.sent.turns += 1;
            of_session += 1;
        }
        self.sent
    }

    /// Plays cases in their order for so long. A session lasts until the victim ends it.
    pub fn cases(&mut self, cases: &[Case], duration: Duration) -> Sent {
        self.sent = Sent::default();
        let began = Instant::now();
        for case in cases {
            if began.elapsed() >= duration {
                break;
            }
            if !self.rogue.is_up() {
                self.connect();
            }
            for step in &case.steps {
                self.take(step);
            }
            // The victim's answer, if it ends the session.
            let before = self.rogue.arrived();
            wait_within(ROUND_TRIP, || {
                self.pump();
                (self.rogue.arrived() > before).then_some(())
            });
        }
        self.sent
    }

    /// Sends as much per second as before, for half as long and in such bursts, to a port of the
    /// victim at which nothing listens.
    pub fn send_to_closed_port(&mut self, as_before: &Sent, duration: Duration) {
        let count = as_before.datagrams.max(1);
        let datagram = vec![0; (as_before.bytes / count).min(1400) as usize];
        let to = SocketAddr::new(self.victim.ip(), CLOSED_PORT);
        let burst = count / as_before.turns.max(1);
        let count = count / 2;
        let began = Instant::now();
        let mut sent = 0;
        while began.elapsed() < duration {
            let share = began.elapsed().as_secs_f64() / duration.as_secs_f64();
            if sent as f64 >= share * count as f64 {
                thread::sleep(MOMENT);
                continue;
            }
            for _ in 0..burst.max(1) {
                // The refusals of the port come back as errors.
                let _ = self.udp.send_to(&datagram, to);
                sent += 1;
            }
        }
    }

    /// Asks the hub for many bytes, first at its own address, then at another one of this machine,
    /// whose challenges it does not answer. Returns bytes sent and received at both, headers
    /// included.
    pub fn reflect(&mut self, bed: &TunnelBed, duration: Duration) -> [Moved; 2] {
        let IpAddr::V4(own) = bed.addresses_toward("boat2", "hub")[0] else {
            unreachable!("the first address is of IPv4")
        };
        let other = Ipv4Addr::from(u32::from(own) + 70);
        self.host.ip(&format!("address add {other}/24 dev hub"));
        let bind = || UdpSocket::bind((other, 0)).expect("a free port");
        let other = self.host.enter(bind);
        other.set_nonblocking(true).expect("a socket");
        // The last ones ask for answers.
        let steps = [
            Step::Report,
            Step::Report,
            Step::Packet(vec![3]),
            Step::Packet(vec![4, 0, 1]),
            Step::Terms(vec![2]),
        ];
        (self.sent, self.came) = (Sent::default(), 0);
        let mut moved = Moved::default();
        let (mut buffer, began) = ([0; 1 << 16], Instant::now());
        for step in steps.iter().cycle() {
            let elapsed = began.elapsed();
            if elapsed >= duration {
                break;
            }
            if !self.rogue.is_up() {
                self.connect();
                self.ask_for_bytes();
            }
            if elapsed < duration / 3 {
                self.take(&Step::Report);
            } else if let Some(datagram) = self.rogue.step(self.now(), step)
                && other.send_to(&datagram, self.victim).is_ok()
            {
                moved.sent += (datagram.len() + HEADERS) as u64;
            }
            self.pump();
            while let Ok(length) = other.recv(&mut buffer) {
                moved.came += (length + HEADERS) as u64;
            }
            thread::sleep(5 * MOMENT);
        }
        let own = Moved {
            sent: self.sent.bytes + self.sent.datagrams * HEADERS as u64,
            came: self.came,
        };
        [own, moved]
    }

    /// Opens a probe of 8 GB.
    fn ask_for_bytes(&mut self) {
        const UNTIL: u64 = 1 << 33;
        let parts = [
            wire::open(0, &wire::probe_header(UNTIL)),
            wire::credit(0, UNTIL),
            wire::session_credit(UNTIL),
        ];
        self.take(&Step::Segment(parts.concat()));
    }
}

const fn carriers(carrier: Carrier) -> Carriers {
    match carrier {
        Carrier::Udp => Carriers::Udp,
        Carrier::Tcp | Carrier::DeafTcp => Carriers::Tcp,
    }
}

impl Connection {
    fn new(stream: TcpStream, from: SocketAddr) -> Option<Self> {
        stream.set_nonblocking(true).ok()?;
        stream.set_nodelay(true).ok()?;
        Some(Self {
            stream,
            from,
            received: Vec::new(),
            over: false,
        })
    }

    fn open(host: &Host, to: SocketAddr, deaf: bool) -> Option<Self> {
        let dial = Dial::to(to);
        let dial = if deaf {
            dial.receive_buffer(SMALL)
        } else {
            dial
        };
        Self::new(host.dial(&dial).ok()?, to)
    }

    /// Sends a datagram; returns false if the connection is over.
    fn send(&mut self, datagram: &[u8]) -> bool {
        let mut record = (datagram.len() as u16).to_be_bytes().to_vec();
        record.extend_from_slice(datagram);
        let (mut rest, began) = (&record[..], Instant::now());
        while !rest.is_empty() {
            match self.stream.write(rest) {
                Ok(written) => rest = &rest[written..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    // A victim that takes no more is right, and the datagram is not sent.
                    if rest.len() == record.len() && began.elapsed() > STUCK {
                        return true;
                    }
                    thread::sleep(MOMENT);
                }
                Err(_) => return false,
            }
            if began.elapsed() > PATIENCE {
                return false;
            }
        }
        true
    }

    /// Returns all whole datagrams that have arrived.
    fn receive(&mut self, buffer: &mut [u8]) -> Vec<Vec<u8>> {
        loop {
            match self.stream.read(buffer) {
                Ok(length @ 1..) => self.received.extend_from_slice(&buffer[..length]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                _ => {
                    self.over = true;
                    break;
                }
            }
        }
        let mut datagrams = Vec::new();
        while let Some(length) = self.received.first_chunk::<2>() {
            let end = 2 + usize::from(u16::from_be_bytes(*length));
            if self.received.len() < end {
                break;
            }
            datagrams.push(self.received[2..end].to_vec());
            self.received.drain(..end);
        }
        datagrams
    }
}
