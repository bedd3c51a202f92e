//! Client of the admin socket of a running pepd.

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

/// Maximum wait for a response. pepd may have to run another program to check a configuration.
const PATIENCE: Duration = Duration::from_secs(40);
/// Maximum length of a response, well above that of ten thousand flows.
const ANSWER_MAX: usize = 16 << 20;

/// Error of a request.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// No pepd answers, at this path or at the default one.
    #[error(
        "no pepd is running: none answers at {0}; start one (`systemctl start pepd`, or `pepd run`), or, \
         if its `admin.socket` is elsewhere, name it by `--socket`"
    )]
    NotRunning(PathBuf),
    /// No pepd answers at the first path, but one does at the second.
    #[error(
        "no pepd answers at {0}, but one does at {1}: use `--socket {1}`, or `--config` with its configuration"
    )]
    Elsewhere(PathBuf, PathBuf),
    /// The user has no access to the socket.
    #[error("{0}: permission denied: use sudo, or give a group access (`admin.mode`)")]
    Denied(PathBuf),
    /// The socket cannot be connected to.
    #[error("{0}: {1}")]
    Unreachable(PathBuf, io::Error),
    /// The request asks for an invalid configuration.
    #[error("{0}")]
    Wrong(String),
    /// pepd refuses the request.
    #[error("{0}")]
    Refused(String),
    /// pepd did not answer, or the response is malformed.
    #[error("{0}: no answer: {1}")]
    Failed(PathBuf, String),
}

impl AskError {
    /// Returns the error of a failed connection.
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

    /// Returns true if no pepd has answered, so that one that starts may.
    pub fn is_absence(&self) -> bool {
        !matches!(self, Self::Wrong(_) | Self::Refused(_))
    }
}

/// Sends a request, with a body for changes. Returns the response, which is JSON.
///
/// # Errors
/// If no pepd answers, or it refuses.
pub(crate) fn ask(
    socket: &Path,
    method: Method,
    target: &str,
    body: String,
) -> Result<Vec<u8>, AskError> {
    ask_for(PATIENCE, socket, method, target, body)
}

/// Sends a GET request, with a maximum wait.
///
/// # Errors
/// If no pepd answers, or it refuses.
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

/// Sends a request. Returns when the head of the response has arrived.
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

/// Reads the body of a response, or the error in it.
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
