//! Watcher of many descriptors in one task: an epoll of its own inside the runtime's.

use std::{
    collections::HashMap,
    io,
    os::fd::{AsFd, OwnedFd},
};

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use pep_core::syn::FlowTuple;
use pepd_sys::marks::OtherMark;
use tokio::{
    io::{Interest, unix::AsyncFd},
    task::yield_now,
};

/// A ready event.
#[derive(Debug)]
pub enum Ready {
    /// The TUN with this number has packets.
    Tun(usize),
    /// A leg has connected, or failed.
    Leg(PendingLeg),
}

/// A server leg that is connecting.
#[derive(Debug)]
pub struct PendingLeg {
    /// Flow of the leg.
    pub flow: FlowTuple,
    /// Socket of the leg.
    pub fd: OwnedFd,
    /// The DSCP of the client's SYN.
    pub dscp: u8,
    /// The mark of the client's SYN.
    pub other_mark: OtherMark,
}

/// Maximum number of events read from the kernel at once.
const EVENTS_MAX: usize = 64;

/// Watcher of TUN devices and connecting legs.
///
/// One registration with the runtime serves all of them; a task per leg would cost more CPU than
/// the connection itself on a LAN.
#[derive(Debug)]
pub struct Watcher {
    epoll: Epoll,
    readiness: AsyncFd<OwnedFd>,
    tuns: usize,
    legs: HashMap<u64, PendingLeg>,
    tokens: HashMap<FlowTuple, u64>,
    next_token: u64,
}

impl Watcher {
    /// Returns a watcher of these devices. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// When no descriptors are left.
    pub fn new<'a, T: AsFd + 'a>(tuns: impl Iterator<Item = &'a T>) -> io::Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let mut count = 0;
        for tun in tuns {
            epoll.add(tun, EpollEvent::new(EpollFlags::EPOLLIN, count as u64))?;
            count += 1;
        }
        let readiness = pepd_sys::reactor::register(epoll.0.try_clone()?, Interest::READABLE)?;
        Ok(Self {
            epoll,
            readiness,
            tuns: count,
            legs: HashMap::new(),
            tokens: HashMap::new(),
            next_token: count as u64,
        })
    }

    /// Watches a leg until it has connected or failed.
    ///
    /// # Errors
    /// When the kernel has no memory for it; the leg is closed then.
    pub fn add(&mut self, leg: PendingLeg) -> io::Result<()> {
        let token = self.next_token;
        self.next_token += 1;
        self.epoll
            .add(&leg.fd, EpollEvent::new(EpollFlags::EPOLLOUT, token))?;
        self.tokens.insert(leg.flow, token);
        self.legs.insert(token, leg);
        Ok(())
    }

    /// Removes a leg and returns it; closing it removes it from the epoll.
    pub fn remove(&mut self, flow: &FlowTuple) -> Option<PendingLeg> {
        let token = self.tokens.remove(flow)?;
        self.legs.remove(&token)
    }

    /// Waits until an event is ready and appends it. Other tasks of this thread, and its timers,
    /// run first, each time: in a flood an event is always ready. Cancel-safe: an event stays ready
    /// until it is returned.
    ///
    /// # Errors
    /// When the runtime shuts down.
    pub async fn ready(&mut self, ready: &mut Vec<Ready>) -> io::Result<()> {
        yield_now().await;
        let mut events = [EpollEvent::empty(); EVENTS_MAX];
        let count = loop {
            let mut guard = self.readiness.readable().await?;
            let taken =
                guard.try_io(
                    |_| match self.epoll.wait(&mut events, EpollTimeout::ZERO)? {
                        0 => Err(io::ErrorKind::WouldBlock.into()),
                        count => Ok(count),
                    },
                );
            if let Ok(taken) = taken {
                break taken?;
            }
        };
        for event in &events[..count] {
            ready.extend(self.resolve(event.data()));
        }
        Ok(())
    }

    fn resolve(&mut self, token: u64) -> Option<Ready> {
        if token < self.tuns as u64 {
            return Some(Ready::Tun(token as usize));
        }
        let leg = self.legs.remove(&token)?;
        self.tokens.remove(&leg.flow);
        // The next owner of the leg registers it elsewhere; here it would stay ready forever.
        let _ = self.epoll.delete(&leg.fd);
        Some(Ready::Leg(leg))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use nix::sys::eventfd::{EfdFlags, EventFd};
    use tokio::time::timeout;

    use super::*;

    #[tokio::test(flavor = "current_thread")]
    async fn a_flood_leaves_the_thread_to_others() {
        const ROUNDS: usize = 1_000_000;
        let flags = EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC;
        let full = EventFd::from_value_and_flags(1, flags).expect("a descriptor");
        let mut watcher = Watcher::new([&full].into_iter()).expect("descriptors");
        let flooded = async {
            let mut ready = Vec::new();
            for _ in 0..ROUNDS {
                watcher.ready(&mut ready).await.expect("it lives");
                assert!(matches!(ready.pop(), Some(Ready::Tun(0))));
            }
        };
        // A timer fires only if the thread yields to the runtime.
        let ended = timeout(Duration::from_millis(1), flooded).await;
        assert!(
            ended.is_err(),
            "no other task had a turn in {ROUNDS} rounds"
        );
    }
}
