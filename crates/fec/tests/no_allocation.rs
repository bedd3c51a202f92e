//! Packets cost no allocation once encoders and decoders are warm. The seed is fixed, as the losses
//! decide which memory has been needed before.

use std::time::Duration;

use allocation_counter::measure;
use fec::{
    block::{self, BlockDecoder, BlockEncoder},
    overhead::Overhead,
    scheme::{Decoder, Encoder},
    theory::{Channel, Draws},
    window::{self, WindowDecoder, WindowEncoder},
    wire::Header,
};

const PAYLOAD_MAX: usize = 1400;

/// Encoder and decoder with a lossy link in between that holds nothing.
struct Path<E, D> {
    encoder: E,
    decoder: D,
    link: Draws,
    sent: u64,
    restored: u64,
}

impl<E: Encoder, D: Decoder> Path<E, D> {
    fn new(encoder: E, decoder: D) -> Self {
        let link = Channel::gilbert(0.05, 2.0).expect("a channel").draws(1);
        Self {
            encoder,
            decoder,
            link,
            sent: 0,
            restored: 0,
        }
    }

    fn send(&mut self, packets: u64) {
        let data = [7; PAYLOAD_MAX];
        for _ in 0..packets {
            self.sent += 1;
            let now = Duration::from_millis(self.sent);
            let size = (self.sent * 337 % (PAYLOAD_MAX as u64 + 1)) as usize;
            let packet = &data[..size];
            let header = self.encoder.handle_data(packet, now).expect("not too long");
            self.deliver(header, packet);
            if self.sent.is_multiple_of(50) {
                self.encoder.handle_drained(now);
            }
            self.encoder.handle_timeout(now);
            self.deliver_repairs();
        }
    }

    fn deliver_repairs(&mut self) {
        while let Some((header, symbol)) = self.encoder.poll_repair() {
            if self.link.next() == Some(false) {
                self.decoder.handle(header, symbol).expect("honest");
                self.restored += restored(&mut self.decoder);
            }
        }
    }

    fn deliver(&mut self, header: Header, packet: &[u8]) {
        if self.link.next() == Some(false) {
            self.decoder.handle(header, packet).expect("honest");
            self.restored += restored(&mut self.decoder);
        }
    }

    /// Allocations while `packets` packets are sent, and lost ones restored.
    fn allocations(&mut self, packets: u64) -> u64 {
        self.send(4 * packets);
        let before = self.restored;
        let count = measure(|| self.send(packets)).count_total;
        assert!(
            self.restored - before > packets / 100,
            "nothing was lost and restored"
        );
        count
    }
}

fn restored(decoder: &mut impl Decoder) -> u64 {
    let mut restored = 0;
    while decoder.poll_recovered().is_some() {
        restored += 1;
    }
    restored
}

#[test]
fn packets_in_blocks_allocate_nothing() {
    for depth in [1, 4] {
        let encoder = BlockEncoder::new(block::EncoderConfig {
            k: 20,
            depth,
            payload_max: PAYLOAD_MAX,
            overhead: Overhead::of_block(20, 6),
            ..block::EncoderConfig::default()
        });
        let decoder = BlockDecoder::new(&block::DecoderConfig {
            payload_max: PAYLOAD_MAX,
            blocks: 16,
            packets: 512,
            ..block::DecoderConfig::default()
        });
        let mut path = Path::new(encoder.expect("sound"), decoder.expect("sound"));
        assert_eq!(path.allocations(20_000), 0, "depth {depth}");
    }
}

#[test]
fn packets_in_windows_allocate_nothing() {
    for window in [3, 128] {
        let encoder = WindowEncoder::new(window::EncoderConfig {
            window,
            payload_max: PAYLOAD_MAX,
            overhead: Overhead::of_block(20, 6),
            ..window::EncoderConfig::default()
        });
        let decoder = WindowDecoder::new(&window::DecoderConfig {
            payload_max: PAYLOAD_MAX,
            ..window::DecoderConfig::for_window(window)
        });
        let mut path = Path::new(encoder.expect("sound"), decoder.expect("sound"));
        assert_eq!(path.allocations(5_000), 0, "window {window}");
    }
}
