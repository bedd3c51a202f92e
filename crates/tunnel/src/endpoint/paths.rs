//! Path validation: proof that the peer receives at the address from which it sends.
//!
//! ```text
//!                a packet comes from there           answered, or a handshake by way of it
//!   +---------+ ---------------------------> +----------+ --------------------> +--------+
//!   | unknown |                              | unproved |                       | proved |
//!   +---------+ <--------------------------- +----------+                       +--------+
//!        ^            eight newer ones                                              |
//!        +--------------------------------------------------------------------------+
//! ```
//!
//! A peer can state any source address. So an unproved one gets no more than three times the bytes
//! that came from it (RFC 9000, sections 8.1, 8.2 and 9.3). TCP proves addresses by itself.

use std::{
    collections::VecDeque,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use super::{Carrier, Remote, datagram::CHALLENGE_LEN};

/// Maximum number of known addresses of a peer.
const PATHS: usize = 8;
/// Bytes that may be sent to an unproved address, per byte that came from it.
const SHARE: u64 = 3;
/// Challenges for which packets leave room. Without it, a lost one would not be repeated until
/// the peer sends again.
const RESERVED: usize = 2;
/// Minimum interval between two challenges.
const INTERVAL_MIN: Duration = Duration::from_millis(10);

/// Addresses of one peer by UDP, and whether the peer receives there. The newest one is last.
#[derive(Debug, Default)]
pub(super) struct Paths {
    list: VecDeque<Path>,
}

#[derive(Debug)]
struct Path {
    remote: Remote,
    proved: bool,
    /// Token of the challenges sent there.
    token: Option<u64>,
    /// Bytes on the link that have come from there while it was unproved.
    received: u64,
    /// Bytes on the link that were sent there while it was unproved.
    sent: u64,
    /// Time of the next challenge.
    again: Duration,
}

impl Path {
    fn new(remote: Remote) -> Self {
        Self {
            remote,
            proved: false,
            token: None,
            received: 0,
            sent: 0,
            again: Duration::ZERO,
        }
    }

    fn prove(&mut self) {
        (self.proved, self.token) = (true, None);
    }

    /// Returns the longest datagram that may be sent there.
    fn room(&self) -> usize {
        if self.proved {
            return usize::MAX;
        }
        let left = (self.received * SHARE).saturating_sub(self.sent);
        usize::try_from(left)
            .unwrap_or(usize::MAX)
            .saturating_sub(headers(&self.remote.address))
    }

    /// Returns true if another challenge may be sent.
    fn can_challenge(&self) -> bool {
        !self.proved && self.room() >= CHALLENGE_LEN
    }
}

impl Paths {
    /// Makes an address the newest one. A forgotten one is unproved.
    pub fn move_to(&mut self, remote: Remote) {
        if remote.carrier == Carrier::Tcp || self.list.back().is_some_and(|path| path.is(remote)) {
            return;
        }
        let known = self.list.iter().position(|path| path.is(remote));
        let known = known.and_then(|at| self.list.remove(at));
        if known.is_none() && self.list.len() == PATHS {
            let unproved = self.list.iter().position(|path| !path.proved);
            self.list.remove(unproved.unwrap_or(0));
        }
        self.list
            .push_back(known.unwrap_or_else(|| Path::new(remote)));
    }

    /// Records that a handshake has shown that the peer receives there.
    pub fn prove(&mut self, remote: Remote) {
        self.move_to(remote);
        if let Some(path) = self.get_mut(remote) {
            path.prove();
        }
    }

    /// Records an authentic datagram that has come from there.
    pub fn on_received(&mut self, from: Remote, datagram: usize) {
        if let Some(path) = self.get_mut(from).filter(|path| !path.proved) {
            path.received += on_link(from, datagram);
        }
    }

    /// Records a datagram that is sent there.
    pub fn on_sent(&mut self, to: Remote, datagram: usize) {
        if let Some(path) = self.get_mut(to).filter(|path| !path.proved) {
            path.sent += on_link(to, datagram);
        }
    }

    /// Handles the answer to a challenge, by whichever path it came (RFC 9000, section 8.2.3).
    pub fn on_answer(&mut self, token: u64) {
        let mut paths = self.list.iter_mut();
        if let Some(path) = paths.find(|path| path.token == Some(token)) {
            path.prove();
        }
    }

    /// Returns the longest datagram that may be sent there.
    pub fn room(&self, to: Remote) -> usize {
        match self.get(to) {
            Some(path) => path.room(),
            None if to.carrier == Carrier::Tcp => usize::MAX,
            None => 0,
        }
    }

    /// Returns the longest datagram with a packet that may be sent there, with or without a
    /// challenge.
    pub fn room_for_packet(&self, to: Remote, with_challenge: bool) -> usize {
        let room = self.room(to);
        if room == usize::MAX {
            return room;
        }
        let reserved = RESERVED * (CHALLENGE_LEN + headers(&to.address));
        let spare = room.saturating_sub(reserved);
        if with_challenge {
            spare.max(CHALLENGE_LEN)
        } else {
            spare
        }
    }

    /// Returns when to challenge that address, if more may be sent there.
    pub fn challenge_due(&self, to: Remote) -> Option<Duration> {
        let path = self.get(to).filter(|path| path.can_challenge());
        path.map(|path| path.again)
    }

    /// Returns the token of the challenge to send there now; `None` for an unknown address. The
    /// next one is due after `interval`, about a round trip. `random` draws an unpredictable token.
    pub fn challenge(
        &mut self,
        now: Duration,
        to: Remote,
        interval: Duration,
        random: impl FnOnce() -> u64,
    ) -> Option<u64> {
        let path = self.get_mut(to)?;
        path.again = now + interval.max(INTERVAL_MIN);
        Some(*path.token.get_or_insert_with(random))
    }

    /// Returns the newest address that is proved.
    pub fn last_proved(&self) -> Option<Remote> {
        let path = self.list.iter().rev().find(|path| path.proved);
        path.map(|path| path.remote)
    }

    fn get(&self, remote: Remote) -> Option<&Path> {
        self.list.iter().rev().find(|path| path.is(remote))
    }

    fn get_mut(&mut self, remote: Remote) -> Option<&mut Path> {
        self.list.iter_mut().rev().find(|path| path.is(remote))
    }
}

impl Path {
    fn is(&self, remote: Remote) -> bool {
        self.remote == remote
    }
}

fn on_link(remote: Remote, datagram: usize) -> u64 {
    (datagram + headers(&remote.address)) as u64
}

/// Returns the length of the IP and UDP headers.
fn headers(address: &SocketAddr) -> usize {
    match address.ip().to_canonical() {
        IpAddr::V4(_) => 20 + 8,
        IpAddr::V6(_) => 40 + 8,
    }
}
