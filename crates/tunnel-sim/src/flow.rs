//! Stream as seen by both ends, and its true state.

use std::{cell::RefCell, time::Duration};

use splitmix::mix;
use tunnel::{
    class::Class,
    wire::{ResetCode, StreamId},
};

use crate::{plan::StreamPlan, ranges::Ranges, side::End};

/// Minimum length of a stream header: it identifies the flow.
pub const STREAM_HEADER_MIN: usize = 8;

/// State of a stream at an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Alive.
    Alive,
    /// Reset at this end.
    Reset,
    /// Reset by the peer.
    ResetByPeer,
    /// Closed: both directions finished.
    Closed,
    /// Orphaned: its session has ended.
    Orphan,
}

/// State of a stream at one end.
#[derive(Debug)]
pub struct Local {
    /// True if opened at this end, or reported opened.
    pub known: bool,
    /// State at this end.
    pub state: State,
    /// Bytes declared as written.
    pub written: u64,
    /// True if no bytes follow them.
    pub finished: bool,
    /// Bytes reported acknowledged.
    pub acked: u64,
    /// Out-of-order bytes reported as held by the peer.
    pub given_up: Ranges,
    /// Bytes that the peer was allowed to send.
    pub allowed: u64,
    /// Bytes that were placed.
    pub placed: Ranges,
    /// Bytes reported readable.
    pub readable: u64,
    /// True if their end was reported.
    pub reported_finished: bool,
    /// Bytes that the application has read.
    pub consumed: u64,
    /// True while the application does not read.
    pub stalled: bool,
    /// True once its stall is over.
    pub stall_over: bool,
    /// True if a write is scheduled.
    pub write_due: bool,
    /// Code of a reset at this end.
    pub reset: Option<ResetCode>,
    /// First writes, where recorded: time and position.
    pub written_log: Vec<(Duration, u64)>,
    /// First reads: time and position.
    pub read_log: RefCell<Vec<(Duration, u64)>>,
    /// Times of readability: time and position.
    pub readable_log: Vec<(Duration, u64)>,
}

impl Local {
    fn new(allowed: u64) -> Self {
        Self {
            known: false,
            state: State::Alive,
            written: 0,
            finished: false,
            acked: 0,
            given_up: Ranges::default(),
            allowed,
            placed: Ranges::default(),
            readable: 0,
            reported_finished: false,
            consumed: 0,
            stalled: false,
            stall_over: false,
            write_due: false,
            reset: None,
            written_log: Vec::new(),
            read_log: RefCell::default(),
            readable_log: Vec::new(),
        }
    }
}

/// Stream with its state at both ends.
#[derive(Debug)]
pub struct Flow {
    /// Plan of the stream.
    pub plan: StreamPlan,
    /// Number of the stream.
    pub id: StreamId,
    /// Contents of its stream header.
    pub stream_header: Vec<u8>,
    /// Class with which it was opened.
    pub class: Class,
    /// State at each end.
    pub at: [Local; 2],
    key: u64,
}

impl Flow {
    /// Creates the `index`th flow of a run.
    pub fn new(index: usize, id: StreamId, plan: StreamPlan, allowed: [u64; 2]) -> Self {
        let stream_header = stream_header(index, plan.stream_header);
        let mut at = allowed.map(Local::new);
        at[plan.opener].known = true;
        Self {
            id,
            stream_header,
            class: plan.class,
            at,
            key: mix(index as u64),
            plan,
        }
    }

    /// Returns the behaviour of an end.
    pub fn habits(&self, end: End) -> &crate::plan::Habits {
        &self.plan.habits[usize::from(end != self.plan.opener)]
    }

    /// Returns whether nothing more can happen on it at this end.
    pub fn is_over(&self, end: End) -> bool {
        let local = &self.at[end];
        // The other end may never learn of a stream that its opener has reset.
        local.state != State::Alive || (!local.known && self.at[1 - end].state != State::Alive)
    }

    /// Fills in the bytes that `end` writes, from a position on.
    pub fn fill(&self, end: End, from: u64, into: &mut [u8]) {
        fill(self.key ^ end as u64, from, into);
    }

    /// Returns the first position at which `bytes` differ from the bytes of `end`.
    pub fn first_wrong(&self, end: End, from: u64, bytes: &[u8]) -> Option<u64> {
        let (mut truth, mut at) = ([0; 256], from);
        for chunk in bytes.chunks(256) {
            let truth = &mut truth[..chunk.len()];
            self.fill(end, at, truth);
            if truth != chunk {
                let wrong = truth.iter().zip(chunk).position(|(a, b)| a != b);
                return wrong.map(|wrong| at + wrong as u64);
            }
            at += chunk.len() as u64;
        }
        None
    }

    /// Describes the flow in words, for a report of a stuck run.
    pub fn describe(&self) -> String {
        let local = |local: &Local| {
            format!(
                "{}{:?} written {}{} acked {} | allowed {} placed {} readable {}{}",
                if local.known { "" } else { "unknown, " },
                local.state,
                local.written,
                if local.finished { " fin" } else { "" },
                local.acked,
                local.allowed,
                local.placed.prefix(),
                local.readable,
                if local.reported_finished { " fin" } else { "" },
            )
        };
        format!(
            "{} of {:?}: [{}] [{}]",
            self.id,
            self.class,
            local(&self.at[0]),
            local(&self.at[1])
        )
    }
}

/// Returns the stream header of the `index`th flow.
fn stream_header(index: usize, length: usize) -> Vec<u8> {
    let mut stream_header = vec![0; length.max(STREAM_HEADER_MIN)];
    stream_header[..8].copy_from_slice(&(index as u64).to_be_bytes());
    fill(mix(!(index as u64)), 0, &mut stream_header[8..]);
    stream_header
}

/// Returns the flow that a stream header identifies.
pub fn index_of(stream_header: &[u8]) -> Option<usize> {
    Some(u64::from_be_bytes(*stream_header.first_chunk()?) as usize)
}

fn fill(key: u64, from: u64, into: &mut [u8]) {
    let (mut at, mut rest) = (from, into);
    while !rest.is_empty() {
        let word = mix(mix(key) ^ (at / 8)).to_le_bytes();
        let word = &word[(at % 8) as usize..];
        let n = word.len().min(rest.len());
        let (now, later) = rest.split_at_mut(n);
        now.copy_from_slice(&word[..n]);
        (rest, at) = (later, at + n as u64);
    }
}
