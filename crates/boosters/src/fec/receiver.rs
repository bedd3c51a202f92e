//! Receiver of protected packets.

use std::time::Duration;

use fec::{
    block::{self, BlockDecoder},
    code::{Backend, ErasureCode},
    scheme::{Arrival, Decoder, Refused},
    window::{self, WindowDecoder},
    wire::Header,
};

use super::{INTERLEAVED_MAX, WINDOW_MAX, pace::Pace};
use crate::{
    booster::{Booster, Out},
    packet::Packet,
    pieces::Joiner,
    rule::Path,
    wire::{FEC, PIECE},
};

/// Maximum length of a protected message in bytes: an Ethernet jumbo frame. A decoder keeps up to
/// some hundred of these.
const PAYLOAD_MAX: usize = 9000;
/// Maximum length where the local end's own messages are no longer either, in bytes: the paths of
/// both directions seldom differ.
const PAYLOAD_USUAL: usize = 1500;
/// Step in bytes by which decoders grow, so that they do so a few times at most.
const PAYLOAD_STEP: usize = 1500;

/// Restores lost packets. A received packet is passed on whatever the decoders report, unless they
/// know that it was passed on before.
#[derive(Debug)]
pub struct Receiver {
    /// Message length that decoders are made for. Grows up to [`PAYLOAD_MAX`] with longer messages:
    /// the far end knows the path MTU better.
    pub(super) payload_max: usize,
    /// Bytes up to which it grows.
    payload_end: usize,
    /// Created on first use.
    window: Option<Box<WindowDecoder>>,
    pub(super) block: Option<Box<BlockDecoder<Box<dyn ErasureCode + Send>>>>,
    /// Implementation of the block code.
    code: Backend,
    /// Joins messages that were too long to be protected in one piece.
    joiner: Joiner,
    pace: Pace,
    passed: u64,
    pub(super) restored: u64,
    duplicates: u64,
    pub(super) refused: u64,
}

impl Receiver {
    /// Creates a receiver for messages of up to `payload_max` bytes; longer ones enlarge it.
    #[must_use]
    pub fn new(payload_max: usize) -> Self {
        Self {
            payload_max: payload_max.clamp(1, PAYLOAD_MAX),
            payload_end: end_of(payload_max),
            window: None,
            block: None,
            code: Backend::default(),
            joiner: Joiner::default(),
            pace: Pace::default(),
            passed: 0,
            restored: 0,
            duplicates: 0,
            refused: 0,
        }
    }

    /// Decodes blocks by `code`; by the fastest kernel otherwise.
    #[must_use]
    pub fn with_code(self, code: Backend) -> Self {
        Self { code, ..self }
    }

    /// Passes a packet to the decoder. A decoder too small for it is replaced by a larger one
    /// without state: the far end, whose messages have grown, has restarted as well.
    fn decode(&mut self, header: Header, payload: &[u8]) -> Result<Arrival, Refused> {
        let arrival = self.decoder(header).handle(header, payload);
        let len = match arrival {
            // A repair packet has a length before it.
            Err(Refused::Length(len)) if header.is_data() => len,
            Err(Refused::Length(len)) => len.saturating_sub(2),
            _ => return arrival,
        };
        if !(self.payload_max + 1..=self.payload_end).contains(&len) {
            return arrival;
        }
        self.payload_max = len.next_multiple_of(PAYLOAD_STEP).min(self.payload_end);
        (self.window, self.block) = (None, None);
        self.decoder(header).handle(header, payload)
    }

    /// Passes a message on, once it is complete.
    fn pass(&mut self, now: Duration, packet: Packet, out: &mut Out) {
        let packet = Packet {
            restorable: self.pace.packets(),
            ..packet
        };
        if packet.bytes.first() != Some(&PIECE) {
            out.up.push(packet);
        } else if let Some((bytes, outer)) = self.joiner.take(now, &packet.bytes, packet.outer) {
            out.up.push(Packet {
                bytes,
                outer,
                ..packet
            });
        }
    }

    fn decoder(&mut self, header: Header) -> &mut dyn Decoder {
        let payload_max = self.payload_max;
        match header {
            Header::WindowData { .. } | Header::WindowRepair { .. } => {
                let decoder = self.window.get_or_insert_with(|| {
                    let config = window::DecoderConfig {
                        payload_max,
                        ..window::DecoderConfig::for_window(WINDOW_MAX)
                    };
                    Box::new(WindowDecoder::new(&config).expect("all values are in range"))
                });
                &mut **decoder
            }
            Header::BlockData { .. } | Header::BlockRepair { .. } => {
                let code = self.code;
                let decoder = self.block.get_or_insert_with(|| {
                    let config = block::DecoderConfig {
                        payload_max,
                        blocks: 192,
                        packets: 2 * INTERLEAVED_MAX,
                        ..block::DecoderConfig::default()
                    };
                    let decoder = BlockDecoder::with_code(&config, code.code());
                    Box::new(decoder.expect("all values are in range"))
                });
                &mut **decoder
            }
        }
    }
}

/// Returns the longest message of a peer, given that of the local end.
fn end_of(room: usize) -> usize {
    if room > PAYLOAD_USUAL {
        PAYLOAD_MAX
    } else {
        PAYLOAD_USUAL
    }
}

impl Booster for Receiver {
    fn set_path(&mut self, _now: Duration, path: &Path) {
        self.payload_end = end_of(path.room).max(self.payload_end);
    }

    fn up(&mut self, now: Duration, packet: Packet, out: &mut Out) {
        if packet.bytes.first() != Some(&FEC) {
            out.up.push(packet);
            return;
        }
        let Ok((header, payload)) = Header::parse(&packet.bytes[1..]) else {
            self.refused += 1;
            return;
        };
        let arrival = self.decode(header, payload);
        if header.is_data() {
            self.pace.on_data();
        } else {
            self.pace.on_repair();
        }
        let passes = header.is_data() && arrival != Ok(Arrival::Duplicate);
        if passes {
            self.pass(now, packet.with_bytes(payload.to_vec()), out);
        }
        while let Some((_, restored)) = self.decoder(header).poll_recovered() {
            let restored = Packet {
                bytes: restored.to_vec(),
                since: packet.since,
                ..Packet::default()
            };
            self.restored += 1;
            self.pass(now, restored, out);
        }
        self.passed += u64::from(passes);
        match arrival {
            Ok(Arrival::Duplicate) => self.duplicates += 1,
            Err(_) => self.refused += 1,
            Ok(_) => {}
        }
    }

    fn counters(&self, each: &mut dyn FnMut(&'static str, u64)) {
        each("passed", self.passed);
        each("restored", self.restored);
        each("duplicates", self.duplicates);
        each("refused", self.refused);
    }
}
