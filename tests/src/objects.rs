//! A server from which objects of any size are fetched and to which they are stored.
//!
//! A request is 17 bytes: `G` (get), `P` (put) or `A` (put, answered), then seed and length as
//! little-endian 64-bit numbers. A get is answered by the payload of that seed and an immediate
//! close. A put is followed by its payload and the end of the stream; what arrived is remembered
//! under the seed, and with `A` its checksum is sent back.

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

/// What a put brought: bytes and checksum.
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
            // A client that goes away has ended its request.
            let _ = answer(stream, &remembered);
        });
        Self { server, stored }
    }

    /// What the put of this seed brought, once all of it has come.
    ///
    /// # Panics
    /// When it does not come.
    pub fn stored(&self, seed: u64) -> Stored {
        wait_for("an upload to arrive", || {
            self.stored.lock().get(&seed).copied()
        })
    }

    /// The server's counts.
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

/// Asks for an object; the payload and the end of the stream follow.
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

/// Sends an object, half-closes the connection and waits for the checksum of what arrived.
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
