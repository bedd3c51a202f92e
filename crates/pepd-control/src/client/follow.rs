//! Reading a continuous response of a running pepd, until it ends or a signal arrives.

use std::{
    fs,
    future::{pending, poll_fn},
    io,
    path::{Path, PathBuf},
    task::Poll,
    time::Duration,
};

use http_body_util::BodyExt as _;
use hyper::Method;
use tokio::{
    runtime::Runtime,
    signal::unix::{Signal, SignalKind, signal},
    time::{sleep, timeout},
};

use super::{ANSWER_MAX, AskError, PATIENCE, failed, runtime, send, whole};

/// Reason for which [`Follower::follow`] has returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Followed {
    /// The callback has returned false.
    Enough,
    /// The time limit was reached.
    Time,
    /// SIGINT, SIGTERM or SIGHUP arrived.
    Interrupted,
    /// The response has ended.
    Cut,
}

/// Handlers of SIGINT, SIGTERM and SIGHUP, except for those that the process ignores (as `nohup`
/// arranges). While they exist, these signals do not end the program.
#[derive(Debug)]
struct Ending(Vec<Signal>);

impl Ending {
    fn new() -> io::Result<Self> {
        let ignored = ignored(&fs::read_to_string("/proc/self/status").unwrap_or_default());
        let kinds = [
            SignalKind::interrupt(),
            SignalKind::terminate(),
            SignalKind::hangup(),
        ];
        let is_heard = |kind: &SignalKind| ignored & 1 << (kind.as_raw_value() - 1) == 0;
        let signals = kinds.into_iter().filter(is_heard).map(signal);
        signals.collect::<io::Result<_>>().map(Self)
    }

    async fn wait(&mut self) {
        poll_fn(|context| {
            let mut signals = self.0.iter_mut();
            if signals.any(|signal| signal.poll_recv(context).is_ready()) {
                return Poll::Ready(());
            }
            Poll::Pending
        })
        .await;
    }
}

/// Parses the mask of ignored signals in `/proc/PID/status`.
fn ignored(status: &str) -> u64 {
    let mut lines = status.lines();
    let mask = lines.find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0)
}

/// Client for server-sent events that can reconnect.
#[derive(Debug)]
pub struct Follower {
    runtime: Runtime,
    ending: Ending,
    socket: PathBuf,
}

impl Follower {
    /// Creates a client. From now on signals interrupt [`Self::follow`] and [`Self::pause`], not
    /// the program.
    ///
    /// # Errors
    /// If descriptors or memory are short.
    pub fn new(socket: &Path) -> Result<Self, AskError> {
        let runtime = runtime(socket)?;
        let ending = runtime.block_on(async { Ending::new() });
        Ok(Self {
            ending: ending.map_err(|err| failed(socket, &err))?,
            runtime,
            socket: socket.to_owned(),
        })
    }

    /// Requests server-sent events by this method, target and body. Passes the data of each to
    /// `tell` until that returns false, for at most the given time.
    ///
    /// # Errors
    /// If no pepd answers, or it refuses.
    pub fn follow(
        &mut self,
        request: (Method, &str, String),
        lasting: Option<Duration>,
        mut tell: impl FnMut(&str) -> bool,
    ) -> Result<Followed, AskError> {
        self.lines(request, lasting, |line| {
            let data = line.trim_end().strip_prefix("data: ");
            data.is_none_or(&mut tell)
        })
    }

    /// Sends a request likewise, and passes each line of the response to `tell`, with its line end.
    ///
    /// # Errors
    /// If no pepd answers, or it refuses.
    pub fn lines(
        &mut self,
        request: (Method, &str, String),
        lasting: Option<Duration>,
        tell: impl FnMut(&str) -> bool,
    ) -> Result<Followed, AskError> {
        let Self {
            runtime,
            ending,
            socket,
        } = self;
        runtime.block_on(async {
            let over = async {
                match lasting {
                    Some(lasting) => sleep(lasting).await,
                    None => pending().await,
                }
            };
            tokio::select! {
                followed = follow_to_the_end(socket, request, tell) => followed,
                () = over => Ok(Followed::Time),
                () = ending.wait() => Ok(Followed::Interrupted),
            }
        })
    }

    /// Waits for this time, or until a signal. Returns true if a signal arrived.
    pub fn pause(&mut self, pause: Duration) -> bool {
        let Self {
            runtime, ending, ..
        } = self;
        runtime.block_on(async { timeout(pause, ending.wait()).await.is_ok() })
    }
}

/// Sends one request, as [`Follower::follow`].
///
/// # Errors
/// If no pepd answers, or it refuses.
pub fn follow(
    socket: &Path,
    request: (Method, &str, String),
    lasting: Option<Duration>,
    tell: impl FnMut(&str) -> bool,
) -> Result<Followed, AskError> {
    Follower::new(socket)?.follow(request, lasting, tell)
}

async fn follow_to_the_end(
    socket: &Path,
    (method, target, body): (Method, &str, String),
    mut tell: impl FnMut(&str) -> bool,
) -> Result<Followed, AskError> {
    let begun = timeout(PATIENCE, send(socket, method, target, body)).await;
    let answer = begun.map_err(|err| failed(socket, &err))??;
    if !answer.status().is_success() {
        return whole(socket, answer).await.map(|_| Followed::Cut);
    }
    let mut body = answer.into_body();
    let mut text = Vec::new();
    while let Some(Ok(frame)) = body.frame().await {
        let Ok(data) = frame.into_data() else {
            continue;
        };
        text.extend_from_slice(&data);
        while let Some(end) = text.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = text.drain(..=end).collect();
            let line = String::from_utf8_lossy(&line);
            if !tell(&line) {
                return Ok(Followed::Enough);
            }
        }
        if text.len() > ANSWER_MAX {
            return Err(failed(socket, &"a line exceeds the maximum length"));
        }
    }
    Ok(Followed::Cut)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_that_are_ignored_are_known() {
        let status = "Name:\tpepd\nSigBlk:\t0000000000000000\nSigIgn:\t0000000000000001\n";
        assert_eq!(ignored(status), 1);
        assert_eq!(ignored(""), 0);
    }
}
