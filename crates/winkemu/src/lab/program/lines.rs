//! Lines that a program writes, collected while it runs.

use std::{
    io::{BufRead as _, BufReader, Read},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};

/// Maximum number of lines kept; the oldest are dropped.
const LINES_MAX: usize = 10_000;

/// Collector of the lines of a stream, on a thread of its own.
#[derive(Debug, Clone)]
pub struct Lines {
    shared: Arc<(Mutex<State>, Condvar)>,
}

#[derive(Debug, Default)]
struct State {
    lines: Vec<String>,
    /// Number of dropped lines.
    forgotten: usize,
    ended: bool,
}

impl Lines {
    /// Starts to read; the thread ends with the stream.
    pub fn collect(stream: impl Read + Send + 'static) -> Self {
        let shared = Arc::new((Mutex::new(State::default()), Condvar::new()));
        let lines = Self {
            shared: Arc::clone(&shared),
        };
        thread::spawn(move || {
            let (state, changed) = &*shared;
            for line in BufReader::new(stream).split(b'\n') {
                let Ok(line) = line else { break };
                state
                    .lock()
                    .push(String::from_utf8_lossy(&line).into_owned());
                changed.notify_all();
            }
            state.lock().ended = true;
            changed.notify_all();
        });
        lines
    }

    /// Number of lines so far, for [`wait_for`](Self::wait_for).
    pub fn count(&self) -> usize {
        let state = self.shared.0.lock();
        state.forgotten + state.lines.len()
    }

    /// Waits for a line for which `wanted` is true, from line number `from` on. Returns `None` if
    /// the stream ends or the time is over without one.
    pub fn wait_for(
        &self,
        from: usize,
        timeout: Duration,
        wanted: impl Fn(&str) -> bool,
    ) -> Option<String> {
        let deadline = Instant::now() + timeout;
        let (state, changed) = &*self.shared;
        let mut state = state.lock();
        loop {
            let start = from.saturating_sub(state.forgotten).min(state.lines.len());
            if let Some(line) = state.lines[start..].iter().find(|line| wanted(line)) {
                return Some(line.clone());
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if state.ended || left.is_zero() {
                return None;
            }
            changed.wait_for(&mut state, left);
        }
    }

    /// Waits for the end of the stream, so that [`all`](Self::all) is complete.
    pub fn wait_end(&self, timeout: Duration) {
        self.wait_for(usize::MAX, timeout, |_| false);
    }

    /// All lines so far.
    pub fn all(&self) -> Vec<String> {
        self.shared.0.lock().lines.clone()
    }

    /// Last lines, joined, for an error message.
    pub fn tail(&self, count: usize) -> String {
        let state = self.shared.0.lock();
        state.lines[state.lines.len().saturating_sub(count)..].join("\n")
    }
}

impl State {
    fn push(&mut self, line: String) {
        if self.lines.len() == LINES_MAX {
            let half = LINES_MAX / 2;
            self.lines.drain(..half);
            self.forgotten += half;
        }
        self.lines.push(line);
    }
}
