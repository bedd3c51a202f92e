//! The daemon's log: one JSON object per line.

use std::{
    io::{BufRead as _, BufReader, Read},
    sync::Arc,
    thread,
    time::Duration,
};

use parking_lot::Mutex;
use serde_json::{Map, Value};

use crate::wait::{PATIENCE, wait_within};

/// A logged event.
#[derive(Debug, Clone)]
pub struct Event {
    json: Value,
}

impl Event {
    /// Returns the message.
    pub fn message(&self) -> &str {
        self.field("message").and_then(Value::as_str).unwrap_or("")
    }

    /// Returns the level: `INFO`, `WARN`, ...
    pub fn level(&self) -> &str {
        self.json["level"].as_str().unwrap_or("")
    }

    /// Returns a field of the event, or of a span around it.
    pub fn field(&self, name: &str) -> Option<&Value> {
        let objects = [&self.json, &self.json["span"]];
        objects.into_iter().find_map(|object| object.get(name))
    }

    /// Returns a field as text.
    pub fn text(&self, name: &str) -> String {
        match self.field(name) {
            Some(Value::String(text)) => text.clone(),
            Some(value) => value.to_string(),
            None => String::new(),
        }
    }

    /// Returns a field as a number.
    ///
    /// # Panics
    /// When the field is missing, with the line.
    pub fn number(&self, name: &str) -> u64 {
        let field = self.field(name);
        field
            .and_then(|value| value.as_u64().or_else(|| value.as_str()?.parse().ok()))
            .unwrap_or_else(|| panic!("no number `{name}` in {}", self.json))
    }

    /// Returns the fields of the event itself.
    pub fn fields(&self) -> Map<String, Value> {
        self.json.as_object().cloned().unwrap_or_default()
    }
}

/// The end of a flow, as logged at info.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlowEnd {
    /// The client's address and port.
    pub client: String,
    /// The destination's address and port.
    pub destination: String,
    /// The site with its policy.
    pub site: String,
    /// Bytes from the client to the server.
    pub up_bytes: u64,
    /// Bytes from the server to the client.
    pub down_bytes: u64,
    /// `closed`, `client_reset`, ...
    pub reason: String,
}

/// The daemon's output so far.
#[derive(Debug, Clone, Default)]
pub struct Log {
    lines: Arc<Mutex<Lines>>,
}

#[derive(Debug, Default)]
struct Lines {
    raw: Vec<String>,
    ended: bool,
}

impl Log {
    /// Reads a daemon's standard error to its end on a separate thread.
    ///
    /// # Panics
    /// At the limit of threads.
    pub fn new(stderr: impl Read + Send + 'static) -> Self {
        let log = Self::default();
        let written = log.clone();
        thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                written.lines.lock().raw.push(line);
            }
            written.lines.lock().ended = true;
        });
        log
    }

    /// Waits until the last line has been read, which may be after the daemon's end.
    ///
    /// # Panics
    /// When another process keeps its standard error open, for [`PATIENCE`].
    pub fn wait_end(&self) {
        wait_within(PATIENCE, || self.ended().then_some(()))
            .expect("no other process to hold the log");
    }

    /// Returns the number of lines so far, for use with [`events_since`](Self::events_since).
    pub fn position(&self) -> usize {
        self.lines.lock().raw.len()
    }

    /// Returns the events from a position on. Lines that are not JSON, as of a panic, are left out.
    pub fn events_since(&self, position: usize) -> Vec<Event> {
        let lines = self.lines.lock();
        let parsed = lines.raw.iter().skip(position);
        parsed
            .filter_map(|line| serde_json::from_str(line).ok())
            .map(|json| Event { json })
            .collect()
    }

    /// Returns the number of bytes so far.
    pub fn bytes(&self) -> u64 {
        let lines = self.lines.lock();
        let lengths = lines.raw.iter().map(|line| line.len() as u64 + 1);
        lengths.sum()
    }

    /// Returns the output unchanged.
    pub fn text(&self) -> String {
        self.lines.lock().raw.join("\n")
    }

    /// Returns the last lines unchanged, and of earlier ones those that may explain a failure. Of
    /// counters, which tests request often, it returns only the last.
    pub fn tail(&self, lines: usize) -> String {
        let is_counters = |line: &str| line.contains("\"message\":\"counters\"");
        let log = self.lines.lock();
        let last = log.raw.iter().rposition(|line| is_counters(line));
        let kept = log.raw.iter().enumerate();
        let kept: Vec<_> = kept
            .filter(|(index, line)| !is_counters(line) || Some(*index) == last)
            .map(|(_, line)| line.as_str())
            .collect();
        let (earlier, last) = kept.split_at(kept.len().saturating_sub(lines));
        let notable = earlier.iter().filter(|line| is_notable(line));
        let shown: Vec<_> = notable.chain(last).copied().collect();
        shown.join("\n")
    }

    /// Returns whether the daemon has closed its standard error.
    pub fn ended(&self) -> bool {
        self.lines.lock().ended
    }

    /// Waits for an event from a position on; `None` on a timeout, or if the log ends without it.
    pub fn find(
        &self,
        position: usize,
        limit: Duration,
        wanted: impl Fn(&Event) -> bool,
    ) -> Option<Event> {
        let found = wait_within(limit, || {
            // Checked first: nothing is added to an ended log.
            let ended = self.ended();
            let found = self.events_since(position).into_iter().find(&wanted);
            (found.is_some() || ended).then_some(found)
        });
        found.flatten()
    }

    /// Waits for an event whose message contains `words`, up to [`PATIENCE`].
    ///
    /// # Panics
    /// On a timeout, with the end of the log.
    pub fn expect(&self, words: &str) -> Event {
        self.find(0, PATIENCE, |event| event.message().contains(words))
            .unwrap_or_else(|| panic!("never logged: {words}\n{}", self.tail(60)))
    }

    /// Returns all flows that have ended so far.
    pub fn flow_ends(&self) -> Vec<FlowEnd> {
        let events = self.events_since(0);
        let ends = events
            .iter()
            .filter(|event| event.message() == "flow ended");
        ends.map(|end| FlowEnd {
            client: end.text("client"),
            destination: end.text("destination"),
            site: end.text("site"),
            up_bytes: end.number("up_bytes"),
            down_bytes: end.number("down_bytes"),
            reason: end.text("reason"),
        })
        .collect()
    }
}

/// Returns whether a line has a warning, an error, a takeover, or the end of a flow that no host
/// has wanted.
fn is_notable(line: &str) -> bool {
    const NOTABLE: [&str; 3] = ["\"level\":\"ERROR\"", "\"level\":\"WARN\"", "took over"];
    const WANTED: [&str; 2] = ["\"reason\":\"closed\"", "\"reason\":\"client_reset\""];
    let has = |part: &&str| line.contains(part);
    NOTABLE.iter().any(has) || line.contains("flow ended") && !WANTED.iter().any(has)
}
