//! What many tests begin with.

use std::{net::TcpStream, thread};

use pepd_tests::{
    bed::{Bed, Place},
    pep::Pep,
    serve::Server,
    wait::PATIENCE,
};

/// The port of most servers.
pub const PORT: u16 = 7000;

/// A server and, on the paths that have one, pepd; checked to be healthy at the end.
pub struct Running {
    _server: Server,
    /// What they go through.
    pub pep: Option<Pep>,
}

impl Drop for Running {
    fn drop(&mut self) {
        if let (Some(pep), false) = (&mut self.pep, thread::panicking()) {
            pep.assert_healthy();
        }
    }
}

/// Starts a server and pepd, and connects.
pub fn connected(
    bed: &Bed,
    serve: impl Fn(TcpStream) + Send + Sync + 'static,
) -> (TcpStream, Running) {
    let listener = bed.server.listen(bed.at(Place::Server, PORT));
    let server = Server::start(listener, move |stream, _| serve(stream));
    let pep = bed.start();
    let stream = connect(bed);
    let running = Running {
        _server: server,
        pep,
    };
    (stream, running)
}

/// Connects to the server; reading gives up after [`PATIENCE`].
pub fn connect(bed: &Bed) -> TcpStream {
    let stream = bed.client.connect(bed.at(Place::Server, PORT));
    let stream = stream.expect("the server listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
    stream
}
