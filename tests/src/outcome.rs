//! Results and ends of connections, as the application sees them.

use std::{
    io::{self, Read as _},
    net::TcpStream,
};

use nix::errno::Errno;

use crate::wait::PATIENCE;

/// The result of `connect()`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Connected {
    /// The connection is established.
    Yes,
    /// The kernel's error.
    No(Errno),
    /// No result within the time limit of the test, which is longer than TCP's own.
    Hung,
}

impl Connected {
    /// Classifies the result of a connect with a time limit.
    pub fn from_result<T>(result: &io::Result<T>) -> Self {
        match result {
            Ok(_) => Self::Yes,
            // The test's limit has no error number, the kernel's ETIMEDOUT has.
            Err(error) => error
                .raw_os_error()
                .map_or(Self::Hung, |errno| Self::No(Errno::from_raw(errno))),
        }
    }
}

/// The end of a connection, and the number of bytes before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// In order, by FIN.
    Closed {
        /// Bytes received before it.
        after: u64,
    },
    /// By an error, such as ECONNRESET.
    Failed(Errno),
    /// No end within [`PATIENCE`].
    Hung,
}

impl Ended {
    /// Closed in order without a byte.
    pub const EMPTY: Self = Self::Closed { after: 0 };
    /// Reset by the remote end.
    pub const RESET: Self = Self::Failed(Errno::ECONNRESET);

    /// Reads until the connection ends.
    pub fn from_stream(stream: &TcpStream) -> Self {
        let limit = stream.set_read_timeout(Some(PATIENCE));
        limit.expect("a timeout can be set on any socket");
        let (mut after, mut buffer) = (0, vec![0; 64 * 1024]);
        loop {
            match (&*stream).read(&mut buffer) {
                Ok(0) => return Self::Closed { after },
                Ok(len) => after += len as u64,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Self::Hung,
                Err(error) => return Self::Failed(errno(&error)),
            }
        }
    }
}

/// Returns the number of an error of the kernel.
///
/// # Panics
/// When the error has none.
pub fn errno(error: &io::Error) -> Errno {
    let raw = error.raw_os_error();
    Errno::from_raw(raw.unwrap_or_else(|| panic!("not an error of the kernel: {error}")))
}

/// Resets the connection (RST rather than FIN) by closing it with SO_LINGER of zero.
///
/// # Panics
/// When the socket refuses the option.
pub fn reset(stream: TcpStream) {
    let socket = socket2::SockRef::from(&stream);
    let linger = socket.set_linger(Some(std::time::Duration::ZERO));
    linger.expect("SO_LINGER can be set on any socket");
    drop(stream);
}
