//! Asking a running pepd, for the command line.

mod follow;

use std::{
    fmt, io,
    path::{Path, PathBuf},
    time::Duration,
};

use http_body_util::{BodyExt as _, Full, Limited};
use hyper::{
    Method, Request, Response, StatusCode,
    body::{Bytes, Incoming},
    client::conn::http1,
};
use hyper_util::rt::TokioIo;
use pepd_sys::admin_socket;
use tokio::{
    net::UnixStream,
    runtime::{self, Runtime},
    time::timeout,
};

pub(crate) use follow::{Followed, Follower, follow};

/// An answer is there within so long, or none comes. A configuration may be checked for it, by another program.
const PATIENCE: Duration = Duration::from_secs(40);
/// Ten thousand flows take less.
const ANSWER_MAX: usize = 16 << 20;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// No pepd answers, there or at the usual place.
    #[error(
        "no pepd is running: none answers at {0}; start one (`systemctl start pepd`, or `pepd run`)"
    )]
    NotRunning(PathBuf),
    /// No pepd answers there, but one does at the other path.
    #[error(
        "no pepd answers at {0}, but one does at {1}: name that (`--socket {1}`), or the file that it runs with (`--config`)"
    )]
    Elsewhere(PathBuf, PathBuf),
    /// The socket is another user's.
    #[error(
        "{0}: this user may not ask the pepd there: use sudo, or let a group ask it (`admin.mode`)"
    )]
    Denied(PathBuf),
    /// The system does not let us ask.
    #[error("{0}: {1}")]
    Unreachable(PathBuf, io::Error),
    /// What it is told to do is wrong.
    #[error("{0}")]
    Wrong(String),
    /// It does not want to.
    #[error("{0}")]
    Refused(String),
    /// It did not answer, or not in a way that can be understood.
    #[error("{0}: no answer: {1}")]
    Failed(PathBuf, String),
}

impl AskError {
    /// Error of a socket that cannot be connected to.
    fn unreachable(socket: &Path, err: io::Error) -> Self {
        let path = socket.to_owned();
        match err.kind() {
            io::ErrorKind::PermissionDenied => Self::Denied(path),
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
                match admin_socket::answering(None).into_iter().next() {
                    Some(other) => Self::Elsewhere(path, other),
                    None => Self::NotRunning(path),
                }
            }
            _ => Self::Unreachable(path, err),
        }
    }

    /// True where no pepd has answered: one that starts may.
    pub fn is_absence(&self) -> bool {
        !matches!(self, Self::Wrong(_) | Self::Refused(_))
    }
}

/// Asks, with a body where something is to be changed. Returns the answer, which is JSON.
///
/// # Errors
/// When nobody is there, or it does not want to.
pub(crate) fn ask(
    socket: &Path,
    method: Method,
    target: &str,
    body: String,
) -> Result<Vec<u8>, AskError> {
    ask_for(PATIENCE, socket, method, target, body)
}

/// Asks what there is to see, for so long at most.
///
/// # Errors
/// When nobody is there, or it does not want to.
pub fn ask_within(patience: Duration, socket: &Path, target: &str) -> Result<Vec<u8>, AskError> {
    ask_for(patience, socket, Method::GET, target, String::new())
}

fn ask_for(
    patience: Duration,
    socket: &Path,
    method: Method,
    target: &str,
    body: String,
) -> Result<Vec<u8>, AskError> {
    runtime(socket)?.block_on(async {
        let asked = timeout(patience, ask_once(socket, method, target, body)).await;
        asked.map_err(|_| {
            failed(
                socket,
                &format_args!("none within {} s", patience.as_secs()),
            )
        })?
    })
}

fn failed(socket: &Path, err: &dyn fmt::Display) -> AskError {
    AskError::Failed(socket.to_owned(), err.to_string())
}

fn runtime(socket: &Path) -> Result<Runtime, AskError> {
    runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|err| failed(socket, &err))
}

async fn ask_once(
    socket: &Path,
    method: Method,
    target: &str,
    body: String,
) -> Result<Vec<u8>, AskError> {
    let answer = send(socket, method, target, body).await?;
    whole(socket, answer).await
}

/// Sends a request, and returns as soon as the head of the answer is there.
async fn send(
    socket: &Path,
    method: Method,
    target: &str,
    body: String,
) -> Result<Response<Incoming>, AskError> {
    let stream = UnixStream::connect(socket).await;
    let stream = stream.map_err(|err| AskError::unreachable(socket, err))?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream))
        .await
        .map_err(|err| failed(socket, &err))?;
    tokio::spawn(connection);
    let request = Request::builder()
        .method(method)
        .uri(target)
        .header("host", "pepd")
        .header("content-type", "application/json")
        .body(Full::new(Bytes::from(body)))
        .map_err(|err| failed(socket, &err))?;
    let answer = sender.send_request(request).await;
    answer.map_err(|err| failed(socket, &err))
}

/// The body of an answer, or what it refuses with.
async fn whole(socket: &Path, answer: Response<Incoming>) -> Result<Vec<u8>, AskError> {
    let status = answer.status();
    let body = Limited::new(answer.into_body(), ANSWER_MAX).collect().await;
    let body = body.map_err(|err| failed(socket, &err))?.to_bytes();
    if status.is_success() {
        return Ok(body.to_vec());
    }
    let why = String::from_utf8_lossy(&body).trim().to_owned();
    let why = if why.is_empty() {
        status.to_string()
    } else {
        why
    };
    Err(match status {
        StatusCode::UNPROCESSABLE_ENTITY => AskError::Wrong(why),
        _ => AskError::Refused(why),
    })
}
