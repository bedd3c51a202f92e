//! FEC blocks: an encoder, an arbitrary link, a decoder.

use std::collections::{BTreeMap, BTreeSet};

use arbitrary::Arbitrary;
use fec::{
    block::{BlockDecoder, BlockEncoder, DecoderConfig, EncoderConfig},
    overhead::Overhead,
    scheme::{Arrival, Decoder},
    wire::Header,
};

use crate::link::{self, Event, PAYLOAD_MAX, Receiver, Sender};

/// Settings and events.
#[derive(Arbitrary, Clone, Debug)]
pub struct Case {
    k: u8,
    h: u8,
    depth: u8,
    blocks: u8,
    memory: u16,
    first_block: u32,
    hostile: bool,
    events: Vec<Event>,
}

/// Checks that nothing panics and that memory is bounded, and:
///
/// - Without hostile packets every delivered packet was sent, and is delivered once unless the
///   decoder is uncertain; no packet is rejected. A block is delivered completely once k of its
///   packets have arrived, unless it was evicted.
/// - After hostile packets, an honest stream that begins anywhere is soon decoded.
pub fn run(case: &Case) {
    let encoder = EncoderConfig {
        k: case.k.max(1),
        depth: 1 + usize::from(case.depth % 8),
        payload_max: PAYLOAD_MAX,
        overhead: Overhead::of_block(case.k.max(1), case.h),
        first_block: case.first_block,
        ..EncoderConfig::default()
    };
    let decoder = DecoderConfig {
        payload_max: PAYLOAD_MAX,
        blocks: 1 + usize::from(case.blocks % 32),
        packets: 256,
        memory: 2 + usize::from(case.memory % 1024),
    };
    let mut sender = Sender::new(BlockEncoder::new(encoder).expect("in range"));
    let mut checker = Checker::new(decoder);
    for events in case.events.chunks(8) {
        link::play(
            &mut sender,
            &mut checker,
            events,
            case.hostile,
            case.first_block,
        );
        for packet in &sender.sent[checker.sent..] {
            if let Header::BlockData { block, index } = packet.header {
                checker.data.insert((block, index), packet.payload.clone());
            }
        }
        checker.sent = sender.sent.len();
        if !case.hostile {
            checker.check_honest();
        }
    }
    if case.hostile {
        checker.recovers(case.first_block.rotate_left(16));
    }
}

#[derive(Default)]
struct Arrived {
    k: Option<u8>,
    data: BTreeSet<u8>,
    rows: BTreeSet<u8>,
}

struct Checker {
    config: DecoderConfig,
    decoder: BlockDecoder,
    /// Count of sent packets known here, and the data packets among them.
    sent: usize,
    data: BTreeMap<(u32, u8), Vec<u8>>,
    /// Packets delivered since the last check.
    passed_on: Vec<(u32, u8, Vec<u8>)>,
    ever: BTreeSet<(u32, u8)>,
    /// Delivered packets of which the decoder is certain.
    once: BTreeSet<(u32, u8)>,
    twice: bool,
    /// Packets received of each block.
    arrived: BTreeMap<u32, Arrived>,
}

impl Checker {
    fn new(config: DecoderConfig) -> Self {
        Self {
            decoder: BlockDecoder::new(&config).expect("in range"),
            config,
            sent: 0,
            data: BTreeMap::new(),
            passed_on: Vec::new(),
            ever: BTreeSet::new(),
            once: BTreeSet::new(),
            twice: false,
            arrived: BTreeMap::new(),
        }
    }

    fn bounded(&self) {
        let Self {
            config, decoder, ..
        } = self;
        assert!(decoder.blocks() <= config.blocks);
        assert!(decoder.packets() <= config.packets);
        let symbols = (config.packets + 255) * (PAYLOAD_MAX + 2);
        assert!(decoder.memory() <= symbols + 64 * config.memory.next_power_of_two());
    }

    fn check_honest(&mut self) {
        for (block, index, payload) in self.passed_on.drain(..) {
            assert_eq!(self.data.get(&(block, index)), Some(&payload), "as sent");
        }
        let stats = self.decoder.stats();
        assert_eq!(
            (stats.refused(), stats.corrupt_blocks, stats.restarted),
            (0, 0, 0)
        );
        assert!(!self.twice || stats.resyncs > 0, "passed on twice");
        if stats.resyncs + stats.evicted + stats.late + stats.repairs_far > 0 {
            return;
        }
        for (block, Arrived { k, data, rows }) in &self.arrived {
            let Some(k) = k.filter(|k| data.len() + rows.len() >= usize::from(*k)) else {
                continue;
            };
            assert!(
                (0..k).all(|index| self.ever.contains(&(*block, index))),
                "block {block}"
            );
        }
    }

    /// Starts a new encoder at `first_block`: the decoder must lock on to it within three blocks,
    /// unless hostile packets use these numbers.
    fn recovers(&mut self, first_block: u32) {
        let config = EncoderConfig {
            k: 10,
            payload_max: PAYLOAD_MAX,
            overhead: Overhead::of_block(10, 2),
            first_block,
            ..EncoderConfig::default()
        };
        let mut sender = Sender::new(BlockEncoder::new(config).expect("in range"));
        let touched: BTreeSet<u32> = self.arrived.keys().copied().collect();
        for block in 0..6u32 {
            let before = sender.sent.len();
            (0..10).for_each(|_| sender.data(30));
            for packet in &sender.sent[before + 2..] {
                link::deliver(self, packet.header, &packet.payload);
            }
            let number = first_block.wrapping_add(block);
            let all = (0..10).all(|index| self.ever.contains(&(number, index)));
            assert!(
                all || block < 3 || touched.contains(&number),
                "block {number}"
            );
        }
    }

    fn pass_on(&mut self, header: Header, payload: &[u8]) {
        let Header::BlockData { block, index } = header else {
            panic!("{header:?} passed on");
        };
        self.passed_on.push((block, index, payload.to_vec()));
        self.ever.insert((block, index));
    }
}

impl Receiver for Checker {
    type Decoder = BlockDecoder;

    fn decoder(&mut self) -> &mut BlockDecoder {
        &mut self.decoder
    }

    fn arrived(&mut self, header: Header, payload: &[u8], arrival: Option<Arrival>) {
        self.bounded();
        assert!(self.decoder.poll_recovered().is_none());
        match header {
            Header::BlockData { block, index } => {
                self.arrived.entry(block).or_default().data.insert(index);
                if arrival == Some(Arrival::Data) {
                    self.twice |= !self.once.insert((block, index));
                }
                if matches!(arrival, Some(Arrival::Data | Arrival::Late)) {
                    self.pass_on(header, payload);
                }
            }
            Header::BlockRepair { block, row, k, .. } => {
                let arrived = self.arrived.entry(block).or_default();
                arrived.k = Some(k);
                arrived.rows.insert(row);
            }
            _ => assert_eq!(arrival, None, "of another scheme"),
        }
    }

    fn recovered(&mut self, header: Header, payload: &[u8]) {
        if let Header::BlockData { block, index } = header {
            self.twice |= !self.once.insert((block, index));
        }
        self.pass_on(header, payload);
    }
}
