//! Handling of the packets of a site in mode `packet`.

use std::time::Duration;

use units::{ByteSize, Rate};

use super::Class;
use super::boost::Boost;
use crate::reading::{
    Section, section,
    values::{Map, Reading, Size, Span, Switch, WordOr},
    words,
};

/// Default maximum queue where the rate is not known.
const QUEUE_UNKNOWN: u64 = 4 << 20;
/// Lower and upper bound of the default queue where the rate is known.
const QUEUE_MIN: u64 = 64 << 10;
const QUEUE_MAX: u64 = 64 << 20;

section! {
    /// Handling of the packets of a site (`[site.packet]`, `[site.boost]`).
    #[derive(Debug, Clone, PartialEq)]
    pub struct PacketPolicy(s, class: Class, own: Section<'_>) {
        /// Maximum time in pepd's queue before a packet is dropped.
        deadline: Duration =
            Span(Duration::from_millis(1)..=Duration::from_secs(3600)), Self::deadline_of(class);
        /// Maximum bytes of the queue before the link. `None`: as much as the link carries within
        /// the deadline, where its rate is known.
        queue: Option<ByteSize> = queue(), None;
        /// Lowers the MSS of TCP connections to the size that a tunnel packet holds. Networks that
        /// swallow ICMP leave hosts no other way to learn it.
        mss_clamp: bool = Switch, true;
        /// Delivers datagrams of a flow that arrive together to the kernel as one. Filters on the
        /// far side of the tunnel then see one packet.
        join: bool = Switch, true;
        /// Handling of packets while the peer is down.
        on_peer_loss: WithoutPeer = WithoutPeer::WORDS, WithoutPeer::Pass;
        /// Boosters for the packets.
        boost: Boost = own.whole(|s| Boost::read_keys(s, deadline));
    }
}

fn queue() -> impl Reading<Value = Option<ByteSize>> {
    let size = Size(ByteSize::kib(4)..=ByteSize::mib(64));
    WordOr("auto", None, Map(size, Some))
}

impl PacketPolicy {
    /// Maximum bytes queued for a peer with this rate: as configured, else twice the bytes that the
    /// link carries within the deadline, 64 KiB to 64 MiB. 4 MiB where the rate is not known.
    pub fn queue_bytes(&self, rate: Option<Rate>) -> u64 {
        let within = rate.map(|rate| rate.bandwidth_delay_product(self.deadline));
        let auto = within.map_or(QUEUE_UNKNOWN, |bytes| {
            bytes.saturating_mul(2).clamp(QUEUE_MIN, QUEUE_MAX)
        });
        self.queue.map_or(auto, ByteSize::bytes)
    }

    /// Maximum memory for packets of the site, in bytes: its queue, and the retransmission caches
    /// of boosters. Small state of connections comes in addition.
    pub fn memory(&self, rate: Option<Rate>) -> u64 {
        let arq = self.boost.arq.as_ref().map(|arq| arq.cache.bytes());
        let snoop = self.boost.snoop.as_ref().map(|snoop| snoop.cache.bytes());
        let caches = [arq, snoop].into_iter().flatten();
        self.queue_bytes(rate) + caches.sum::<u64>()
    }

    /// Default deadline of a class: a quarter of a second for interactive, as late voice is
    /// useless; 1 s for normal, after which TCP has retransmitted; 4 s for bulk; a minute for
    /// delay-tolerant.
    pub const fn deadline_of(class: Class) -> Duration {
        Duration::from_millis(match class {
            Class::Interactive => 250,
            Class::Normal => 1_000,
            Class::Bulk => 4_000,
            Class::DelayTolerant => 60_000,
        })
    }
}

words! {
    /// Handling of a site's packets while its peer is down.
    pub enum WithoutPeer {
        /// The kernel forwards them as they are.
        Pass = "pass",
        /// pepd drops them.
        Drop = "drop",
    }
}
