mod encoder;
mod hostile;
mod model;
mod residual;
mod timing;

use std::time::Duration;

use super::*;
use crate::{
    overhead::Overhead,
    scheme::{Arrival, Decoder, Encoder, Refused},
    testing::{Draw, for_seeds},
    wire::Header,
};

const T0: Duration = Duration::ZERO;

/// A packet in transit.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Packet {
    header: Header,
    payload: Vec<u8>,
}

fn encoder(k: u8, h: u8) -> EncoderConfig {
    EncoderConfig {
        k,
        overhead: Overhead::of_block(k, h),
        payload_max: 100,
        ..EncoderConfig::default()
    }
}

fn decoder() -> BlockDecoder {
    BlockDecoder::new(&DecoderConfig {
        payload_max: 100,
        ..DecoderConfig::default()
    })
    .unwrap()
}

fn send(encoder: &mut BlockEncoder, payload: &[u8], now: Duration) -> Packet {
    let header = encoder.handle_data(payload, now).unwrap();
    let payload = payload.to_vec();
    Packet { header, payload }
}

fn repairs(encoder: &mut BlockEncoder) -> Vec<Packet> {
    let mut packets = Vec::new();
    while let Some((header, symbol)) = encoder.poll_repair() {
        let payload = symbol.to_vec();
        packets.push(Packet { header, payload });
    }
    packets
}

/// Data packets of one full block of `k`, and its repair packets.
fn block(encoder: &mut BlockEncoder, k: u8, draw: &mut Draw) -> (Vec<Packet>, Vec<Packet>) {
    let data = (0..k).map(|_| {
        let mut payload = vec![0; draw.between(0, 100)];
        draw.fill(&mut payload);
        send(encoder, &payload, T0)
    });
    (data.collect(), repairs(encoder))
}

fn take(decoder: &mut BlockDecoder, packet: &Packet) -> Result<Arrival, Refused> {
    decoder.handle(packet.header, &packet.payload)
}

fn recovered(decoder: &mut BlockDecoder) -> Vec<Packet> {
    let mut packets = Vec::new();
    while let Some((header, payload)) = decoder.poll_recovered() {
        let payload = payload.to_vec();
        packets.push(Packet { header, payload });
    }
    packets
}
