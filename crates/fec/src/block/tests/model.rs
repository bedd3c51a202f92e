//! Valid streams over bad links: the decoder against a model that only counts.

use std::collections::{BTreeMap, BTreeSet};

use super::*;

/// Data packets that must have been passed on, given the arrivals.
#[derive(Default)]
struct Model {
    blocks: BTreeMap<u32, Arrived>,
}

#[derive(Default)]
struct Arrived {
    data: BTreeSet<u8>,
    rows: BTreeSet<u8>,
    k: Option<u8>,
    complete: bool,
}

impl Model {
    fn arrives(&mut self, header: Header) {
        let arrived = self.blocks.entry(block_of(header)).or_default();
        match header {
            Header::BlockData { index, .. } => {
                arrived.data.insert(index);
            }
            Header::BlockRepair { row, k, .. } => {
                arrived.k = Some(k);
                arrived.rows.insert(row);
            }
            header => panic!("{header:?} of another scheme"),
        }
        let symbols = arrived.data.len() + arrived.rows.len();
        arrived.complete |= arrived.k.is_some_and(|k| symbols >= k.into());
    }

    fn passed_on(&self, block: u32) -> BTreeSet<u8> {
        match self.blocks.get(&block) {
            Some(Arrived {
                complete: true,
                k: Some(k),
                ..
            }) => (0..*k).collect(),
            Some(arrived) => arrived.data.clone(),
            None => BTreeSet::new(),
        }
    }
}

/// Receiver: the packets that it has passed on, each once and as it was sent.
struct Receiver<'a> {
    decoder: BlockDecoder,
    sent: &'a BTreeMap<(u32, u8), Vec<u8>>,
    passed_on: BTreeMap<u32, BTreeSet<u8>>,
}

impl Receiver<'_> {
    fn handle(&mut self, packet: &Packet) {
        let arrival = take(&mut self.decoder, packet).unwrap();
        if let Header::BlockData { block, index } = packet.header {
            let known = self.passed_on.entry(block).or_default().contains(&index);
            let expected = if known {
                Arrival::Duplicate
            } else {
                Arrival::Data
            };
            assert_eq!(arrival, expected, "{block} {index}");
        } else {
            assert_eq!(arrival, Arrival::Repair);
        }
        if arrival == Arrival::Data {
            self.pass_on(packet);
        }
        for packet in recovered(&mut self.decoder) {
            self.pass_on(&packet);
        }
    }

    fn pass_on(&mut self, packet: &Packet) {
        let Header::BlockData { block, index } = packet.header else {
            panic!("{:?} passed on", packet.header);
        };
        assert_eq!(
            packet.payload,
            self.sent[&(block, index)],
            "{block} {index} as sent"
        );
        let new = self.passed_on.entry(block).or_default().insert(index);
        assert!(new, "{block} {index} passed on twice");
    }
}

/// All packets of an encoder with random settings for `packets` data packets, some of them in short
/// blocks.
fn stream(draw: &mut Draw, packets: usize) -> Vec<Packet> {
    let (k, h) = (draw.between(1, 40) as u8, draw.between(0, 20) as u8);
    let config = EncoderConfig {
        depth: [1, 1, 2, 4, 16][draw.below(5)],
        first_block: [0, u32::MAX - 3, draw.next() as u32][draw.below(3)],
        ..encoder(k, h)
    };
    let mut encoder = BlockEncoder::new(config).unwrap();
    let (drained, longest) = (0.1 * draw.unit(), draw.between(0, 100));
    let mut stream = Vec::new();
    for _ in 0..packets {
        let mut payload = vec![0; draw.between(0, longest)];
        draw.fill(&mut payload);
        stream.push(send(&mut encoder, &payload, T0));
        if draw.chance(drained) {
            encoder.handle_drained(T0);
        }
        stream.extend(repairs(&mut encoder));
    }
    stream
}

/// Loses, duplicates and reorders: a packet falls behind by up to `jitter` others.
fn through(link: &mut Draw, stream: &[Packet], jitter: usize) -> Vec<Packet> {
    let (loss, twice) = (0.5 * link.unit() * link.unit(), 0.2 * link.unit());
    let mut arrivals = Vec::new();
    for (place, packet) in stream.iter().enumerate() {
        let copies = usize::from(!link.chance(loss)) + usize::from(link.chance(twice));
        for _ in 0..copies {
            arrivals.push((place + link.between(0, jitter), packet.clone()));
        }
    }
    arrivals.sort_by_key(|(place, _)| *place);
    arrivals.into_iter().map(|(_, packet)| packet).collect()
}

fn block_of(header: Header) -> u32 {
    match header {
        Header::BlockData { block, .. } | Header::BlockRepair { block, .. } => block,
        header => panic!("{header:?} of another scheme"),
    }
}

fn data_of(stream: &[Packet]) -> BTreeMap<(u32, u8), Vec<u8>> {
    let data = stream.iter().filter_map(|packet| match packet.header {
        Header::BlockData { block, index } => Some(((block, index), packet.payload.clone())),
        _ => None,
    });
    data.collect()
}

fn receiver<'a>(decoder: &DecoderConfig, sent: &'a BTreeMap<(u32, u8), Vec<u8>>) -> Receiver<'a> {
    Receiver {
        decoder: BlockDecoder::new(decoder).unwrap(),
        sent,
        passed_on: BTreeMap::new(),
    }
}

#[test]
fn passes_on_just_what_has_arrived_and_what_k_packets_of_a_block_give() {
    for_seeds(150, |draw| {
        let stream = stream(draw, 600);
        let jitter = [0, 3, 40, 200][draw.below(4)];
        let sent = data_of(&stream);
        let config = DecoderConfig {
            payload_max: 100,
            blocks: 1024,
            packets: 1 << 14,
            memory: 4096,
        };
        let mut receiver = receiver(&config, &sent);
        let mut model = Model::default();
        for packet in through(draw, &stream, jitter) {
            model.arrives(packet.header);
            receiver.handle(&packet);
            let (Header::BlockData { block, .. } | Header::BlockRepair { block, .. }) =
                packet.header
            else {
                panic!("{packet:?}");
            };
            let passed_on = receiver.passed_on.get(&block).cloned().unwrap_or_default();
            assert_eq!(passed_on, model.passed_on(block), "block {block}");
        }
        check_stats(&receiver, &model);
        assert_eq!(receiver.decoder.stats().evicted, 0);
    });
}

fn check_stats(receiver: &Receiver<'_>, model: &Model) {
    let stats = receiver.decoder.stats();
    let count =
        |blocks: &BTreeMap<u32, BTreeSet<u8>>| blocks.values().map(BTreeSet::len).sum::<usize>();
    assert_eq!(
        (stats.data + stats.recovered) as usize,
        count(&receiver.passed_on)
    );
    let open = model.blocks.values().filter(|arrived| !arrived.complete);
    assert_eq!(receiver.decoder.blocks(), open.clone().count());
    let kept = open.map(|arrived| arrived.data.len() + arrived.rows.len());
    assert_eq!(
        receiver.decoder.packets(),
        kept.sum(),
        "only open blocks are kept"
    );
    assert_eq!(
        (stats.refused(), stats.late, stats.resyncs, stats.restarted),
        (0, 0, 0, 0)
    );
    assert_eq!(stats.recovered_dropped, 0);
}

#[test]
fn with_little_memory_passes_on_what_was_sent_each_once() {
    for_seeds(150, |draw| {
        let stream = stream(draw, 600);
        let jitter = [0, 3, 40, 200][draw.below(4)];
        let sent = data_of(&stream);
        let config = DecoderConfig {
            payload_max: 100,
            blocks: draw.between(1, 4),
            packets: 256,
            memory: 1024,
        };
        let mut receiver = receiver(&config, &sent);
        for packet in through(draw, &stream, jitter) {
            receiver.handle(&packet);
            assert!(receiver.decoder.blocks() <= config.blocks);
            assert!(receiver.decoder.packets() <= config.packets);
        }
        let most = (256 + 255) * 102 + 1024 * 64;
        assert!(
            receiver.decoder.memory() <= most,
            "{} bytes",
            receiver.decoder.memory()
        );
    });
}

/// Without reordering, all packets are accounted for: each packet sent is received, recovered,
/// known to be lost, or of the last blocks, which are in work or unknown.
#[test]
fn every_packet_is_accounted_for() {
    for_seeds(100, |draw| {
        let config = encoder(draw.between(1, 30) as u8, draw.between(1, 10) as u8);
        let k = u64::from(config.k);
        let mut encoder = BlockEncoder::new(config).unwrap();
        let config = DecoderConfig {
            blocks: 2,
            ..DecoderConfig::default()
        };
        let mut decoder = BlockDecoder::new(&config).unwrap();
        for _ in 0..100 {
            let (data, repair) = block(&mut encoder, k as u8, draw);
            // One packet of each block arrives: the last repair packet.
            let (last, others) = repair.split_last().unwrap();
            for packet in data.iter().chain(others) {
                if draw.chance(0.8) {
                    take(&mut decoder, packet).unwrap();
                }
                recovered(&mut decoder);
            }
            take(&mut decoder, last).unwrap();
            recovered(&mut decoder);
        }
        let stats = decoder.stats();
        let unfinished = 2 * k;
        let known = stats.data + stats.recovered + stats.lost;
        assert!(
            (100 * k - unfinished..=100 * k).contains(&known),
            "{stats:?}"
        );
        assert!(stats.lost_blocks * k >= stats.lost && stats.lost >= stats.lost_blocks);
        assert_eq!(stats.evicted, stats.lost_blocks, "k was known of all");
    });
}

#[test]
fn a_block_that_loses_nothing_is_not_decoded() {
    #[derive(Debug)]
    struct NoDecoding;
    impl crate::code::ErasureCode for NoDecoding {
        fn encode(
            &mut self,
            _: &[&[u8]],
            _: usize,
            _: &mut [&mut [u8]],
        ) -> Result<(), crate::code::CodeError> {
            unreachable!("a decoder does not encode")
        }

        fn decode(
            &mut self,
            _: usize,
            _: &[(u8, &[u8])],
            _: &[u8],
            _: &mut [&mut [u8]],
        ) -> Result<(), crate::code::CodeError> {
            panic!("decoded without need")
        }
    }
    let mut encoder = BlockEncoder::new(encoder(7, 3)).unwrap();
    let mut decoder = BlockDecoder::with_code(&DecoderConfig::default(), NoDecoding).unwrap();
    for _ in 0..10 {
        let (data, repair) = block(&mut encoder, 7, &mut Draw::new(3));
        for packet in data.iter().chain(&repair) {
            decoder.handle(packet.header, &packet.payload).unwrap();
            assert_eq!(decoder.poll_recovered(), None);
        }
        assert_eq!((decoder.blocks(), decoder.packets()), (0, 0));
    }
    assert_eq!(
        (decoder.stats().data, decoder.stats().repairs_spare),
        (70, 30)
    );
}

#[test]
fn memory_does_not_grow_with_the_stream() {
    let mut encoder = BlockEncoder::new(encoder(20, 6)).unwrap();
    let mut decoder = decoder();
    let mut run = || {
        let mut draw = Draw::new(0);
        for _ in 0..300 {
            let (data, repair) = block(&mut encoder, 20, &mut draw);
            for packet in data.iter().chain(&repair).filter(|_| draw.chance(0.7)) {
                take(&mut decoder, packet).unwrap();
                recovered(&mut decoder);
            }
        }
        assert!(decoder.stats().recovered > 0 && decoder.stats().lost > 0);
        decoder.memory()
    };
    run();
    let full = run();
    assert_eq!(run(), full);
}
