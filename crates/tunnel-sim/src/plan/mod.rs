//! What happens in a run.

mod draw;

use std::time::Duration;

use tunnel::{class::Class, session::SessionConfig, wire::ResetCode};
use winkemu_link::{LinkConfig, LinkOptions, OptionError};

pub use draw::Scope;

use crate::side::End;

/// What happens in a run, apart from chance on the link, which is of the same seed.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Of everything by chance.
    pub seed: u64,
    /// The link in both directions, as winkemu reads it.
    pub link: String,
    /// What is different from end 0 to end 1.
    pub ab: String,
    /// What is different from end 1 to end 0.
    pub ba: String,
    /// The longest IP packets that pass, each from a time on.
    pub mtu: Vec<(Duration, usize)>,
    /// How the two ends behave.
    pub sessions: [SessionConfig; 2],
    /// How much too late the ends wake up, at most.
    pub lateness: Duration,
    /// The flows.
    pub streams: Vec<StreamPlan>,
    /// Packets beside them.
    pub messages: Vec<MessagesPlan>,
    /// What else happens, in any order.
    pub steps: Vec<(Duration, End, Step)>,
    /// From when on nothing out of the ordinary happens to the link.
    pub quiet_from: Duration,
    /// How long everything may take after that.
    pub patience: Duration,
    /// How many bytes an end may hold, beside the streams' bytes, which are not with it.
    pub memory_max: u64,
}

/// What happens to an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// It does not run for so long; what arrives waits.
    Freeze(Duration),
    /// It is told that the link is down.
    HintDown,
    /// It is told that the link is up.
    HintUp,
    /// It forgets everything and begins anew.
    Restart,
    /// It is somewhere else from now on.
    Roam,
}

/// A flow from its beginning to its end.
#[derive(Clone, Debug, PartialEq)]
pub struct StreamPlan {
    /// Who opens it.
    pub opener: End,
    /// When.
    pub at: Duration,
    /// How its bytes are sent.
    pub class: Class,
    /// With whom it shares.
    pub site: u32,
    /// The length of the greeting; at least what makes it unique.
    pub stream_header: usize,
    /// What the opener does, what the other does.
    pub habits: [Habits; 2],
    /// Which of the two resets it, 0 for the opener; how long after it has come to know it; why.
    pub reset: Option<(End, Duration, ResetCode)>,
    /// The opener gives it another class, so long after.
    pub reclass: Option<(Duration, Class)>,
}

/// Packets beside streams, of one queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MessagesPlan {
    /// Who sends them.
    pub end: End,
    /// When the first one.
    pub at: Duration,
    /// How they are sent.
    pub class: Class,
    /// With whom they share.
    pub site: u32,
    /// How many there are.
    pub count: u64,
    /// How long it takes from one to the next.
    pub gap: Duration,
    /// How long they are.
    pub len: usize,
}

/// How an application writes and reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Habits {
    /// How many bytes it writes before it finishes.
    pub bytes: u64,
    /// How many at a time.
    pub chunk: u64,
    /// How long it waits between chunks.
    pub gap: Duration,
    /// How many bytes may wait for their acknowledgement.
    pub buffer: u64,
    /// Whether it writes only after the other has finished.
    pub answers: bool,
    /// How much it lets the other write ahead of what it has read.
    pub window: u64,
    /// It stops to read at that position, for so long.
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
    /// The link.
    ///
    /// # Errors
    /// If winkemu does not take its options.
    pub fn link(&self) -> Result<LinkConfig, OptionError> {
        let options = LinkOptions {
            both: self.link.parse()?,
            ab: Some(self.ab.parse()?),
            ba: Some(self.ba.parse()?),
        };
        options.resolve_without_files()
    }

    /// The longest IP packet that passes at a time.
    pub fn mtu(&self, now: Duration) -> usize {
        let current = self.mtu.iter().rev().find(|(from, _)| *from <= now);
        current.map_or(usize::MAX, |(_, mtu)| *mtu)
    }

    /// Plans like this one with one thing less, the largest things first: to find the smallest that fails.
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

/// Link options with one left out. The rate and the delay stay: the sessions know them.
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
