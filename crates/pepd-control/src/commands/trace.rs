//! `pepd trace`.

use std::{
    error::Error,
    path::Path,
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

/// Another process answers within so long, or none does.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);
pub(super) const RETRY: Duration = Duration::from_millis(100);

/// Where a flow is asked for.
pub(super) fn target(flow: &str) -> String {
    // That of a link-local address, before its interface.
    format!("/v1/flows/{}", flow.replace('%', "%25"))
}

/// Returns when the flow has ended, or nobody wants to know any more.
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
    watched.until_its_end(&socket, left)?;
    match watched.error {
        Some(err) => Err(err),
        None => Ok(ExitStatus::Success),
    }
}

/// How events are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shown {
    Text,
    Json,
    Nothing,
}

/// A flow that is watched.
pub(super) struct Watched {
    /// What it is called; its number, once that is known: an address may be another flow's soon.
    flow: String,
    shown: Shown,
    /// How it has ended.
    end: Option<End>,
    /// What cannot be understood or printed.
    error: Option<Box<dyn Error>>,
}

impl Watched {
    /// A flow by its number or its client.
    pub(super) fn new(flow: String, shown: Shown) -> Self {
        Self {
            flow,
            shown,
            end: None,
            error: None,
        }
    }

    /// How it has ended, if that was told.
    pub(super) fn end(self) -> Option<End> {
        self.end
    }

    /// Follows it through all processes that carry it, for as long as `left` says.
    pub(super) fn until_its_end(
        &mut self,
        socket: &Path,
        left: impl Fn() -> Option<Duration>,
    ) -> Result<Followed, AskError> {
        let mut follower = Follower::new(socket)?;
        let mut followed = self.follow(&mut follower, left())?;
        while followed == Followed::Cut {
            if self.shown != Shown::Nothing {
                complain(format_args!(
                    "note: pepd has cut the trace, as another process takes over the flow, or as nobody read; asks again"
                ));
            }
            followed = self.follow_again(&mut follower, &left)?;
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

    /// The same when there may be nobody for a moment.
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

    /// Returns whether it goes on.
    fn print(&mut self, data: &str) -> Result<bool, Box<dyn Error>> {
        let event: TraceEvent = serde_json::from_str(data)?;
        let printed = match self.shown {
            Shown::Json => try_print(format_args!("{data}\n")),
            Shown::Text => try_print(format_args!("{event}")),
            Shown::Nothing => Ok(()),
        };
        match printed {
            // A reader that went away, as `head` does.
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
