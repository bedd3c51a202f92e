//! How far a half really is.
//!
//! What was written lags behind by up to one call in each direction: the process may have ended between a
//! receive or a send and the stores that tell of it. The kernel knows better, as its sockets live on:
//!
//! ```text
//!   written:     head ------------ tail                     head + size
//!   kernel:           `-- sink.written        `-- source.read --'
//! ```
//!
//! So the head becomes what the sink was really given, and the tail what was really taken from the source, as long
//! as both lie where one call may have brought them. Where they do not, something else has happened, and the flow is
//! reset: bytes are never guessed.

use super::DirectionRecord;

/// What the kernel says of a leg that nobody reads or writes any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Bytes that were received from it.
    pub read: u64,
    /// Bytes that were given to it. Where it is closed and whether FIN was given to it is not known, that FIN may be
    /// counted as one more.
    pub written: u64,
    /// The host's FIN has come, whether anybody was told of it or not.
    pub fin_received: bool,
    /// FIN was given to it.
    pub fin_sent: bool,
    /// Neither end can send any more: both have sent FIN, or it was reset, or timed out.
    pub closed: bool,
    /// It was reset, or timed out, before the host had sent FIN.
    pub aborted: bool,
}

/// A half that can go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecoveredDirection {
    /// Where it really is. FIN has gone in or out as it says here.
    pub half: DirectionRecord,
    /// Bytes by which what was written was behind, or had less than had come.
    pub repaired: u64,
}

/// What was written and what the kernel says cannot both be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Disagreement {
    /// More or fewer bytes were taken from the source than there can have been.
    #[error("{read} bytes were received, where {tail} to {most} are possible")]
    Source {
        /// What the kernel says.
        read: u64,
        /// What was written.
        tail: u64,
        /// What there was room for.
        most: u64,
    },
    /// More or fewer bytes were given to the sink than there can have been.
    #[error("{written} bytes were sent, where {head} to {tail} are possible")]
    Sink {
        /// What the kernel says.
        written: u64,
        /// What was written.
        head: u64,
        /// What there was to send.
        tail: u64,
    },
    /// FIN was given to the sink before all bytes were.
    #[error("FIN was sent before the last byte")]
    EarlyFin,
    /// The size is not one that a ring has.
    #[error("a ring of {size} bytes")]
    Ring {
        /// What was written.
        size: u64,
    },
}

/// Where a half of a split flow is, by what was written of it and by what the kernel says of the legs that it comes
/// from and goes to.
///
/// # Errors
/// When these cannot both be: the flow is to be reset.
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
    let half = DirectionRecord {
        head: given,
        tail: read,
        fin_in: source.fin_received,
        fin_out,
        ..*published
    };
    let repaired = (read - tail) + (given - head);
    Ok(RecoveredDirection { half, repaired })
}

/// Bytes that the sink has got, and whether FIN has gone after them.
fn given(published: &DirectionRecord, source: &Counters, sink: &Counters) -> (u64, bool) {
    if !sink.closed {
        return (sink.written, sink.fin_sent);
    }
    if sink.fin_sent {
        // Written as well: it had everything.
        return (sink.written, true);
    }
    // Its state no longer tells whether FIN was given to it, but then all bytes were before, and the FIN counts.
    if source.fin_received && sink.written == source.read + 1 {
        return (source.read, true);
    }
    // What it was given last makes no difference: it takes no more.
    let plausible = (published.head..=source.read).contains(&sink.written);
    let given = if plausible {
        sink.written
    } else {
        published.head
    };
    (given, false)
}
