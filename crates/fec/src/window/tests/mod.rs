mod against_model;
mod encoder;
mod hostile;
mod model;
mod no_loss_of_place;
mod system;

use std::time::Duration;

use crate::{
    overhead::Overhead,
    scheme::{Arrival, Decoder, Encoder},
    testing::Draw,
    window::{DecoderConfig, EncoderConfig, WindowDecoder, WindowEncoder},
    wire::Header,
};

/// A header and its payload.
type Packet = (Header, Vec<u8>);

const PACKET_MAX: usize = 48;

/// Returns the packet with a number, always the same.
fn packet_of(id: u32) -> Vec<u8> {
    let mut draw = Draw::new(id.into());
    let mut packet = vec![0; draw.between(0, PACKET_MAX)];
    draw.fill(&mut packet);
    packet
}

fn windows_of(window: u8) -> EncoderConfig {
    EncoderConfig {
        window,
        payload_max: PACKET_MAX,
        ..EncoderConfig::default()
    }
}

fn spans_of(window: u8) -> DecoderConfig {
    DecoderConfig {
        payload_max: PACKET_MAX,
        ..DecoderConfig::for_window(window)
    }
}

fn encoder(config: &EncoderConfig, overhead: Overhead) -> WindowEncoder {
    let config = EncoderConfig {
        overhead,
        ..config.clone()
    };
    WindowEncoder::new(config).unwrap()
}

/// Feeds the encoder `count` packets, and returns its output in the order of sending.
fn send(encoder: &mut WindowEncoder, first: u32, count: u32) -> Vec<Packet> {
    let mut sent = Vec::new();
    for id in (0..count).map(|i| first.wrapping_add(i)) {
        let packet = packet_of(id);
        let header = encoder.handle_data(&packet, Duration::ZERO).unwrap();
        assert_eq!(header, Header::WindowData { id });
        sent.push((header, packet));
        sent.extend(repairs(encoder));
    }
    sent
}

fn repairs(encoder: &mut WindowEncoder) -> Vec<Packet> {
    let mut repairs = Vec::new();
    while let Some((header, symbol)) = encoder.poll_repair() {
        repairs.push((header, symbol.to_vec()));
    }
    repairs
}

fn decoder(window: u8) -> WindowDecoder {
    WindowDecoder::new(&spans_of(window)).unwrap()
}

/// Removes the restored packets, and checks their content.
fn restored(decoder: &mut WindowDecoder) -> Vec<u32> {
    let mut ids = Vec::new();
    while let Some((header, packet)) = decoder.poll_recovered() {
        let Header::WindowData { id } = header else {
            panic!("{header:?}");
        };
        assert_eq!(packet, packet_of(id), "the content of {id}");
        ids.push(id);
    }
    ids
}

/// Passes a packet to the decoder; returns its use and the restored packets.
fn receive(decoder: &mut WindowDecoder, (header, payload): &Packet) -> (Arrival, Vec<u32>) {
    let arrival = decoder.handle(*header, payload).unwrap();
    (arrival, restored(decoder))
}
