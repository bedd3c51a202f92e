//! Recovery of the true position of a direction.
//!
//! Records lag behind by up to one call in each direction: the process may have ended between a
//! receive or a send and the stores that record it. The kernel's sockets live on, and have the true
//! counts:
//!
//! ```text
//!   written:     head ------------ tail                     head + size
//!   kernel:           `-- sink.written        `-- source.read --'
//! ```
//!
//! So the head becomes the count of bytes that the sink was given, and the tail the count of bytes
//! taken from the source. Both have to lie where one call may have brought them. Otherwise the flow
//! is reset: pepd never guesses bytes.

use super::DirectionRecord;

/// Kernel counters of a leg that no process reads or writes any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Bytes received from the leg.
    pub read: u64,
    /// Bytes given to the leg. On a closed leg for which it is unknown whether FIN was sent, that
    /// FIN may count as one more byte.
    pub written: u64,
    /// The host's FIN has arrived, whether or not the predecessor read it.
    pub fin_received: bool,
    /// FIN was sent on the leg.
    pub fin_sent: bool,
    /// Neither end can send any more: both have sent FIN, or the leg was reset, or timed out.
    pub closed: bool,
    /// The leg was reset, or timed out, before the host had sent FIN.
    pub aborted: bool,
}

/// A direction that can continue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecoveredDirection {
    /// True positions, and whether FIN has gone in or out.
    pub direction: DirectionRecord,
    /// Bytes by which the record was corrected, in either position.
    pub repaired: u64,
}

/// Contradiction between the record and the kernel's counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Disagreement {
    /// The number of bytes taken from the source is impossible.
    #[error("kernel received {read} bytes, expected {tail} to {most}")]
    Source {
        /// Kernel's count.
        read: u64,
        /// Recorded tail.
        tail: u64,
        /// Upper bound by the room in the ring.
        most: u64,
    },
    /// The number of bytes given to the sink is impossible.
    #[error("kernel sent {written} bytes, expected {head} to {tail}")]
    Sink {
        /// Kernel's count.
        written: u64,
        /// Recorded head.
        head: u64,
        /// Upper bound by the data to send.
        tail: u64,
    },
    /// FIN was sent to the sink before all bytes.
    #[error("FIN was sent before the last byte")]
    EarlyFin,
    /// Invalid size of a ring.
    #[error("invalid ring size of {size} bytes")]
    Ring {
        /// Recorded size.
        size: u64,
    },
}

/// Recovers the positions of a direction of a split flow from its record and from the kernel's
/// counters of its source and sink.
///
/// # Errors
/// When the two contradict each other: the caller resets the flow.
pub fn recover_direction(
    published: &DirectionRecord,
    source: &Counters,
    sink: &Counters,
) -> Result<RecoveredDirection, Disagreement> {
    let DirectionRecord {
        head, tail, size, ..
    } = *published;
    if !size.is_power_of_two() {
        return Err(Disagreement::Ring { size });
    }
    let (read, most) = (source.read, head.saturating_add(size));
    if read < tail || read > most {
        return Err(Disagreement::Source { read, tail, most });
    }
    let (given, fin_out) = given(published, source, sink);
    if given < head || given > read {
        return Err(Disagreement::Sink {
            written: given,
            head,
            tail: read,
        });
    }
    if fin_out && !(given == read && source.fin_received) && !sink.closed {
        return Err(Disagreement::EarlyFin);
    }
    let direction = DirectionRecord {
        head: given,
        tail: read,
        fin_in: source.fin_received,
        fin_out,
        ..*published
    };
    let repaired = (read - tail) + (given - head);
    Ok(RecoveredDirection {
        direction,
        repaired,
    })
}

/// Returns the bytes that the sink received, and whether FIN followed them.
fn given(published: &DirectionRecord, source: &Counters, sink: &Counters) -> (u64, bool) {
    if !sink.closed {
        return (sink.written, sink.fin_sent);
    }
    if sink.fin_sent {
        // The record also shows that it had everything.
        return (sink.written, true);
    }
    // The state no longer shows whether FIN was sent. If so, all bytes were sent before, and the
    // FIN counts as one.
    if source.fin_received && sink.written == source.read + 1 {
        return (source.read, true);
    }
    // The last bytes given to it make no difference: it takes no more.
    let plausible = (published.head..=source.read).contains(&sink.written);
    let given = if plausible {
        sink.written
    } else {
        published.head
    };
    (given, false)
}
