//! Command `pepd trace --qlog`: records of a running pepd in a file.

use std::{
    error::Error,
    fs::File,
    io::{self, Write as _},
    path::Path,
    time::{Duration, Instant},
};

use hyper::Method;
use pepd_api::exit::ExitStatus;
use serde_json::Value;

use super::{
    capture::{create_file, standard_output},
    trace::{PATIENCE, RETRY, target},
};
use crate::{
    cli::TraceArgs,
    client::{Followed, Follower},
    output::{complain, print},
};

/// Writer of records.
struct Records<'a> {
    args: &'a TraceArgs,
    out: &'a Path,
    /// File, created for the first record.
    file: Option<File>,
    most: u64,
    /// Events written, and bytes of complete records.
    events: u64,
    bytes: u64,
    /// Reference time of the sequence, in milliseconds of Unix time.
    reference: Option<f64>,
    /// Number of the flow.
    flow: Option<String>,
    stopped: Option<Stopped>,
}

/// Reasons to stop writing.
enum Stopped {
    Size,
    Ended(Option<String>),
    Failed(io::Error),
    /// The file cannot be created.
    Refused(String),
}

impl Records<'_> {
    /// Handles a line of the response. Returns whether to continue.
    fn take(&mut self, line: &str) -> bool {
        let Ok(record) = serde_json::from_str::<Value>(line.trim_start_matches('\u{1e}')) else {
            return true;
        };
        if let Some(reference) = record["trace"]["common_fields"]["reference_time"].as_f64()
            && self.reference.replace(reference).is_some()
        {
            // After a takeover the sequence continues; its header is already in the file.
            return true;
        }
        if self.bytes + line.len() as u64 > self.most {
            self.stopped = Some(Stopped::Size);
            return false;
        }
        if let Err(stopped) = self.write(line) {
            self.stopped = Some(stopped);
            return false;
        }
        self.bytes += line.len() as u64;
        self.events += u64::from(record.get("name").is_some());
        match record["name"].as_str() {
            Some("pepd:flow") => {
                self.flow = record["data"]["id"].as_str().map(ToOwned::to_owned);
            }
            Some("pepd:flow_ended") => {
                let reason = record["data"]["reason"].as_str();
                self.stopped = Some(Stopped::Ended(reason.map(ToOwned::to_owned)));
            }
            _ => {}
        }
        true
    }

    /// Writes a record. The first record creates the file, so that an existing file survives a
    /// failed request.
    fn write(&mut self, line: &str) -> Result<(), Stopped> {
        let file = match &mut self.file {
            Some(file) => file,
            None if is_streamed(self.out) => self
                .file
                .insert(standard_output().map_err(Stopped::Refused)?),
            None => {
                let made = create_file(self.out, self.args.force);
                self.file.insert(made.map_err(Stopped::Refused)?)
            }
        };
        file.write_all(line.as_bytes()).map_err(Stopped::Failed)
    }

    fn target(&self) -> String {
        let args = self.args;
        let target = match (&args.peer, self.flow.as_ref().or(args.flow.as_ref())) {
            (Some(peer), _) => format!("/v1/peers/{peer}/qlog"),
            (None, flow) => format!("{}/qlog", target(flow.map_or("", String::as_str))),
        };
        match self.reference {
            Some(reference) => format!("{target}?since={reference}"),
            None => target,
        }
    }
}

/// Writes records until the flow ends, the time `left` is over, or a limit is reached.
pub(super) fn record(
    args: &TraceArgs,
    out: &Path,
    socket: &Path,
    left: impl Fn() -> Option<Duration>,
) -> Result<ExitStatus, Box<dyn Error>> {
    let mut follower = Follower::new(socket)?;
    let mut records = Records {
        args,
        out,
        file: None,
        most: args.size.bytes(),
        events: 0,
        bytes: 0,
        reference: None,
        flow: None,
        stopped: None,
    };
    let mut cut: Option<Instant> = None;
    let followed = loop {
        let target = records.target();
        let request = (Method::GET, target.as_str(), String::new());
        match follower.lines(request, left(), |line| records.take(line)) {
            Ok(Followed::Cut) if records.stopped.is_none() => {
                complain(format_args!(
                    "note: trace interrupted: another process takes over, or this reader is too slow; retrying"
                ));
                cut = Some(Instant::now());
            }
            Ok(followed) => break followed,
            Err(err) if err.is_absence() && cut.is_some_and(|at| at.elapsed() < PATIENCE) => {}
            Err(err) if records.events == 0 => return Err(err.into()),
            Err(err) => {
                let (out, events) = (out.display(), records.events);
                return Err(format!("{err}; {out} has the {events} events before").into());
            }
        }
        if follower.pause(RETRY) {
            break Followed::Interrupted;
        }
    };
    report(&records, followed)
}

fn is_streamed(out: &Path) -> bool {
    out.as_os_str() == "-"
}

fn report(records: &Records<'_>, followed: Followed) -> Result<ExitStatus, Box<dyn Error>> {
    let Records {
        events, bytes, out, ..
    } = records;
    let is_streamed = is_streamed(out);
    let why = match (&records.stopped, followed) {
        (Some(Stopped::Failed(err)), _) => {
            if is_streamed && err.kind() == io::ErrorKind::BrokenPipe {
                return Ok(ExitStatus::Success);
            }
            // A truncated record stops readers.
            let _ = records.file.as_ref().map(|file| file.set_len(*bytes));
            let out = out.display();
            let done = format!("the file has {events} events");
            return Err(format!(
                "{out}: {err}; {done}. Free some space, or choose another file system"
            )
            .into());
        }
        (Some(Stopped::Refused(why)), _) => return Err(why.clone().into()),
        (Some(Stopped::Size), _) => "size limit reached (--size)".to_owned(),
        (Some(Stopped::Ended(reason)), _) => format!(
            "the flow has ended: {}",
            reason.as_deref().unwrap_or("reason unknown")
        ),
        (None, Followed::Time) => "time limit reached (--for)".to_owned(),
        (None, _) => "interrupted".to_owned(),
    };
    let said = format!("{}: {events} events, {bytes} bytes; {why}", out.display());
    if is_streamed {
        complain(format_args!("{said}"));
        return Ok(ExitStatus::Success);
    }
    Ok(print(format_args!("{said}\n")))
}
