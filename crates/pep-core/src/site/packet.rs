//! What is done with the packets of a site in mode `packet`.

use std::time::Duration;

use units::{ByteSize, Rate};

use super::Class;
use super::boost::Boost;
use crate::reading::{
    Section, section,
    values::{Map, Reading, Size, Span, Switch, WordOr},
    words,
};

/// What is queued at most where nothing is said, and the rate is not known.
const QUEUE_UNKNOWN: u64 = 4 << 20;
/// The least and the most that is taken where the rate is known.
const QUEUE_MIN: u64 = 64 << 10;
const QUEUE_MAX: u64 = 64 << 20;

section! {
    /// How the packets of a site are carried to its peer (`[site.packet]`, `[site.boost]`).
    #[derive(Debug, Clone, PartialEq)]
    pub struct PacketPolicy(s, class: Class, own: Section<'_>) {
        /// How long a packet may wait in our queue before it is dropped.
        deadline: Duration =
            Span(Duration::from_millis(1)..=Duration::from_secs(3600)), Self::deadline_of(class);
        /// Bytes of the queue before the link at most; `None`: as much as the link carries within
        /// the deadline where its rate is known.
        queue: Option<ByteSize> = queue(), None;
        /// Whether the MSS of TCP connections is lowered to what a packet of the tunnel holds:
        /// networks that swallow ICMP leave hosts no other way to know.
        mss_clamp: bool = Switch, true;
        /// Whether datagrams of a flow that arrive together go to the kernel as one. Filters on the
        /// far side of the tunnel see one packet then.
        join: bool = Switch, true;
        /// What becomes of packets while the peer is gone.
        on_peer_loss: WithoutPeer = WithoutPeer::WORDS, WithoutPeer::Pass;
        /// What is done with the packets.
        boost: Boost = own.whole(|s| Boost::read_keys(s, deadline));
    }
}

fn queue() -> impl Reading<Value = Option<ByteSize>> {
    let size = Size(ByteSize::kib(4)..=ByteSize::mib(64));
    WordOr("auto", None, Map(size, Some))
}

impl PacketPolicy {
    /// What may be queued, in bytes, where the peer is reached at this rate: as stated, else twice what the link carries within the
    /// deadline, 64 KiB to 64 MiB, or 4 MiB where the rate is not known.
    pub fn queue_bytes(&self, rate: Option<Rate>) -> u64 {
        let within = rate.map(|rate| rate.bandwidth_delay_product(self.deadline));
        let auto = within.map_or(QUEUE_UNKNOWN, |bytes| {
            bytes.saturating_mul(2).clamp(QUEUE_MIN, QUEUE_MAX)
        });
        self.queue.map_or(auto, ByteSize::bytes)
    }

    /// What packets of the site may hold of memory, in bytes: its queue, and what boosters keep to send it again. Small state of
    /// connections comes in addition.
    pub fn memory(&self, rate: Option<Rate>) -> u64 {
        let arq = self.boost.arq.as_ref().map(|arq| arq.cache.bytes());
        let snoop = self.boost.snoop.as_ref().map(|snoop| snoop.cache.bytes());
        let caches = [arq, snoop].into_iter().flatten();
        self.queue_bytes(rate) + caches.sum::<u64>()
    }

    /// How long packets of a class may wait: a quarter of a second where somebody talks, as voice is of no use later; 1 s by
    /// default, after which TCP has sent the packet again; 4 s for bulk; a minute for what can wait.
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
    /// What becomes of a site's packets while its peer is gone.
    pub enum WithoutPeer {
        /// The kernel forwards them as they are.
        Pass = "pass",
        /// They are dropped.
        Drop = "drop",
    }
}
