//! Command `pepd trace`.

use std::{
    error::Error,
    time::{Duration, Instant},
};

use hyper::Method;
use pepd_api::{
    exit::ExitStatus,
    trace::{End, TraceEvent, What},
};

use super::{qlog, requests::socket_of};
use crate::{
    cli::TraceArgs,
    client::{AskError, Followed, Follower},
    output::{complain, try_print},
};

/// Maximum wait for the next process to answer.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);
pub(super) const RETRY: Duration = Duration::from_millis(100);

/// Returns the path of a flow in requests.
pub(super) fn target(flow: &str) -> String {
    // A link-local address has `%` before its interface.
    format!("/v1/flows/{}", flow.replace('%', "%25"))
}

/// Runs `pepd trace`. Returns when the flow has ended, or on a signal or limit.
pub(super) fn trace(args: &TraceArgs) -> Result<ExitStatus, Box<dyn Error>> {
    let socket = socket_of(&args.admin.which)?;
    let begin = Instant::now();
    let left = || {
        args.lasting
            .map(|lasting| lasting.saturating_sub(begin.elapsed()))
    };
    if let Some(out) = &args.qlog {
        return qlog::record(args, out, &socket, left);
    }
    let shown = if args.admin.json {
        Shown::Json
    } else {
        Shown::Text
    };
    let mut watched = Watched::new(args.flow.clone().unwrap_or_default(), shown);
    watched.until_its_end(&mut Follower::new(&socket)?, left)?;
    match watched.error {
        Some(err) => Err(err),
        None => Ok(ExitStatus::Success),
    }
}

/// Output format of events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shown {
    Text,
    Json,
    Nothing,
}

/// Flow that is traced.
pub(super) struct Watched {
    /// Number of the flow once known, since an address may soon belong to another flow; before that
    /// the argument.
    flow: String,
    shown: Shown,
    /// End of the flow, if reported.
    end: Option<End>,
    /// Error in parsing or printing an event.
    error: Option<Box<dyn Error>>,
}

impl Watched {
    /// Creates the trace of a flow, given by its number or client.
    pub(super) fn new(flow: String, shown: Shown) -> Self {
        Self {
            flow,
            shown,
            end: None,
            error: None,
        }
    }

    /// Returns the end of the flow, if reported.
    pub(super) fn end(self) -> Option<End> {
        self.end
    }

    /// Follows the flow through all processes that carry it, for at most the time `left`.
    pub(super) fn until_its_end(
        &mut self,
        follower: &mut Follower,
        left: impl Fn() -> Option<Duration>,
    ) -> Result<Followed, AskError> {
        let mut followed = self.follow(follower, left())?;
        while followed == Followed::Cut {
            if self.shown != Shown::Nothing {
                complain(format_args!(
                    "note: trace interrupted: another process takes over the flow, or this reader is too slow; retrying"
                ));
            }
            followed = self.follow_again(follower, &left)?;
        }
        Ok(followed)
    }

    fn follow(
        &mut self,
        follower: &mut Follower,
        left: Option<Duration>,
    ) -> Result<Followed, AskError> {
        let target = format!("{}/trace", target(&self.flow));
        let request = (Method::GET, target.as_str(), String::new());
        follower.follow(request, left, |data| match self.print(data) {
            Ok(goes_on) => goes_on,
            Err(err) => {
                self.error = Some(err);
                false
            }
        })
    }

    /// Follows the flow again, and tolerates that no process answers for a moment.
    fn follow_again(
        &mut self,
        follower: &mut Follower,
        left: impl Fn() -> Option<Duration>,
    ) -> Result<Followed, AskError> {
        let begin = Instant::now();
        loop {
            if follower.pause(RETRY) {
                return Ok(Followed::Interrupted);
            }
            match self.follow(follower, left()) {
                Err(err) if err.is_absence() && begin.elapsed() < PATIENCE => {}
                followed => return followed,
            }
        }
    }

    /// Prints an event. Returns whether to continue.
    fn print(&mut self, data: &str) -> Result<bool, Box<dyn Error>> {
        let event: TraceEvent = serde_json::from_str(data)?;
        let printed = match self.shown {
            Shown::Json => try_print(format_args!("{data}\n")),
            Shown::Text => try_print(format_args!("{event}")),
            Shown::Nothing => Ok(()),
        };
        match printed {
            // The reader has closed the pipe, as `head` does.
            Err(err) if err.kind() == std::io::ErrorKind::BrokenPipe => return Ok(false),
            printed => printed?,
        }
        match event.what {
            What::Flow(flow) => self.flow = flow.flow.id,
            What::Look(_) => {}
            What::Ended(end) => {
                self.end = Some(end);
                return Ok(false);
            }
        }
        Ok(true)
    }
}
