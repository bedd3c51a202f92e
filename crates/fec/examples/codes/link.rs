//! A stream of packets over a lossy link, with a code, in virtual time: every slot carries one
//! packet, data or repair.

use std::{collections::HashMap, time::Duration};

use fec::{
    block::{self, BlockDecoder, BlockEncoder},
    overhead::Overhead,
    scheme::{Decoder, Encoder},
    theory::{Channel, Draws},
    window::{self, WindowDecoder, WindowEncoder},
    wire::Header,
};

/// Longer than any run: no timers.
const NEVER: Duration = Duration::from_secs(1 << 30);

const PAYLOAD: usize = 8;

/// A code to send with.
#[derive(Clone, Copy, Debug)]
pub enum Code {
    /// Blocks of k packets and h repair packets, `depth` of them interleaved.
    Block { k: u8, h: u8, depth: usize },
    /// A window, and h repair packets for k data packets.
    Window { window: u8, k: u8, h: u8 },
}

impl Code {
    pub fn name(self) -> String {
        match self {
            Self::Block { k, h, depth: 1 } => format!("blocks of {k} + {h}"),
            Self::Block { k, h, depth } => format!("blocks of {k} + {h}, {depth} interleaved"),
            Self::Window { window, k, h } => format!("window of {window}, {h} for {k}"),
        }
    }

    fn encoder(self) -> Box<dyn Encoder> {
        match self {
            Self::Block { k, h, depth } => {
                let config = block::EncoderConfig {
                    k,
                    depth,
                    block_time: NEVER,
                    payload_max: PAYLOAD,
                    overhead: Overhead::of_block(k, h),
                    ..block::EncoderConfig::default()
                };
                Box::new(BlockEncoder::new(config).expect("a code"))
            }
            Self::Window { window, k, h } => {
                let config = window::EncoderConfig {
                    window,
                    payload_max: PAYLOAD,
                    overhead: Overhead::of_block(k, h),
                    hold: NEVER,
                    ..window::EncoderConfig::default()
                };
                Box::new(WindowEncoder::new(config).expect("a code"))
            }
        }
    }

    fn decoder(self) -> Box<dyn Decoder> {
        match self {
            Self::Block { .. } => {
                let config = block::DecoderConfig {
                    payload_max: PAYLOAD,
                    ..block::DecoderConfig::default()
                };
                Box::new(BlockDecoder::new(&config).expect("a code"))
            }
            Self::Window { window, .. } => {
                let config = window::DecoderConfig {
                    payload_max: PAYLOAD,
                    ..window::DecoderConfig::for_window(window)
                };
                Box::new(WindowDecoder::new(&config).expect("a code"))
            }
        }
    }
}

/// Result of a run. Delays are in slots.
#[derive(Debug)]
pub struct Outcome {
    /// Repair packets for each data packet.
    pub overhead: f64,
    /// Share of data packets that the link lost.
    pub lost: f64,
    /// Share of data packets that stayed lost.
    pub residual: f64,
    /// Time from the regular arrival of a lost packet to its recovery.
    pub recovery: Delays,
    /// Time from sending a packet until it and all earlier ones that ever come are present; of all
    /// packets.
    pub in_order: Delays,
}

#[derive(Debug)]
pub struct Delays {
    pub mean: f64,
    pub p95: usize,
    pub p99: usize,
}

impl Delays {
    fn from_packets(mut delays: Vec<usize>) -> Self {
        delays.sort_unstable();
        let at = |percent| delays.get(delays.len() * percent / 100).copied();
        Self {
            mean: delays.iter().sum::<usize>() as f64 / delays.len().max(1) as f64,
            p95: at(95).unwrap_or(0),
            p99: at(99).unwrap_or(0),
        }
    }
}

/// Receiving side, and its log.
struct Receiver {
    decoder: Box<dyn Decoder>,
    losses: Draws,
    /// Packets not passed on yet, by their headers.
    open: HashMap<Header, usize>,
    /// For each packet the slots of sending and delivery.
    packets: Vec<(usize, Option<usize>)>,
    slot: usize,
}

/// Sends `packets` packets.
pub fn run(code: Code, channel: &Channel, packets: usize, seed: u64) -> Outcome {
    let mut encoder = code.encoder();
    let mut receiver = Receiver {
        decoder: code.decoder(),
        losses: channel.draws(seed),
        open: HashMap::new(),
        packets: Vec::with_capacity(packets),
        slot: 0,
    };
    for number in 0..packets {
        let payload = number.to_be_bytes();
        let header = encoder.handle_data(&payload, Duration::ZERO);
        let header = header.expect("a short packet");
        receiver.open.insert(header, number);
        receiver.packets.push((receiver.slot, None));
        receiver.send(header, &payload);
        if number + 1 == packets {
            encoder.handle_drained(Duration::ZERO);
        }
        while let Some((header, symbol)) = encoder.poll_repair() {
            receiver.send(header, symbol);
        }
    }
    receiver.outcome()
}

impl Receiver {
    /// A slot with a packet, which may be lost.
    fn send(&mut self, header: Header, payload: &[u8]) {
        if self.losses.next() == Some(false) {
            let (open, packets, slot) = (&mut self.open, &mut self.packets, self.slot);
            // Each packet arrives once, and as it was sent.
            let mut pass_on = |header: Header, payload: &[u8]| {
                let number = open.remove(&header).expect("a packet, once");
                assert_eq!(payload, number.to_be_bytes());
                packets[number].1 = Some(slot);
            };
            if header.is_data() {
                pass_on(header, payload);
            }
            let arrival = self.decoder.handle(header, payload);
            arrival.expect("a good packet");
            while let Some((header, payload)) = self.decoder.poll_recovered() {
                pass_on(header, payload);
            }
        }
        self.slot += 1;
    }

    fn outcome(self) -> Outcome {
        let count = self.packets.len();
        let mut recovery = Vec::new();
        let mut in_order = Vec::with_capacity(count);
        let mut reached = 0;
        for (sent, came) in &self.packets {
            let Some(came) = *came else { continue };
            if came > *sent {
                recovery.push(came - sent);
            }
            reached = reached.max(came);
            in_order.push(reached - sent);
        }
        let residual = (count - in_order.len()) as f64 / count as f64;
        Outcome {
            overhead: (self.slot - count) as f64 / count as f64,
            lost: residual + recovery.len() as f64 / count as f64,
            residual,
            recovery: Delays::from_packets(recovery),
            in_order: Delays::from_packets(in_order),
        }
    }
}
