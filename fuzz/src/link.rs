//! What happens to packets between an encoder and a decoder.

use arbitrary::Arbitrary;
use fec::{
    scheme::{Arrival, Decoder, Encoder},
    wire::Header,
};

/// The longest packet. Short, so that many fit into a case.
pub const PAYLOAD_MAX: usize = 40;

/// One event.
#[derive(Arbitrary, Clone, Debug)]
pub enum Event {
    /// A data packet is sent.
    Data { length: u8 },
    /// Nothing more waits to be sent.
    Drained,
    /// Time passes, in milliseconds.
    Time { ms: u8 },
    /// A packet that was sent arrives: the one so many before the last.
    Arrives { back: u16 },
    /// As many as that arrive in the order of sending.
    Run { back: u16, packets: u8 },
    /// A packet arrives with a byte changed, and perhaps the end cut off.
    Changed {
        back: u16,
        byte: u8,
        xor: u8,
        cut: u8,
    },
    /// Something arrives that was never sent.
    Forged {
        header: AnyHeader,
        length: u8,
        fill: u8,
    },
    /// Any bytes arrive.
    Bytes { bytes: Vec<u8> },
}

/// Any header, even one that cannot be written.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub enum AnyHeader {
    BlockData { block: u32, index: u8 },
    BlockRepair { block: u32, row: u8, k: u8, h: u8 },
    WindowData { id: u32 },
    WindowRepair { first: u32, count: u16, key: u16 },
}

impl AnyHeader {
    /// With its number counted from `base` where `near`.
    fn header(self, base: u32) -> Header {
        let near = |number: u32| match number >> 30 {
            0 => number,
            _ => base.wrapping_add(number % 64).wrapping_sub(32),
        };
        match self {
            Self::BlockData { block, index } => Header::BlockData {
                block: near(block),
                index,
            },
            Self::BlockRepair { block, row, k, h } => Header::BlockRepair {
                block: near(block),
                row,
                k,
                h,
            },
            Self::WindowData { id } => Header::WindowData { id: near(id) },
            Self::WindowRepair { first, count, key } => Header::WindowRepair {
                first: near(first),
                count,
                key,
            },
        }
    }
}

/// A packet that was sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    pub header: Header,
    pub payload: Vec<u8>,
}

/// Everything that an encoder has sent.
pub struct Sender<E> {
    pub encoder: E,
    pub sent: Vec<Packet>,
    now: std::time::Duration,
}

impl<E: Encoder> Sender<E> {
    pub fn new(encoder: E) -> Self {
        let (sent, now) = (Vec::new(), std::time::Duration::ZERO);
        Self { encoder, sent, now }
    }

    /// Sends a data packet that is unlike all others, where it is long enough.
    pub fn data(&mut self, length: usize) {
        let mut payload = vec![self.sent.len() as u8; length];
        let number = (self.sent.len() as u32).to_be_bytes();
        for (byte, number) in payload.iter_mut().zip(number) {
            *byte = number;
        }
        let header = self
            .encoder
            .handle_data(&payload, self.now)
            .expect("short enough");
        assert!(header.is_data());
        self.sent.push(Packet { header, payload });
        self.repairs();
    }

    pub fn drained(&mut self) {
        self.encoder.handle_drained(self.now);
        self.repairs();
    }

    fn time(&mut self, ms: u8) {
        self.now += std::time::Duration::from_millis(ms.into());
        self.encoder.handle_timeout(self.now);
        let timeout = self.encoder.poll_timeout();
        self.repairs();
        assert!(timeout.is_none_or(|at| at > self.now) || self.encoder.poll_timeout() != timeout);
    }

    fn repairs(&mut self) {
        while let Some((header, symbol)) = self.encoder.poll_repair() {
            assert!(!header.is_data());
            let payload = symbol.to_vec();
            self.sent.push(Packet { header, payload });
        }
    }

    fn back(&self, back: u16) -> Option<usize> {
        let back = usize::from(back) % self.sent.len().max(1);
        self.sent.len().checked_sub(back + 1)
    }
}

/// Hears of everything that arrives and that is passed on.
pub trait Receiver {
    type Decoder: Decoder;

    fn decoder(&mut self) -> &mut Self::Decoder;

    /// A packet is about to be handled.
    fn arrives(&mut self, _header: Header) {}

    /// It was handled, and what was recovered fetched.
    fn arrived(&mut self, header: Header, payload: &[u8], arrival: Option<Arrival>);

    /// A packet was recovered.
    fn recovered(&mut self, header: Header, payload: &[u8]);
}

/// Hands a packet to a receiver.
pub fn deliver(receiver: &mut impl Receiver, header: Header, payload: &[u8]) {
    receiver.arrives(header);
    let arrival = receiver.decoder().handle(header, payload).ok();
    let mut recovered = Vec::new();
    while let Some((header, payload)) = receiver.decoder().poll_recovered() {
        assert!(header.is_data() && payload.len() <= PAYLOAD_MAX);
        let payload = payload.to_vec();
        recovered.push(Packet { header, payload });
    }
    for packet in &recovered {
        receiver.recovered(packet.header, &packet.payload);
    }
    receiver.arrived(header, payload, arrival);
}

/// Plays events; those that no honest link brings about only if `hostile`. `base` is where numbers
/// begin.
pub fn play<E: Encoder>(
    sender: &mut Sender<E>,
    receiver: &mut impl Receiver,
    events: &[Event],
    hostile: bool,
    base: u32,
) {
    for event in events {
        match event {
            Event::Data { length } => sender.data(usize::from(*length) % (PAYLOAD_MAX + 1)),
            Event::Drained => sender.drained(),
            Event::Time { ms } => sender.time(*ms),
            Event::Arrives { back } => arrive(sender, receiver, sender.back(*back), 1),
            Event::Run { back, packets } => {
                arrive(sender, receiver, sender.back(*back), (*packets).into());
            }
            _ if !hostile => {}
            Event::Changed {
                back,
                byte,
                xor,
                cut,
            } => {
                let Some(place) = sender.back(*back) else {
                    continue;
                };
                let packet = &sender.sent[place];
                let mut bytes = Vec::new();
                packet.header.emit(&mut bytes);
                bytes.extend_from_slice(&packet.payload);
                let place = usize::from(*byte) % bytes.len();
                bytes[place] ^= xor;
                bytes.truncate(bytes.len() - usize::from(*cut) % 8 % bytes.len());
                parse(receiver, &bytes);
            }
            Event::Forged {
                header,
                length,
                fill,
            } => {
                let payload = vec![*fill; usize::from(*length) % (PAYLOAD_MAX + 5)];
                deliver(receiver, header.header(base), &payload);
            }
            Event::Bytes { bytes } => parse(receiver, bytes),
        }
    }
}

fn arrive<E>(
    sender: &Sender<E>,
    receiver: &mut impl Receiver,
    first: Option<usize>,
    packets: usize,
) {
    let first = first.unwrap_or(sender.sent.len());
    for packet in sender.sent[first..].iter().take(packets) {
        deliver(receiver, packet.header, &packet.payload);
    }
}

fn parse(receiver: &mut impl Receiver, bytes: &[u8]) {
    if let Ok((header, payload)) = Header::parse(bytes) {
        deliver(receiver, header, payload);
    }
}
