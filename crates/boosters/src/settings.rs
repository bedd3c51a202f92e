//! Construction of a site's chain from its settings.

use std::time::Duration;

use crate::{
    ack_filter, ack_reconstruction, arq,
    chain::{Chain, QueueLayer, Receiver},
    compress, congestion,
    data_filter::DataFilter,
    divacks, fec, jitter,
    queue::Queue,
    rule::Rule,
    snoop,
    stack::Layer,
    udp_checksum::UdpChecksum,
    wire::Abilities,
};

/// Enabled booster.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Boosted<T> {
    /// Conditions under which it is on.
    pub rule: Rule,
    /// Settings of the booster.
    pub config: T,
}

/// Settings of a site; a booster that is `None` is not used.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings {
    /// Maximum bytes in the queue before the link.
    pub queue: usize,
    /// Maximum waiting time in the queue.
    pub deadline: Duration,
    /// Determines the first message numbers; different for each process and chain.
    pub seed: u64,
    /// Adds UDP checksums.
    pub checksum: Option<Boosted<()>>,
    /// Drops TCP data that the other side already has.
    pub data_filter: Option<Boosted<()>>,
    /// Retransmits TCP segments on behalf of senders.
    pub snoop: Option<Boosted<snoop::Config>>,
    /// Splits acknowledgements.
    pub divacks: Option<Boosted<divacks::Config>>,
    /// Drops acknowledgements that later ones supersede.
    pub ack_filter: Option<Boosted<ack_filter::Config>>,
    /// Signals congestion of the queue to senders.
    pub congestion: Option<Boosted<congestion::Config>>,
    /// Merges acknowledgements, and regenerates them at the far end.
    pub ack_reconstruction: Option<Boosted<ack_reconstruction::Config>>,
    /// Restores the spacing of packets.
    pub jitter: Option<Boosted<jitter::Config>>,
    /// Compresses headers and payloads.
    pub compress: Option<Boosted<compress::Config>>,
    /// Retransmits lost messages.
    pub arq: Option<Boosted<arq::Config>>,
    /// Sends repair packets.
    pub fec: Option<Boosted<fec::Config>>,
}

/// Creates the chain for these settings.
#[must_use]
pub fn chain(settings: &Settings) -> Chain {
    let queue = Queue::new(settings.queue, Some(settings.deadline));
    Chain::new(upper(settings), at_queue(settings), queue, lower(settings))
}

/// Returns the maximum number of bytes that the chain adds to a packet.
#[must_use]
pub fn overhead(settings: &Settings) -> usize {
    let all = [
        settings
            .ack_reconstruction
            .map(|_| ack_reconstruction::OVERHEAD),
        settings.jitter.map(|_| jitter::HEADER),
        settings.compress.map(|_| compress::OVERHEAD),
        settings.arq.map(|_| arq::OVERHEAD),
        settings.fec.map(|_| fec::OVERHEAD),
    ];
    all.into_iter().flatten().sum()
}

fn upper(settings: &Settings) -> Vec<Layer> {
    let mut layers = Vec::new();
    if let Some(checksum) = &settings.checksum {
        layers.push(Layer::new("checksum", 0, checksum.rule, UdpChecksum::new()));
    }
    if let Some(filter) = &settings.data_filter {
        layers.push(Layer::new("data_filter", 0, filter.rule, DataFilter::new()));
    }
    if let Some(snoop) = settings.snoop {
        let snooping = snoop::Snoop::new(snoop.config);
        layers.push(Layer::new("snoop", 0, snoop.rule, snooping));
    }
    if let Some(divacks) = settings.divacks {
        let dividing = divacks::DivAcks::new(divacks.config);
        layers.push(Layer::new("divacks", 0, divacks.rule, dividing));
    }
    layers
}

fn at_queue(settings: &Settings) -> Vec<QueueLayer> {
    let mut layers = Vec::new();
    // Before the filter, which would otherwise leave none to regenerate.
    if let Some(acks) = settings.ack_reconstruction {
        let collapse = ack_reconstruction::Collapse::new(acks.config);
        let name = "ack_reconstruction";
        layers.push(QueueLayer::new(name, Abilities::ACKS, acks.rule, collapse));
    }
    if let Some(filter) = settings.ack_filter {
        let filtering = ack_filter::AckFilter::new(filter.config);
        layers.push(QueueLayer::new("ack_filter", 0, filter.rule, filtering));
    }
    if let Some(congestion) = settings.congestion {
        let booster = congestion::Congestion::new(congestion.config);
        layers.push(QueueLayer::new("congestion", 0, congestion.rule, booster));
    }
    layers
}

fn lower(settings: &Settings) -> Vec<Layer> {
    let mut layers = Vec::new();
    if let Some(compress) = settings.compress {
        let sender = compress::Sender::new(compress.config);
        let needs = Abilities::COMPRESS;
        layers.push(Layer::new("compress", needs, compress.rule, sender));
    }
    if let Some(jitter) = settings.jitter {
        let sender = jitter::Sender::new(jitter.config);
        layers.push(Layer::new("jitter", Abilities::JITTER, jitter.rule, sender));
    }
    if let Some(arq) = settings.arq {
        let config = arq::Config {
            seed: settings.seed,
            ..arq.config
        };
        let sender = arq::Sender::new(config);
        layers.push(Layer::new("arq", Abilities::ARQ, arq.rule, sender));
    }
    if let Some(fec) = settings.fec {
        let config = fec::Config {
            waiting_max: settings.deadline / 2,
            seed: settings.seed,
            ..fec.config
        };
        let sender = fec::Sender::new(config);
        layers.push(Layer::new("fec", Abilities::FEC, fec.rule, sender));
    }
    layers
}

/// Connections whose acknowledgements are spread at a time.
const SPREAD_MAX: usize = 1024;

/// Creates the receiver for any chain, with messages of up to `room` bytes and blocks decoded by
/// `code`.
#[must_use]
pub fn receiver(room: usize, code: fec::Backend) -> Receiver {
    let always = Rule::ALWAYS;
    let longest = room.max(1500);
    Receiver::new(vec![
        Layer::new(
            "ack_reconstruction",
            0,
            always,
            ack_reconstruction::Regenerate::new(SPREAD_MAX),
        ),
        Layer::new("compress", 0, always, compress::Receiver::new()),
        Layer::new(
            "jitter",
            0,
            always,
            jitter::Receiver::new(jitter::BYTES_MAX),
        ),
        Layer::new("arq", 0, always, arq::Receiver::new()),
        Layer::new(
            "fec",
            0,
            always,
            fec::Receiver::new(longest).with_code(code),
        ),
    ])
}
