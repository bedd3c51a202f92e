//! Bound of a leg's receive buffer, so that unread legs leave memory to others.
//!
//! The kernel tunes the buffers of a party's first legs, each of which counts with the kernel's
//! maximum: for bytes out of order the kernel grows a buffer although nothing is read (Linux 6.17),
//! and for small packets it grows one to ten times the bytes read. Of further legs pepd sets the
//! size, by the kernel's rule and within what the part has left.

use std::{io, os::fd::BorrowedFd, sync::Arc};

use pep_core::{
    receive::{Change, LEAST, ReceivePart, ReceiveShare, change},
    site::ReceiveBuffer,
};
use pepd_sys::{leg::receive, socket};

/// Bounds of the bytes received between two looks at the socket. The kernel grows a buffer with the
/// bytes read from it, so that it cannot have grown far in between.
const LOOK_MIN: u64 = 32 << 10;
const LOOK_MAX: u64 = 1 << 20;

/// Bound of one leg's receive buffer.
#[derive(Debug)]
pub(super) struct ReceiveBound {
    share: ReceiveShare,
    until_look: u64,
    /// True if the kernel tunes the size. The leg then counts with the maximum.
    is_tuned: bool,
    /// Bytes that must yet arrive before the buffer of a restrained leg becomes smaller: the sender
    /// may have been promised room for them.
    promised: Option<u64>,
}

impl ReceiveBound {
    /// Returns the bound of a leg with such a buffer; none where the operator has set its size.
    pub(super) fn new(
        fd: BorrowedFd<'_>,
        buffer: ReceiveBuffer,
        part: Arc<ReceivePart>,
    ) -> Option<Self> {
        if matches!(buffer, ReceiveBuffer::Fixed(_)) {
            return None;
        }
        let mut bound = Self {
            share: ReceiveShare::none(part),
            until_look: LOOK_MIN,
            is_tuned: receive::is_tuned(fd),
            promised: None,
        };
        if bound.is_tuned && bound.share.allowed() >= receive::autotuned_most() {
            bound.share.count(receive::autotuned_most());
        } else if let Err(err) = bound.end_tuning(fd) {
            bound.give_up(&err);
        }
        Some(bound)
    }

    /// Ends the kernel's tuning at the present size, and returns that.
    fn end_tuning(&mut self, fd: BorrowedFd<'_>) -> io::Result<u64> {
        let size = receive::size(fd)?;
        if std::mem::take(&mut self.is_tuned) {
            receive::set_size(fd, size)?;
        }
        self.share.count(size.min(receive::autotuned_most()));
        Ok(size)
    }

    fn give_up(&mut self, err: &io::Error) {
        tracing::debug!(error = %err, "cannot bound the receive buffer of a leg");
        self.until_look = u64::MAX;
    }

    /// Adjusts the buffer after bytes were received.
    pub(super) fn on_received(&mut self, fd: BorrowedFd<'_>, bytes: u64) {
        if let Some(promised) = &mut self.promised {
            *promised = promised.saturating_sub(bytes);
        }
        self.until_look = self.until_look.saturating_sub(bytes);
        if self.until_look > 0 {
            return;
        }
        match self.look(fd) {
            Ok(size) => self.until_look = (size / 4).clamp(LOOK_MIN, LOOK_MAX),
            Err(err) => self.give_up(&err),
        }
    }

    /// Gives back what the buffer of a quiet leg has grown by, if the party's others need it.
    pub(super) fn on_quiet(&mut self, fd: BorrowedFd<'_>) {
        let is_crowded = self.share.allowed() < 2 * receive::autotuned_most();
        if !is_crowded {
            return;
        }
        let Ok(size) = self.end_tuning(fd) else {
            return;
        };
        let is_empty = socket::unread(fd).is_ok_and(|unread| unread == 0);
        if size <= LEAST || size <= self.share.allowed() || !is_empty {
            return;
        }
        if receive::set_size(fd, LEAST).is_ok() {
            self.promised = None;
            self.share.count(LEAST);
        }
    }

    /// Adjusts the buffer, and returns its size.
    fn look(&mut self, fd: BorrowedFd<'_>) -> io::Result<u64> {
        let most = receive::autotuned_most();
        if self.is_tuned {
            if self.share.allowed() >= most {
                return receive::size(fd);
            }
            self.end_tuning(fd)?;
        }
        let state = receive::state(fd)?;
        // Twice the kernel's rule, since packets of some drivers take four times their bytes.
        let wanted = state.needed().saturating_mul(2).min(most);
        let size = state.size();
        // What is beyond the kernel's own limit is part of `limits.memory`.
        self.share.count(size.min(most));
        let allowed = self.share.allowed();
        let new = match (self.promised, change(size, allowed, wanted)) {
            (Some(0), _) => {
                self.promised = None;
                allowed.min(size)
            }
            (Some(_), _) | (None, Change::Keep) => return Ok(size),
            (None, Change::Resize(new)) => new,
            (None, Change::Restrain(to)) => {
                receive::restrain(fd, size, to)?;
                self.promised = Some(size);
                return Ok(size);
            }
        };
        receive::set_size(fd, new)?;
        self.share.count(new.min(most));
        Ok(new)
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read as _, Write as _},
        net::{TcpListener, TcpStream},
        os::fd::AsFd as _,
    };

    use super::*;

    #[test]
    fn a_buffer_that_grew_beyond_its_part_shrinks_once_what_was_promised_has_come() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut receiver, _) = listener.accept().unwrap();
        let part = Arc::new(ReceivePart::new(0));
        let mut bound =
            ReceiveBound::new(receiver.as_fd(), ReceiveBuffer::System, Arc::clone(&part)).unwrap();
        let mut other = ReceiveShare::none(Arc::clone(&part));
        other.count(1 << 30);
        let mut carry = |bytes: usize| {
            sender.write_all(&vec![7; bytes]).unwrap();
            receiver.read_exact(&mut vec![0; bytes]).unwrap();
            bound.on_received(receiver.as_fd(), bytes as u64);
            receive::size(receiver.as_fd()).unwrap()
        };
        let mut size = 0;
        for _ in 0..1000 {
            size = carry(40_000);
        }
        assert!(size <= LEAST, "{size}");
        drop(other);
        for _ in 0..1000 {
            size = carry(40_000);
        }
        assert!(size >= LEAST, "{size}");
        drop(bound);
        assert_eq!(part.taken(), 0);
    }

    #[test]
    fn the_operators_size_has_no_bound() {
        let part = Arc::new(ReceivePart::new(0));
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let fixed = ReceiveBuffer::Fixed(1 << 20);
        assert!(ReceiveBound::new(socket.as_fd(), fixed, part).is_none());
    }
}
