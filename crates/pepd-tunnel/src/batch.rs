//! Datagrams that one system call sends.

use std::net::{IpAddr, SocketAddr};

use tunnel::ecn::Ecn;

/// Maximum of bytes per send call, the limit of UDP.
const SEND_MAX: usize = 65_000;

/// Datagrams to one address with one ECN mark and one size (the last may be shorter), for one call.
#[derive(Debug)]
pub(super) struct Batch {
    /// The datagrams, and behind them possibly one that is still being written.
    pub(super) bytes: Vec<u8>,
    pub(super) segment: usize,
    pub(super) segments: usize,
    pub(super) to: Option<SocketAddr>,
    pub(super) from: Option<IpAddr>,
    pub(super) ecn: Ecn,
    complete: bool,
}

impl Default for Batch {
    fn default() -> Self {
        Self {
            bytes: Vec::new(),
            segment: 0,
            segments: 0,
            to: None,
            from: None,
            ecn: Ecn::Ect0,
            complete: false,
        }
    }
}

impl Batch {
    /// Returns whether no further datagram fits.
    pub(super) fn is_complete(&self) -> bool {
        self.complete
    }

    /// Adds the bytes written from `begin` on as a datagram, if it fits with the others.
    pub(super) fn take(
        &mut self,
        begin: usize,
        to: SocketAddr,
        from: Option<IpAddr>,
        ecn: Ecn,
        most: usize,
    ) -> bool {
        let length = self.bytes.len() - begin;
        if self.segments == 0 {
            self.segment = length;
            (self.to, self.from, self.ecn) = (Some(to), from, ecn);
        }
        let fits = !self.complete
            && self.to == Some(to)
            && self.from == from
            && self.ecn == ecn
            && length <= self.segment
            && self.bytes.len() <= SEND_MAX.max(self.segment);
        if fits {
            self.segments += 1;
            let more = self.bytes.len() + self.segment <= SEND_MAX;
            self.complete = length < self.segment || self.segments >= most || !more;
        }
        fits
    }

    /// Moves the bytes written from `begin` on to another batch.
    pub(super) fn split(&mut self, begin: usize, next: &mut Self) {
        next.bytes.extend_from_slice(&self.bytes[begin..]);
        self.bytes.truncate(begin);
        self.complete = true;
    }

    /// Empties the batch.
    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.segments = 0;
        self.complete = false;
        self.to = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes a datagram. One that does not fit starts the remaining batch.
    fn push(batch: &mut Batch, to: u16, length: usize) -> bool {
        push_marked(batch, to, length, Ecn::Ect0)
    }

    fn push_marked(batch: &mut Batch, to: u16, length: usize, ecn: Ecn) -> bool {
        let to = SocketAddr::from(([127, 0, 0, 1], to));
        let begin = batch.bytes.len();
        batch.bytes.resize(begin + length, 7);
        let taken = batch.take(begin, to, None, ecn, 4);
        if !taken {
            let mut next = Batch::default();
            let complete = batch.complete;
            batch.split(begin, &mut next);
            batch.complete = complete;
            assert_eq!(next.bytes, vec![7; length]);
        }
        taken
    }

    #[test]
    fn a_batch_is_of_one_size_and_to_one_address() {
        let mut batch = Batch::default();
        assert!(push(&mut batch, 1, 100) && push(&mut batch, 1, 100));
        assert!(!push(&mut batch, 2, 100), "another address");
        for ecn in [Ecn::NotEct, Ecn::Ect1, Ecn::Ce] {
            assert!(!push_marked(&mut batch, 1, 100, ecn), "another mark");
        }
        assert!(!push(&mut batch, 1, 101), "longer than the first");
        assert!(push(&mut batch, 1, 60), "the last may be shorter");
        assert!(batch.is_complete());
        assert!(!push(&mut batch, 1, 60), "nothing after a shorter one");
        assert_eq!((batch.bytes.len(), batch.segments), (260, 3));
        batch.clear();
        for _ in 0..4 {
            assert!(!batch.is_complete() && push(&mut batch, 2, 7));
        }
        assert!(batch.is_complete(), "maximum that the kernel splits");
    }

    #[test]
    fn a_batch_is_no_longer_than_udp_allows() {
        let mut batch = Batch::default();
        assert!(push(&mut batch, 1, 30_000) && push(&mut batch, 1, 30_000));
        assert!(batch.is_complete() && !push(&mut batch, 1, 30_000));
    }

    #[test]
    fn what_does_not_fit_begins_the_next_one() {
        let (mut batch, mut next) = (Batch::default(), Batch::default());
        assert!(push(&mut batch, 1, 100));
        batch.bytes.extend_from_slice(&[9; 200]);
        batch.split(100, &mut next);
        assert!(batch.is_complete());
        assert_eq!((batch.bytes.len(), next.bytes), (100, vec![9; 200]));
    }
}
