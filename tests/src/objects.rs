//! A server for uploads and downloads of objects of any size.
//!
//! A request is 17 bytes: `G` (get), `P` (put) or `A` (put, answered), then seed and length as
//! little-endian 64-bit numbers. The answer to a get is the payload of that seed and an immediate
//! close. A put is followed by its payload and the end of the stream. The server stores the result
//! under the seed, and with `A` returns its checksum.

use std::{
    collections::HashMap,
    io::{self, Read as _, Write as _},
    net::{Shutdown, TcpListener, TcpStream},
    sync::Arc,
};

use parking_lot::Mutex;

use crate::{
    payload::{Payload, Sum, receive},
    serve::Server,
    wait::wait_for,
};

/// Length and checksum of a put.
pub type Stored = (u64, Sum);

/// The server.
#[derive(Debug)]
pub struct ObjectServer {
    server: Server,
    stored: Arc<Mutex<HashMap<u64, Stored>>>,
}

impl ObjectServer {
    /// Starts serving.
    pub fn start(listener: TcpListener) -> Self {
        let stored = Arc::default();
        let remembered = Arc::clone(&stored);
        let server = Server::start(listener, move |stream, _| {
            // A closed connection ends its request.
            let _ = answer(stream, &remembered);
        });
        Self { server, stored }
    }

    /// Returns the result of the put of this seed, once complete.
    ///
    /// # Panics
    /// On a timeout.
    pub fn stored(&self, seed: u64) -> Stored {
        wait_for("an upload to arrive", || {
            self.stored.lock().get(&seed).copied()
        })
    }

    /// Returns the underlying server, for its counts.
    pub fn server(&self) -> &Server {
        &self.server
    }
}

fn answer(mut stream: TcpStream, stored: &Mutex<HashMap<u64, Stored>>) -> io::Result<()> {
    let mut request = [0; 17];
    stream.read_exact(&mut request)?;
    let number = |at: usize| {
        let bytes = request[at..at + 8].try_into();
        u64::from_le_bytes(bytes.expect("eight bytes"))
    };
    let (seed, len) = (number(1), number(9));
    if request[0] == b'G' {
        return Payload::new(seed, len).send(&mut stream);
    }
    let received = receive(&mut stream)?;
    stored.lock().insert(seed, received);
    if request[0] == b'A' {
        stream.write_all(&received.1)?;
    }
    Ok(())
}

fn request(stream: &mut TcpStream, kind: u8, seed: u64, len: u64) -> io::Result<()> {
    let mut request = vec![kind];
    request.extend(seed.to_le_bytes());
    request.extend(len.to_le_bytes());
    stream.write_all(&request)
}

/// Requests an object; the payload and the end of the stream follow.
///
/// # Errors
/// Those of the connection.
pub fn get(stream: &mut TcpStream, seed: u64, len: u64) -> io::Result<()> {
    request(stream, b'G', seed, len)
}

/// Sends an object and closes the connection at once.
///
/// # Errors
/// Those of the connection.
pub fn put_and_close(mut stream: TcpStream, seed: u64, len: u64) -> io::Result<()> {
    request(&mut stream, b'P', seed, len)?;
    Payload::new(seed, len).send(&mut stream)
}

/// Sends an object, half-closes the connection and waits for the checksum.
///
/// # Errors
/// Those of the connection.
pub fn put_and_wait(stream: &mut TcpStream, seed: u64, len: u64) -> io::Result<Sum> {
    request(stream, b'A', seed, len)?;
    Payload::new(seed, len).send(stream)?;
    stream.shutdown(Shutdown::Write)?;
    let mut sum = Sum::default();
    stream.read_exact(&mut sum)?;
    Ok(sum)
}
