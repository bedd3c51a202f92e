//! `pepd trace --qlog`: records of a running pepd, into a file.

use std::{
    error::Error,
    fs::{self, File},
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
struct Records {
    file: File,
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
}

impl Records {
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
        if let Err(err) = self.file.write_all(line.as_bytes()) {
            self.stopped = Some(Stopped::Failed(err));
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

    fn target(&self, args: &TraceArgs) -> String {
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
    let is_streamed = out.as_os_str() == "-";
    let file = if is_streamed {
        standard_output()?
    } else {
        create_file(out, args.force)?
    };
    let mut records = Records {
        file,
        most: args.size.bytes(),
        events: 0,
        bytes: 0,
        reference: None,
        flow: None,
        stopped: None,
    };
    let mut cut: Option<Instant> = None;
    let followed = loop {
        let target = records.target(args);
        let request = (Method::GET, target.as_str(), String::new());
        match follower.lines(request, left(), |line| records.take(line)) {
            Ok(Followed::Cut) if records.stopped.is_none() => {
                complain(format_args!(
                    "note: pepd has cut the trace, as another process takes over; asks again"
                ));
                cut = Some(Instant::now());
            }
            Ok(followed) => break followed,
            Err(err) if err.is_absence() && cut.is_some_and(|at| at.elapsed() < PATIENCE) => {}
            Err(err) => {
                if records.bytes == 0 && !is_streamed {
                    let _ = fs::remove_file(out);
                }
                return Err(err.into());
            }
        }
        if follower.pause(RETRY) {
            break Followed::Interrupted;
        }
    };
    report(&records, out, is_streamed, followed)
}

fn report(
    records: &Records,
    out: &Path,
    is_streamed: bool,
    followed: Followed,
) -> Result<ExitStatus, Box<dyn Error>> {
    let Records { events, bytes, .. } = records;
    let why = match (&records.stopped, followed) {
        (Some(Stopped::Failed(err)), _) => {
            if is_streamed && err.kind() == io::ErrorKind::BrokenPipe {
                return Ok(ExitStatus::Success);
            }
            // Readers stop at half a record.
            let _ = records.file.set_len(*bytes);
            let out = out.display();
            let done = format!("{events} events are in it");
            return Err(
                format!("{out}: {err}; {done}. Make room, or name a file elsewhere").into(),
            );
        }
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
