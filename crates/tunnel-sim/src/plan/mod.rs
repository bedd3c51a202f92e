//! Plan of a run.

mod draw;

use std::time::Duration;

use tunnel::{class::Class, session::SessionConfig, wire::ResetCode};
use winkemu_link::{LinkConfig, LinkOptions, OptionError};

pub use draw::Scope;

use crate::side::End;

/// Plan of a run. Randomness on the link comes from the same seed.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Seed of all randomness.
    pub seed: u64,
    /// Link in both directions, in the syntax of winkemu.
    pub link: String,
    /// Options for the direction from end 0 to end 1 only.
    pub ab: String,
    /// Options for the direction from end 1 to end 0 only.
    pub ba: String,
    /// Maximum length of IP packets, each from a time on.
    pub mtu: Vec<(Duration, usize)>,
    /// Configuration of both sessions.
    pub sessions: [SessionConfig; 2],
    /// Maximum delay with which ends wake up.
    pub lateness: Duration,
    /// Flows.
    pub streams: Vec<StreamPlan>,
    /// Messages outside streams.
    pub messages: Vec<MessagesPlan>,
    /// Other events, in any order.
    pub steps: Vec<(Duration, End, Step)>,
    /// Time after which the link has no more disturbances.
    pub quiet_from: Duration,
    /// Maximum duration of the run after that.
    pub patience: Duration,
    /// Maximum memory of an end, without the streams' bytes, which it does not hold.
    pub memory_max: u64,
}

/// Event at an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Freezes the end for a time; incoming packets wait.
    Freeze(Duration),
    /// Hints that the link is down.
    HintDown,
    /// Hints that the link is up.
    HintUp,
    /// Restarts the end without state.
    Restart,
    /// Moves the end to another address.
    Roam,
}

/// Flow from its beginning to its end.
#[derive(Clone, Debug, PartialEq)]
pub struct StreamPlan {
    /// End that opens it.
    pub opener: End,
    /// Time of opening.
    pub at: Duration,
    /// Class of its bytes.
    pub class: Class,
    /// Site whose rate it shares.
    pub site: u32,
    /// Length of the stream header, with room for its identification.
    pub stream_header: usize,
    /// Behaviour of the opener and of the other end.
    pub habits: [Habits; 2],
    /// Reset: the end, 0 for the opener; the time after it knows the stream; the code.
    pub reset: Option<(End, Duration, ResetCode)>,
    /// Change of class by the opener, after this time.
    pub reclass: Option<(Duration, Class)>,
}

/// Messages outside streams, of one queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MessagesPlan {
    /// Sending end.
    pub end: End,
    /// Time of the first one.
    pub at: Duration,
    /// Class of the messages.
    pub class: Class,
    /// Site whose rate they share.
    pub site: u32,
    /// Number of messages.
    pub count: u64,
    /// Interval between messages.
    pub gap: Duration,
    /// Length of each message.
    pub len: usize,
}

/// Behaviour of an application.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Habits {
    /// Bytes that it writes before it finishes.
    pub bytes: u64,
    /// Bytes per write.
    pub chunk: u64,
    /// Pause between writes.
    pub gap: Duration,
    /// Maximum unacknowledged bytes.
    pub buffer: u64,
    /// True if it writes only after the other has finished.
    pub answers: bool,
    /// Credit that it grants beyond what it has read.
    pub window: u64,
    /// Position at which it stops reading, and for how long.
    pub stall: Option<(u64, Duration)>,
}

impl Default for Habits {
    fn default() -> Self {
        Self {
            bytes: 0,
            chunk: u64::MAX,
            gap: Duration::ZERO,
            buffer: u64::MAX,
            answers: false,
            window: 1 << 20,
            stall: None,
        }
    }
}

impl Plan {
    /// Returns the link.
    ///
    /// # Errors
    /// Fails if winkemu rejects its options.
    pub fn link(&self) -> Result<LinkConfig, OptionError> {
        let options = LinkOptions {
            both: self.link.parse()?,
            ab: Some(self.ab.parse()?),
            ba: Some(self.ba.parse()?),
        };
        options.resolve_without_files()
    }

    /// Returns the MTU at a time.
    pub fn mtu(&self, now: Duration) -> usize {
        let current = self.mtu.iter().rev().find(|(from, _)| *from <= now);
        current.map_or(usize::MAX, |(_, mtu)| *mtu)
    }

    /// Returns plans that each lack one thing of this one, the largest first: to find the smallest
    /// that fails.
    pub fn simpler(&self) -> Vec<Self> {
        let mut plans = Vec::new();
        let mut push = |change: &dyn Fn(&mut Self)| {
            let mut plan = self.clone();
            change(&mut plan);
            if plan != *self {
                plans.push(plan);
            }
        };
        let half = self.streams.len() / 2;
        push(&|plan| plan.streams.truncate(half.max(1)));
        push(&|plan| drop(plan.streams.drain(..half)));
        for i in 0..self.streams.len().min(20) {
            push(&|plan| plan.streams = without(&plan.streams, i));
        }
        push(&|plan| plan.messages.clear());
        for i in 0..self.messages.len() {
            push(&|plan| plan.messages = without(&plan.messages, i));
        }
        push(&|plan| plan.steps.clear());
        for i in 0..self.steps.len() {
            push(&|plan| plan.steps = without(&plan.steps, i));
        }
        push(&|plan| plan.mtu.clear());
        push(&|plan| plan.lateness = Duration::ZERO);
        let texts: [fn(&mut Self) -> &mut String; 3] =
            [|p| &mut p.link, |p| &mut p.ab, |p| &mut p.ba];
        for text_of in texts {
            for text in shorter(text_of(&mut self.clone())) {
                push(&|plan| text_of(plan).clone_from(&text));
            }
        }
        for i in 0..self.streams.len().min(20) {
            push(&|plan| plan.streams[i].reset = None);
            push(&|plan| plan.streams[i].reclass = None);
            for side in 0..2 {
                push(&|plan| plan.streams[i].habits[side].stall = None);
                push(&|plan| plan.streams[i].habits[side].gap = Duration::ZERO);
                push(&|plan| plan.streams[i].habits[side].bytes /= 2);
                push(&|plan| plan.streams[i].habits[side].answers = false);
            }
        }
        plans
    }
}

/// Returns link options with one left out. Rate and delay stay: the sessions know them.
fn shorter(text: &str) -> Vec<String> {
    let keys = [
        "loss",
        "gilbert",
        "ber",
        "jitter",
        "reorder",
        "duplicate",
        "corrupt",
        "outages",
        "wink",
        "queued",
        "in-flight",
        "queue",
        "aqm",
    ];
    let mut options: Vec<String> = Vec::new();
    for part in text.split(',').filter(|part| !part.is_empty()) {
        let key = part.split('=').next().unwrap_or_default();
        match options.last_mut() {
            Some(last) if !keys.contains(&key) && !["rate", "delay"].contains(&key) => {
                last.push(',');
                last.push_str(part);
            }
            _ => options.push(part.to_owned()),
        }
    }
    let leave_out = |at: usize| {
        let rest = options.iter().enumerate().filter(|(i, _)| *i != at);
        rest.map(|(_, option)| option.as_str())
            .collect::<Vec<_>>()
            .join(",")
    };
    let removable = |option: &String| {
        keys.iter()
            .any(|key| option.starts_with(&format!("{key}=")))
    };
    (0..options.len())
        .filter(|at| removable(&options[*at]))
        .map(leave_out)
        .collect()
}

fn without<T: Clone>(all: &[T], at: usize) -> Vec<T> {
    [&all[..at], &all[at + 1..]].concat()
}
