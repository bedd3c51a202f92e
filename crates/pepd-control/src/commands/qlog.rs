//! `pepd trace --qlog`: records of a running pepd, into a file.

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

/// Records, on their way into a file.
struct Records<'a> {
    args: &'a TraceArgs,
    out: &'a Path,
    /// The file, once there is a record for it.
    file: Option<File>,
    most: u64,
    /// Events that are in the file, and the bytes of whole records.
    events: u64,
    bytes: u64,
    /// Reference time of the sequence, in milliseconds of Unix time.
    reference: Option<f64>,
    /// The number of the flow that is followed.
    flow: Option<String>,
    stopped: Option<Stopped>,
}

/// Reasons to write no more.
enum Stopped {
    Size,
    Ended(Option<String>),
    Failed(io::Error),
    /// There can be no such file.
    Refused(String),
}

impl Records<'_> {
    /// Takes a line of the answer. Returns whether it goes on.
    fn take(&mut self, line: &str) -> bool {
        let Ok(record) = serde_json::from_str::<Value>(line.trim_start_matches('\u{1e}')) else {
            return true;
        };
        if let Some(reference) = record["trace"]["common_fields"]["reference_time"].as_f64()
            && self.reference.replace(reference).is_some()
        {
            // Another process goes on with the sequence, whose header is in the file.
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

    /// Writes a record. The file is made for the first one: what was there stays where pepd
    /// cannot be asked.
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

/// Writes records until the flow has ended, the time that is `left` is over, or a limit is reached.
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
                    "note: pepd has cut the trace, as another process takes over, or as nobody read; asks again"
                ));
                cut = Some(Instant::now());
            }
            Ok(followed) => break followed,
            Err(err) if err.is_absence() && cut.is_some_and(|at| at.elapsed() < PATIENCE) => {}
            Err(err) if records.events == 0 => return Err(err.into()),
            Err(err) => {
                let (out, events) = (out.display(), records.events);
                return Err(format!("{err}; {out} has {events} events until then").into());
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
            // Readers stop at half a record.
            let _ = records.file.as_ref().map(|file| file.set_len(*bytes));
            let out = out.display();
            let done = format!("{events} events are in it");
            return Err(
                format!("{out}: {err}; {done}. Make room, or name a file elsewhere").into(),
            );
        }
        (Some(Stopped::Refused(why)), _) => return Err(why.clone().into()),
        (Some(Stopped::Size), _) => "the file may not be longer (--size)".to_owned(),
        (Some(Stopped::Ended(reason)), _) => format!(
            "the flow has ended: {}",
            reason.as_deref().unwrap_or("how is not known")
        ),
        (None, Followed::Time) => "the time is over (--for)".to_owned(),
        (None, _) => "interrupted".to_owned(),
    };
    let said = format!("{}: {events} events, {bytes} bytes; {why}", out.display());
    if is_streamed {
        complain(format_args!("{said}"));
        return Ok(ExitStatus::Success);
    }
    Ok(print(format_args!("{said}\n")))
}
