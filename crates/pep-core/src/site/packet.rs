//! What is done with the packets of a site in mode `packet`.

use std::time::Duration;

use units::{ByteSize, Rate};

use super::Class;
use super::boost::Boost;

/// What is queued at most where nothing is said, and the rate is not known.
const QUEUE_UNKNOWN: u64 = 4 << 20;
/// The least and the most that is taken where the rate is known.
const QUEUE_MIN: u64 = 64 << 10;
const QUEUE_MAX: u64 = 64 << 20;

/// How the packets of a site are carried to its peer (`[site.packet]`, `[site.boost]`).
#[derive(Debug, Clone, PartialEq)]
pub struct PacketPolicy {
    /// How long a packet may wait in our queue before it is dropped, 1 ms to 1 h; default
    /// [`deadline_of`](Self::deadline_of) the site's class.
    pub deadline: Duration,
    /// Bytes of the queue before the link at most, 4 KiB to 64 MiB; default `None`, as much as the link carries within the deadline
    /// where its rate is known.
    pub queue: Option<ByteSize>,
    /// Whether the MSS of TCP connections is lowered to what a packet of the tunnel holds; default true:
    /// networks that swallow ICMP leave hosts no other way to know.
    pub mss_clamp: bool,
    /// Whether datagrams of a flow that arrive together go to the kernel as one; default true. Filters on the far side of the tunnel see
    /// one packet then.
    pub join: bool,
    /// What becomes of packets while the peer is gone; default [`WithoutPeer::Pass`].
    pub on_peer_loss: WithoutPeer,
    /// What is done with the packets; default nothing.
    pub boost: Boost,
}

impl PacketPolicy {
    /// Every default, for packets of this class.
    pub fn with_defaults(class: Class) -> Self {
        Self {
            deadline: Self::deadline_of(class),
            queue: None,
            mss_clamp: true,
            join: true,
            on_peer_loss: WithoutPeer::default(),
            boost: Boost::default(),
        }
    }

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

/// What becomes of a site's packets while its peer is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WithoutPeer {
    /// The kernel forwards them as they are (default).
    #[default]
    Pass,
    /// They are dropped.
    Drop,
}
