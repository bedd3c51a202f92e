//! Exact counts of bytes read from a leg and written to it, by any process.
//!
//! ```text
//!   FIN received = TCP_CM_INQ - SIOCINQ
//!   read         = tcpi_bytes_received - FIN received - SIOCINQ
//!   written      = tcpi_bytes_acked + SIOCOUTQ - (SYN, where we connected) - FIN sent
//! ```
//!
//! `tcpi_bytes_received` counts data received in order, and the FIN; SIOCINQ never counts the FIN.
//! `tcpi_bytes_acked` counts the local FIN, and the local SYN only on a leg that pepd connected.
//! SIOCOUTQ is everything unacknowledged, a FIN included. So the sum does not depend on what was
//! acknowledged, lost or retransmitted.

use std::{
    io::{self, ErrorKind},
    os::fd::BorrowedFd,
};

use pep_core::arena::Counters;
use pepd_sys::socket::{Totals, totals, unacknowledged, unread, unread_with_fin};

/// States of `include/net/tcp_states.h`.
const SYN_SENT: u8 = 2;
const CLOSE: u8 = 7;
/// FIN_WAIT1, FIN_WAIT2, TIME_WAIT, LAST_ACK and CLOSING: the local end has shut down.
const FIN_GIVEN: [u8; 5] = [4, 5, 6, 9, 11];

/// Maximum number of reads until two of them agree: while no process reads or writes, at most a
/// window of data can arrive.
const TRIES: usize = 1000;

/// Reads the kernel's counters of a leg that no process reads or writes. `connected` is true if
/// pepd connected the leg, false if it accepted it. `fin_published` is true if the record says that
/// the leg was shut down: in CLOSE the state no longer shows it.
///
/// The socket's pending error, if it has one, is taken.
///
/// # Errors
/// Fails for a socket that is not TCP, cannot be queried, or never stands still.
pub fn counters(leg: BorrowedFd<'_>, connected: bool, fin_published: bool) -> io::Result<Counters> {
    for _ in 0..TRIES {
        let before = totals(leg)?;
        let (unread, unsent) = (unread(leg)?, unacknowledged(leg)?);
        let fin_received = unread_with_fin(leg)?.saturating_sub(unread);
        if totals(leg)? != before || fin_received > 1 {
            continue;
        }
        let Totals {
            state,
            acknowledged,
            received,
        } = before;
        let closed = state == CLOSE;
        let fin_sent = FIN_GIVEN.contains(&state) || (closed && fin_published);
        let syn = connected && state != SYN_SENT;
        let syn_and_fin = u64::from(syn) + u64::from(fin_sent);
        return Ok(Counters {
            read: received.saturating_sub(fin_received + unread),
            written: (acknowledged + unsent).saturating_sub(syn_and_fin),
            fin_received: fin_received == 1,
            fin_sent,
            closed,
            aborted: closed && fin_received == 0,
        });
    }
    Err(ErrorKind::TimedOut.into())
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read as _, Write as _},
        net::{Shutdown, TcpListener, TcpStream},
        os::fd::AsFd,
        time::{Duration, Instant},
    };

    use super::*;
    use pepd_sys::leg::set_reset_on_close;

    /// Returns two ends; the one that connected comes first.
    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let connected = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (connected, listener.accept().unwrap().0)
    }

    fn expect(leg: &TcpStream, connected: bool, fin_published: bool, expected: Counters) {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let found = counters(leg.as_fd(), connected, fin_published).unwrap();
            if found == expected {
                return;
            }
            assert!(Instant::now() < deadline, "{found:?}");
            std::thread::yield_now();
        }
    }

    const NONE: Counters = Counters {
        read: 0,
        written: 0,
        fin_received: false,
        fin_sent: false,
        closed: false,
        aborted: false,
    };

    #[test]
    fn both_ends_count_what_was_read_and_written_and_not_what_waits() {
        for swapped in [false, true] {
            let (a, b) = pair();
            let (mut a, mut b) = if swapped { (b, a) } else { (a, b) };
            expect(&a, !swapped, false, NONE);
            a.write_all(&[1; 5000]).unwrap();
            b.write_all(&[2; 70]).unwrap();
            b.read_exact(&mut [0; 1234]).unwrap();
            let (read, written) = (0, 5000);
            expect(
                &a,
                !swapped,
                false,
                Counters {
                    read,
                    written,
                    ..NONE
                },
            );
            let (read, written) = (1234, 70);
            expect(
                &b,
                swapped,
                false,
                Counters {
                    read,
                    written,
                    ..NONE
                },
            );
        }
    }

    #[test]
    fn a_fin_is_seen_but_never_counted_before_and_after_it_was_read() {
        let (mut a, mut b) = pair();
        a.write_all(b"abc").unwrap();
        a.shutdown(Shutdown::Write).unwrap();
        let sent = Counters {
            written: 3,
            fin_sent: true,
            ..NONE
        };
        expect(&a, true, true, sent);
        // Not yet published: the state shows it.
        expect(&a, true, false, sent);
        expect(
            &b,
            false,
            false,
            Counters {
                fin_received: true,
                ..NONE
            },
        );
        b.read_exact(&mut [0; 3]).unwrap();
        let all = Counters {
            read: 3,
            fin_received: true,
            ..NONE
        };
        expect(&b, false, false, all);
        assert_eq!(b.read(&mut [0; 3]).unwrap(), 0);
        expect(&b, false, false, all);
        b.write_all(b"defgh").unwrap();
        b.shutdown(Shutdown::Write).unwrap();
        let closed = Counters {
            fin_received: true,
            fin_sent: true,
            closed: true,
            ..NONE
        };
        expect(
            &a,
            true,
            true,
            Counters {
                written: 3,
                ..closed
            },
        );
        expect(
            &b,
            false,
            true,
            Counters {
                read: 3,
                written: 5,
                ..closed
            },
        );
        // Before it is published that the leg was shut down, it may be a byte.
        expect(
            &b,
            false,
            false,
            Counters {
                read: 3,
                written: 6,
                fin_sent: false,
                ..closed
            },
        );
        a.read_exact(&mut [0; 5]).unwrap();
        expect(
            &a,
            true,
            true,
            Counters {
                read: 5,
                written: 3,
                ..closed
            },
        );
    }

    #[test]
    fn a_reset_is_no_fin_even_after_its_error_was_taken() {
        let (mut a, mut b) = pair();
        b.write_all(b"abcdef").unwrap();
        a.write_all(b"xy").unwrap();
        a.read_exact(&mut [0; 2]).unwrap();
        set_reset_on_close(b.as_fd(), true).unwrap();
        drop(b);
        let read = 2;
        let reset = Counters {
            read,
            written: 2,
            closed: true,
            aborted: true,
            ..NONE
        };
        expect(&a, true, false, reset);
        expect(&a, true, false, reset);
    }
}
