//! The threads of the tunnels, among which the peers are divided.
//!
//! ```text
//!           +--> sockets --> endpoint: peers of thread 0, and initiations of all peers
//!   kernel -+                    |  ^
//!           |                    |  | datagrams and connections of the other thread's peers
//!           |                    v  |
//!           +--> sockets --> endpoint: peers of thread 1
//! ```
//!
//! The kernel gives each thread the datagrams of its peers, and all initiations to the first
//! thread. Their senders are known only after a computation, so limits and cookies exist only
//! there. The first thread accepts all connections by TCP; each moves to the thread of its peer.

use std::{
    net::{IpAddr, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::{sync::mpsc, time::Instant};
use tunnel::{
    ecn::Ecn,
    endpoint::{Remote, Shard},
    wire::Carried,
};

/// Maximum of things passed to a thread that it has not taken yet.
const PASSED_MAX: usize = 256;

/// Something that arrived at one thread and is for another.
#[derive(Debug)]
pub(crate) enum Passed {
    /// A datagram of a peer of the other thread, or an initiation for the first thread.
    Datagram(Datagram),
    /// An initiation of a peer of the other thread, admitted by the first one.
    Initiation(Datagram),
    /// A connection by which a peer of the other thread has called.
    Connection {
        /// The connection.
        stream: TcpStream,
        received: Received,
        /// Bytes that remain to be sent.
        unsent: Vec<u8>,
        /// First datagram: an admitted initiation, or one of a session that goes on here.
        first: Datagram,
        /// True if `first` is an admitted initiation.
        admitted: bool,
    },
}

/// State of a connection's receiving side.
#[derive(Debug)]
pub(crate) struct Received {
    /// Bytes that have not been handled.
    pub(crate) carried: Carried,
    /// Number of datagrams by which the sender may still authenticate.
    pub(crate) chances: u32,
}

impl Default for Received {
    /// Returns the state of a new connection.
    fn default() -> Self {
        Self {
            carried: Carried::default(),
            // Two, and as many again for each cookie.
            chances: 16,
        }
    }
}

/// A received datagram.
#[derive(Debug)]
pub(crate) struct Datagram {
    /// Time of arrival on the common clock.
    pub(crate) at: Duration,
    pub(crate) from: Remote,
    /// The local address to which it was sent, if known.
    pub(crate) to: Option<IpAddr>,
    pub(crate) ecn: Ecn,
    pub(crate) bytes: Box<[u8]>,
}

/// Latest sign of life of the peers that have sessions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Heard {
    /// No session.
    Nothing,
    /// Sessions, but all peers are silent.
    Silent,
    /// Time, on the local clock, at which one was heard.
    At(Duration),
}

impl Heard {
    fn to_u64(self) -> u64 {
        match self {
            Self::Nothing => 0,
            Self::Silent => 1,
            Self::At(at) => u64::try_from(at.as_micros()).unwrap_or(u64::MAX).max(2),
        }
    }

    fn from_u64(number: u64) -> Self {
        match number {
            0 => Self::Nothing,
            1 => Self::Silent,
            at => Self::At(Duration::from_micros(at)),
        }
    }
}

/// State that the threads share.
#[derive(Debug)]
struct Common {
    /// Start of the local clock: times of different threads compare.
    base: Instant,
    /// Reports of the threads.
    heard: Box<[AtomicU64]>,
    inboxes: Box<[mpsc::Sender<Passed>]>,
}

/// A thread's number, and its means to reach the others.
#[derive(Debug)]
pub(crate) struct Member {
    shard: Shard,
    common: Arc<Common>,
}

/// Receiver of what other threads pass on.
pub(crate) type Inbox = mpsc::Receiver<Passed>;

impl Drop for Member {
    fn drop(&mut self) {
        // The peers of a thread that has ended say nothing about the link.
        self.latest(Heard::Nothing);
    }
}

impl Member {
    /// Returns the members of 1 to 16 threads, each with its inbox.
    pub(crate) fn all(count: usize) -> Vec<(Self, Inbox)> {
        let (inboxes, received): (Vec<_>, Vec<_>) =
            (0..count).map(|_| mpsc::channel(PASSED_MAX)).unzip();
        let common = Arc::new(Common {
            base: Instant::now(),
            heard: inboxes.iter().map(|_| AtomicU64::new(0)).collect(),
            inboxes: inboxes.into(),
        });
        let members = received.into_iter().enumerate();
        let member = |(number, inbox)| {
            let shard = Self::shard_of(number, count);
            let common = Arc::clone(&common);
            (Self { shard, common }, inbox)
        };
        members.map(member).collect()
    }

    /// Returns that of the only thread.
    #[cfg(test)]
    pub(crate) fn alone() -> Self {
        Self::all(1).remove(0).0
    }

    /// Returns the number of the thread's endpoint among all.
    pub(crate) fn shard(&self) -> Shard {
        self.shard
    }

    /// Returns the thread that the first datagram of a connection names, if it is another one.
    /// Initiations must be admitted first. The name may be forged, so only the first thread, which
    /// accepts all connections, passes them on by it.
    pub(crate) fn owner_of_connection(&self, first: &[u8]) -> Option<u16> {
        (self.shard.number() == 0).then(|| self.owner(first))?
    }

    /// Returns the thread to which a datagram is to be passed, if it is another one.
    pub(crate) fn owner(&self, datagram: &[u8]) -> Option<u16> {
        let owner = self.shard.owner(datagram)?;
        // A forged datagram may name a thread that does not exist.
        (usize::from(owner) < self.common.inboxes.len()).then_some(owner)
    }

    /// Passes something to another thread. Returns false if that thread is full or has ended.
    pub(crate) fn pass(&self, to: u16, passed: Passed) -> bool {
        let inbox = self.common.inboxes.get(usize::from(to));
        inbox.is_some_and(|inbox| inbox.try_send(passed).is_ok())
    }

    /// Returns the maximum number of peers of each of `count` threads.
    pub(crate) fn peers_max(count: usize) -> usize {
        Self::shard_of(0, count).slots()
    }

    fn shard_of(number: usize, count: usize) -> Shard {
        let bits = count.next_power_of_two().ilog2() as u8;
        Shard::new(number as u16, bits).expect("no more than the maximum")
    }

    /// Returns the start of the local clock.
    pub(crate) fn base(&self) -> Instant {
        self.common.base
    }

    /// Reports when peers of this thread were last heard. Returns the latest report of all.
    pub(crate) fn latest(&self, here: Heard) -> Heard {
        self.common.heard[usize::from(self.shard.number())].store(here.to_u64(), Relaxed);
        let all = self.common.heard.iter().map(|heard| heard.load(Relaxed));
        Heard::from_u64(all.max().unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_sign_of_life_of_all_threads_counts() {
        let [(one, _), (other, _)] = Member::all(2).try_into().expect("two");
        let at = |seconds| Heard::At(Duration::from_secs(seconds));
        assert_eq!(one.latest(Heard::Nothing), Heard::Nothing);
        assert_eq!(other.latest(Heard::Silent), Heard::Silent);
        assert_eq!(one.latest(Heard::Nothing), Heard::Silent);
        assert_eq!(one.latest(at(3)), at(3));
        assert_eq!(other.latest(at(2)), at(3));
        assert_eq!(one.latest(Heard::Silent), at(2));
        assert_eq!(other.latest(Heard::Nothing), Heard::Silent);
    }
}
