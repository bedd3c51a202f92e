//! The receiving side.

use std::time::Duration;

use fec::{
    block::{self, BlockDecoder},
    scheme::{Arrival, Decoder},
    window::{self, WindowDecoder},
    wire::Header,
};

use super::WINDOW_MAX;
use crate::{
    booster::{Booster, Out},
    packet::Packet,
    wire::FEC,
};

/// Restores what was lost.
#[derive(Debug)]
pub struct Receiver {
    payload_max: usize,
    /// Made when they are needed.
    window: Option<Box<WindowDecoder>>,
    block: Option<Box<BlockDecoder>>,
    passed: u64,
    restored: u64,
    duplicates: u64,
    refused: u64,
}

impl Receiver {
    /// For messages of at most so many bytes.
    #[must_use]
    pub fn new(payload_max: usize) -> Self {
        Self {
            payload_max: payload_max.clamp(1, 65_535),
            window: None,
            block: None,
            passed: 0,
            restored: 0,
            duplicates: 0,
            refused: 0,
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
                let decoder = self.block.get_or_insert_with(|| {
                    let config = block::DecoderConfig {
                        payload_max,
                        blocks: 192,
                        packets: 4096,
                        ..block::DecoderConfig::default()
                    };
                    Box::new(BlockDecoder::new(&config).expect("all values are in range"))
                });
                &mut **decoder
            }
        }
    }
}

impl Booster for Receiver {
    fn up(&mut self, _now: Duration, packet: Packet, out: &mut Out) {
        if packet.bytes.first() != Some(&FEC) {
            out.up.push(packet);
            return;
        }
        let Ok((header, payload)) = Header::parse(&packet.bytes[1..]) else {
            self.refused += 1;
            return;
        };
        let decoder = self.decoder(header);
        let arrival = decoder.handle(header, payload);
        let data = match arrival {
            Ok(Arrival::Data | Arrival::Late) => Some(packet.with_bytes(payload.to_vec())),
            _ => None,
        };
        let passes = data.is_some();
        out.up.extend(data);
        let before = out.up.len();
        while let Some((_, restored)) = decoder.poll_recovered() {
            out.up.push(Packet {
                bytes: restored.to_vec(),
                since: packet.since,
                ..Packet::default()
            });
        }
        self.restored += (out.up.len() - before) as u64;
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
