//! Consecutive flows, many at a time, during an action on pepd. The hosts never reconnect: each
//! flow has to be complete.

use std::{
    io::{self, Read as _, Write as _},
    net::{Shutdown, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    thread,
    time::Duration,
};

use parking_lot::Mutex;
use pepd_tests::{payload::Payload, serve::Server, wait::wait_within};

/// The behaviour of both hosts in flow `id`.
pub trait Flows: Send + Sync + 'static {
    /// Describes the flow for messages.
    fn kind(&self, id: u64) -> String;
    /// Runs the client to its end.
    fn client(&self, id: u64, stream: TcpStream) -> io::Result<()>;
    /// Runs the server to its end.
    fn server(&self, id: u64, stream: &TcpStream) -> io::Result<()>;
}

struct Load<F> {
    flows: F,
    /// The timeout of a host for a byte.
    patience: Duration,
    stop: AtomicBool,
    next: AtomicU64,
    served: AtomicU64,
    errors: Mutex<Vec<String>>,
}

impl<F: Flows> Load<F> {
    fn fail(&self, id: u64, side: &str, err: &io::Error) {
        let kind = self.flows.kind(id);
        let mut errors = self.errors.lock();
        errors.push(format!("flow {id} ({kind}), {side}: {err}"));
    }

    fn errors(&self) -> Vec<String> {
        self.errors.lock().clone()
    }

    fn be_patient(&self, stream: &TcpStream) -> io::Result<()> {
        stream.set_read_timeout(Some(self.patience))?;
        stream.set_write_timeout(Some(self.patience))
    }

    fn serve(&self, mut stream: &TcpStream) {
        let client = stream.peer_addr();
        let mut id = [0; 8];
        let read = self.be_patient(stream);
        // A connection that ends without data was made for a client whose own was not open yet: the
        // next process connects again. A client that loses its flow reports that itself.
        if read.and_then(|()| stream.read_exact(&mut id)).is_err() {
            return;
        }
        let id = u64::from_be_bytes(id);
        match self.flows.server(id, stream) {
            Ok(()) => drop(self.served.fetch_add(1, SeqCst)),
            Err(err) => self.fail(id, &format!("server of {client:?}"), &err),
        }
    }

    /// Runs one flow after the other.
    fn run(&self, connect: &impl Fn() -> io::Result<TcpStream>) {
        while !self.stop.load(SeqCst) {
            let id = self.next.fetch_add(1, SeqCst);
            if let Err((at, err)) = self.run_one(id, connect) {
                self.fail(id, &format!("client {at}"), &err);
            }
        }
    }

    fn run_one(
        &self,
        id: u64,
        connect: &impl Fn() -> io::Result<TcpStream>,
    ) -> Result<(), (String, io::Error)> {
        let mut stream = connect().map_err(|err| ("that connects".to_owned(), err))?;
        let at = format!("{:?}", stream.local_addr());
        let begun = self.be_patient(&stream);
        begun
            .and_then(|()| stream.write_all(&id.to_be_bytes()))
            .and_then(|()| self.flows.client(id, stream))
            .map_err(|err| (at, err))
    }
}

struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

/// Runs `flows` at a time during an action. All of them must be complete, at the client and at the
/// server that listens there.
pub fn under_load(
    flows: impl Flows,
    at_a_time: usize,
    patience: Duration,
    (connect, listener): (impl Fn() -> io::Result<TcpStream> + Sync, TcpListener),
    act: impl FnOnce(),
) {
    let load = Arc::new(Load {
        flows,
        patience,
        stop: AtomicBool::default(),
        next: AtomicU64::default(),
        served: AtomicU64::default(),
        errors: Mutex::default(),
    });
    let serving = Arc::clone(&load);
    let _server = Server::start(listener, move |stream, _| serving.serve(&stream));
    thread::scope(|scope| {
        for _ in 0..at_a_time {
            scope.spawn(|| load.run(&connect));
        }
        // Also on failure: the threads would run for ever.
        let _stop = Stop(&load.stop);
        act();
    });
    let begun = load.next.load(SeqCst);
    let done = || load.served.load(SeqCst) + load.errors().len() as u64 >= begun;
    wait_within(patience, || done().then_some(())).expect("servers that are done");
    println!("{begun} flows");
    let errors = load.errors();
    assert!(errors.is_empty(), "errors in {begun} flows: {errors:#?}");
    assert!(begun >= at_a_time as u64, "{begun} flows");
}

/// Sends everything, and then FIN.
pub fn send(stream: &TcpStream, mut payload: Payload) -> io::Result<()> {
    payload.send(&mut &*stream)?;
    stream.shutdown(Shutdown::Write)
}
