//! A rogue peer on sockets.

use std::{
    io::{ErrorKind, Read as _, Write as _},
    net::{SocketAddr, TcpStream, UdpSocket},
    thread,
    time::{Duration, Instant},
};

use pepd_tests::{
    host::{Dial, Host},
    tunnel::{End, TunnelBed},
    wait::{PATIENCE, wait_within},
};
use rogue::{
    Step,
    cases::Case,
    floods::{Flood, Target},
    peer::{Config, Rogue, generous},
};
use splitmix::SplitMix64;
use tunnel::{
    crypto::public_key,
    endpoint::{Carriers, Remote},
};

/// A port of the hub at which nothing listens.
const CLOSED_PORT: u16 = 5002;
/// Receive buffer of an attacker that does not read.
const SMALL: usize = 4096;
/// Time for which a connection may accept nothing.
const STUCK: Duration = Duration::from_millis(100);
/// Longest wait for an answer that the hub need not send.
const ROUND_TRIP: Duration = Duration::from_millis(30);
const MOMENT: Duration = Duration::from_millis(1);

/// Datagrams and sessions of an attacker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// Datagrams.
    pub datagrams: u64,
    /// Bytes of all datagrams.
    pub bytes: u64,
    /// Sessions begun.
    pub sessions: u64,
}

/// A rogue peer, and its sockets.
pub struct Attacker {
    rogue: Rogue,
    host: Host,
    hub: SocketAddr,
    udp: UdpSocket,
    tcp: Option<Connection>,
    /// By TCP, and reads nothing once there is a session.
    deaf: bool,
    began: Instant,
    sent: Sent,
}

struct Connection {
    stream: TcpStream,
    received: Vec<u8>,
}

impl Attacker {
    /// Creates an attacker in the place of the second boat, with that boat's key.
    pub fn new(bed: &TunnelBed, deaf: bool) -> Self {
        let host = bed.host("boat2");
        let hub = bed.hub_for(End::SecondBoat);
        let udp = host.enter(|| UdpSocket::bind("0.0.0.0:0").expect("a free port"));
        udp.set_nonblocking(true).expect("a socket");
        let config = Config {
            private_key: bed.private_key("boat2"),
            public_key: public_key(&bed.private_key("hub")),
            psk: bed.private_key("psk"),
            other: Some(hub),
            carriers: if deaf { Carriers::Tcp } else { Carriers::Udp },
            session: generous(),
        };
        // Ephemeral keys of earlier processes must not come again.
        let now = std::time::UNIX_EPOCH.elapsed().expect("a clock after 1970");
        Self {
            rogue: Rogue::new(config, now.as_nanos() as u64),
            host,
            hub,
            udp,
            tcp: None,
            deaf,
            began: Instant::now(),
            sent: Sent::default(),
        }
    }

    fn now(&self) -> Duration {
        // Times are never 0.
        self.began.elapsed() + Duration::from_secs(1)
    }

    /// Takes what has arrived, and sends what a handshake needs.
    fn pump(&mut self) {
        let (now, hub) = (self.now(), self.hub);
        let was_up = self.rogue.is_up();
        let mut buffer = [0; 1 << 16];
        while let Ok((length, from)) = self.udp.recv_from(&mut buffer) {
            self.rogue.handle(now, from.into(), &mut buffer[..length]);
        }
        if !(self.deaf && self.rogue.is_up())
            && let Some(tcp) = &mut self.tcp
        {
            for mut datagram in tcp.receive(&mut buffer) {
                self.rogue.handle(now, Remote::tcp(hub), &mut datagram);
            }
        }
        if !was_up && self.rogue.is_up() {
            self.sent.sessions += 1;
        }
        let mut out = Vec::new();
        while self.rogue.poll(now, &mut out).is_some() {
            self.send(&std::mem::take(&mut out));
        }
    }

    /// Sends a datagram; what does not fit is lost, as with UDP.
    fn send(&mut self, datagram: &[u8]) {
        self.sent.datagrams += 1;
        self.sent.bytes += datagram.len() as u64;
        if !self.deaf {
            let _ = self.udp.send_to(datagram, self.hub);
            return;
        }
        if self.tcp.is_none() {
            self.tcp = Connection::open(&self.host, self.hub);
        }
        let written = self.tcp.as_mut().is_some_and(|tcp| tcp.send(datagram));
        if !written {
            // A record that is cut makes the connection useless.
            self.tcp = None;
            self.rogue.renew();
        }
    }

    /// Waits for a session. Returns false if the hub accepts none.
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

    /// Returns true if the hub accepts a session in which all is right, and answers in it.
    pub fn can_begin(&mut self) -> bool {
        (self.tcp, self.deaf) = (None, false);
        self.rogue.renew_by(Carriers::Udp);
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
        if let Some(datagram) = self.rogue.step(self.now(), step) {
            self.send(&datagram);
        }
    }

    /// Plays a flood for so long.
    pub fn flood(&mut self, flood: &Flood, target: &Target, duration: Duration) -> Sent {
        self.sent = Sent::default();
        let mut random = SplitMix64::new(1);
        let began = Instant::now();
        let (mut turns, mut of_session, mut sessions) = (0, 0, 0);
        while began.elapsed() < duration {
            let due = began.elapsed().as_secs_f64() * f64::from(flood.rate);
            if turns >= due as u64 {
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
            if turns % 16 == 0 {
                self.pump();
            }
            turns += 1;
            of_session += 1;
        }
        self.sent
    }

    /// Plays cases in their order for so long. A session lasts until the hub ends it.
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
            // The hub's answer, if it ends the session.
            let before = self.rogue.arrived();
            wait_within(ROUND_TRIP, || {
                self.pump();
                (self.rogue.arrived() > before).then_some(())
            });
        }
        self.sent
    }

    /// Sends as much per second as before to a port of the hub at which nothing listens.
    pub fn send_to_closed_port(&mut self, as_before: &Sent, duration: Duration) {
        let count = as_before.datagrams.max(1);
        let datagram = vec![0; (as_before.bytes / count).min(1400) as usize];
        let to = SocketAddr::new(self.hub.ip(), CLOSED_PORT);
        // The duration is half of that before.
        let count = count / 2;
        let began = Instant::now();
        let mut sent = 0;
        while began.elapsed() < duration {
            let share = began.elapsed().as_secs_f64() / duration.as_secs_f64();
            if sent as f64 >= share * count as f64 {
                thread::sleep(MOMENT);
                continue;
            }
            // The refusals of the port come back as errors.
            let _ = self.udp.send_to(&datagram, to);
            sent += 1;
        }
    }
}

impl Connection {
    fn open(host: &Host, hub: SocketAddr) -> Option<Self> {
        let stream = host.dial(&Dial::to(hub).receive_buffer(SMALL)).ok()?;
        stream.set_nonblocking(true).ok()?;
        let received = Vec::new();
        Some(Self { stream, received })
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
                    // A hub that takes no more is right, and the datagram is not sent.
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
        while let Ok(length @ 1..) = self.stream.read(buffer) {
            self.received.extend_from_slice(&buffer[..length]);
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
