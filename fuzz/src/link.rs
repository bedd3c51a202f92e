//! Events on the link between an encoder and a decoder.

use arbitrary::Arbitrary;
use fec::{
    scheme::{Arrival, Decoder, Encoder},
    wire::Header,
};

/// The maximum payload. Short, so that many packets fit into a case.
pub const PAYLOAD_MAX: usize = 40;

/// One event.
#[derive(Arbitrary, Clone, Debug)]
pub enum Event {
    /// A data packet is sent.
    Data { length: u8 },
    /// The send queue is empty.
    Drained,
    /// Time passes, in milliseconds.
    Time { ms: u8 },
    /// A sent packet arrives; `back` counts from the last one sent.
    Arrives { back: u16 },
    /// Several packets arrive in the order of sending.
    Run { back: u16, packets: u8 },
    /// A packet arrives with a byte changed, possibly truncated.
    Changed {
        back: u16,
        byte: u8,
        xor: u8,
        cut: u8,
    },
    /// A forged packet arrives.
    Forged {
        header: AnyHeader,
        length: u8,
        fill: u8,
    },
    /// Arbitrary bytes arrive.
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
    /// Builds the header, with a number relative to `base` if `near`.
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

/// An encoder and the packets that it has sent.
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

    /// Sends a data packet that differs from all others, if it is long enough.
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

/// An observer of all arriving and delivered packets.
pub trait Receiver {
    type Decoder: Decoder;

    fn decoder(&mut self) -> &mut Self::Decoder;

    /// Called before a packet is handled.
    fn arrives(&mut self, _header: Header) {}

    /// Called after a packet was handled and its recovered packets were fetched.
    fn arrived(&mut self, header: Header, payload: &[u8], arrival: Option<Arrival>);

    /// Called for each recovered packet.
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

/// Plays events; those impossible on an honest link only if `hostile`. `base` is the first number.
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
