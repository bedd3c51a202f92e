//! A stream as both ends and the truth see it.

use std::{cell::RefCell, time::Duration};

use splitmix::mix;
use tunnel::{
    class::Class,
    wire::{ResetCode, StreamId},
};

use crate::{plan::StreamPlan, ranges::Ranges, side::End};

/// The least length of a greeting: what tells which flow it is.
pub const STREAM_HEADER_MIN: usize = 8;

/// How a stream ended for an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It has not.
    Alive,
    /// It was reset here.
    Reset,
    /// The peer has reset it.
    ResetByPeer,
    /// Both halves finished.
    Closed,
    /// Its session is no more.
    Orphan,
}

/// A stream at one end.
#[derive(Debug)]
pub struct Local {
    /// Whether it was opened here, or reported opened.
    pub known: bool,
    /// Whether it has ended here, and how.
    pub state: State,
    /// Bytes that were said to be written.
    pub written: u64,
    /// Whether nothing is to follow them.
    pub finished: bool,
    /// Bytes that were reported acknowledged.
    pub acked: u64,
    /// Bytes that the peer was said to have though it lacks some before them.
    pub given_up: Ranges,
    /// Bytes that the peer was allowed to send.
    pub allowed: u64,
    /// Bytes that were placed.
    pub placed: Ranges,
    /// Bytes that were reported readable.
    pub readable: u64,
    /// Whether their end was reported.
    pub reported_finished: bool,
    /// Bytes that the application has read.
    pub consumed: u64,
    /// Whether it does not read for the time being.
    pub stalled: bool,
    /// Whether it has got over its stall.
    pub stall_over: bool,
    /// Whether a write is on the agenda.
    pub write_due: bool,
    /// Why it was reset here.
    pub reset: Option<ResetCode>,
    /// When what was first written, where that is noted: time and position.
    pub written_log: Vec<(Duration, u64)>,
    /// When what was read for the first time: time and position.
    pub read_log: RefCell<Vec<(Duration, u64)>>,
    /// When what was readable: time and position.
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

/// A stream at both ends.
#[derive(Debug)]
pub struct Flow {
    /// What is to happen on it.
    pub plan: StreamPlan,
    /// Its number.
    pub id: StreamId,
    /// What its greeting says.
    pub stream_header: Vec<u8>,
    /// The class it was opened with.
    pub class: Class,
    /// What it is at each end.
    pub at: [Local; 2],
    key: u64,
}

impl Flow {
    /// The `index`th flow of a run.
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

    /// How an end behaves.
    pub fn habits(&self, end: End) -> &crate::plan::Habits {
        &self.plan.habits[usize::from(end != self.plan.opener)]
    }

    /// Whether nothing more can happen on it at this end.
    pub fn is_over(&self, end: End) -> bool {
        let local = &self.at[end];
        // What its opener has reset, the other may never hear of.
        local.state != State::Alive || (!local.known && self.at[1 - end].state != State::Alive)
    }

    /// The bytes that `end` writes, from a position on.
    pub fn fill(&self, end: End, from: u64, into: &mut [u8]) {
        fill(self.key ^ end as u64, from, into);
    }

    /// The first position at which `bytes` are not what `end` writes there.
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

    /// In words, for a report of what is stuck.
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

/// The greeting of the `index`th flow.
fn stream_header(index: usize, length: usize) -> Vec<u8> {
    let mut stream_header = vec![0; length.max(STREAM_HEADER_MIN)];
    stream_header[..8].copy_from_slice(&(index as u64).to_be_bytes());
    fill(mix(!(index as u64)), 0, &mut stream_header[8..]);
    stream_header
}

/// Which flow a greeting says that it is of.
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
