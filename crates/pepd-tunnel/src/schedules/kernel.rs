//! A simulated kernel. Its sockets and their counters outlive the process that uses them, as they
//! do when a keeper holds the descriptors.
//!
//! No byte is kept: a host's bytes follow from the flow and the position, and bytes sent to a host
//! are compared at once.

use std::{
    collections::{BTreeMap, HashMap},
    io,
    net::IpAddr,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use parking_lot::Mutex;
use pep_core::{
    arena::Counters,
    reach::{Forbidden, Reach, Request},
    relay::{Direction, Side},
    ring::Ranges,
};
use pepd_relay::{
    arena::Slot,
    flow::{FlowContext, FlowInfo},
};
use pepd_sys::{crash_point::CrashPoint, unanswered::Unanswered};

use crate::{
    far::Servers,
    leg::{Answer, Leg},
};

/// Generates the bytes of a flow's direction from this position on; compressible ones for `text`.
fn bytes((flow, text): (u64, bool), direction: Direction, from: u64, into: &mut [u8]) {
    let seed = flow << 1 | direction as u64;
    for (at, byte) in (from..).zip(into) {
        let word = ((at >> 3) ^ seed << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        *byte = (word >> (8 * (at & 7))) as u8;
        if text {
            *byte = b'a' + (*byte >> 6);
        }
    }
}

/// A connection of a machine's kernel to a host.
#[derive(Debug)]
pub(super) struct Socket {
    pub(super) cookie: u64,
    pub(super) flow: u64,
    /// The host's bytes are compressible.
    text: bool,
    /// Side of the leg.
    pub(super) side: Side,
    /// Maximum of bytes that wait to be read, and to be acknowledged.
    pub(super) buffers: [u64; 2],
    /// Bytes sent by the host, and read by a process.
    pub(super) arrived: u64,
    pub(super) read: u64,
    pub(super) fin_arrived: bool,
    /// Bytes written by a process, and acknowledged by the host.
    pub(super) written: u64,
    pub(super) acked: u64,
    pub(super) fin_given: bool,
    pub(super) fin_acked: bool,
    /// The socket is not connected yet, and connect was called.
    pub(super) connecting: bool,
    called: bool,
    /// Error by which the host, or the kernel for it, has ended the connection; not reported yet.
    error: Option<i32>,
    /// The connection was ended by an error, reported or not.
    pub(super) is_dead: bool,
    /// pepd has reset the connection.
    pub(super) reset_by_us: bool,
    /// A close sends a FIN.
    closes_well: bool,
    /// A process or the keeper holds the descriptor.
    pub(super) is_held: bool,
    waker: Option<Waker>,
    /// The host has something new to handle.
    pub(super) is_news: bool,
    /// A violated invariant.
    pub(super) violation: Option<String>,
}

impl Socket {
    /// Returns the direction of the host's bytes.
    fn outward(&self) -> Direction {
        match self.side {
            Side::Client => Direction::Up,
            Side::Server => Direction::Down,
        }
    }

    fn content(&self) -> (u64, bool) {
        (self.flow, self.text)
    }

    /// Ends the connection, by the host or the kernel for it.
    pub(super) fn abort(&mut self, error: i32) {
        (self.error, self.is_dead) = (Some(error), true);
        self.wake();
    }

    pub(super) fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    /// Returns whether neither end can send any more.
    pub(super) fn is_closed(&self) -> bool {
        let is_over = self.fin_arrived && self.fin_acked;
        is_over || self.is_dead || self.reset_by_us
    }

    /// Returns the kernel's counters.
    fn counters(&self, fin_published: bool) -> Counters {
        let closed = self.is_closed() || !self.called;
        let fin_sent = self.fin_given && (!closed || fin_published);
        Counters {
            read: self.read,
            written: self.written + u64::from(self.fin_given) - u64::from(fin_sent),
            fin_received: self.fin_arrived,
            fin_sent,
            closed,
            aborted: closed && !self.fin_arrived,
        }
    }

    /// Closes the last descriptor.
    fn close(&mut self) {
        self.is_held = false;
        self.is_news = true;
        let delivers = self.closes_well && self.read == self.arrived;
        if !self.is_closed() && !delivers {
            self.reset_by_us = true;
        }
        if delivers {
            self.fin_given = true;
        }
    }

    fn violate(&mut self, what: String) {
        self.violation.get_or_insert(what);
    }
}

pub(super) type Shared = Arc<Mutex<Socket>>;

/// The sockets of a machine, and pending connects.
#[derive(Debug, Clone, Default)]
pub(super) struct Kernel(Arc<Mutex<Inner>>);

#[derive(Debug, Default)]
struct Inner {
    sockets: BTreeMap<u64, Shared>,
    next: u64,
    text: bool,
    /// Connecting sockets that servers have not handled yet.
    calls: Vec<Shared>,
}

impl Kernel {
    /// Sets whether hosts send compressible bytes. To be called before any socket is created.
    pub(super) fn set_text(&self, text: bool) {
        self.0.lock().text = text;
    }

    /// Creates a socket.
    pub(super) fn socket(&self, flow: u64, side: Side, buffers: [u64; 2]) -> Shared {
        let mut inner = self.0.lock();
        inner.next += 1;
        let cookie = inner.next;
        let socket = Arc::new(Mutex::new(Socket {
            cookie,
            flow,
            text: inner.text,
            side,
            buffers,
            arrived: 0,
            read: 0,
            fin_arrived: false,
            written: 0,
            acked: 0,
            fin_given: false,
            fin_acked: false,
            connecting: side == Side::Server,
            called: side == Side::Client,
            error: None,
            is_dead: false,
            reset_by_us: false,
            closes_well: false,
            is_held: true,
            waker: None,
            is_news: true,
            violation: None,
        }));
        inner.sockets.insert(cookie, Arc::clone(&socket));
        socket
    }

    /// Returns the sockets that connect to servers.
    pub(super) fn calls(&self) -> Vec<Shared> {
        std::mem::take(&mut self.0.lock().calls)
    }

    /// Returns the sockets that a keeper holds, by cookie: those that no process has closed.
    pub(super) fn kept(&self, crash_point: &Arc<CrashPoint>) -> HashMap<u64, Connection> {
        let inner = self.0.lock();
        let kept = inner
            .sockets
            .iter()
            .filter(|(_, socket)| socket.lock().is_held);
        let kept = kept.map(|(cookie, socket)| (*cookie, Connection::new(socket, crash_point)));
        kept.collect()
    }
}

/// A process's descriptor of a socket.
#[derive(Debug)]
pub(super) struct Connection {
    socket: Shared,
    crash_point: Arc<CrashPoint>,
}

impl Connection {
    pub(super) fn new(socket: &Shared, crash_point: &Arc<CrashPoint>) -> Self {
        Self {
            socket: Arc::clone(socket),
            crash_point: Arc::clone(crash_point),
        }
    }

    pub(super) fn counters(&self, fin_published: bool) -> Counters {
        let mut socket = self.socket.lock();
        // An error is reported once, to the first caller.
        socket.error = None;
        socket.counters(fin_published)
    }

    pub(super) fn socket(&self) -> &Shared {
        &self.socket
    }

    /// Takes the error, as SO_ERROR does.
    fn take_error(&self, socket: &mut Socket) -> Option<i32> {
        socket.error?;
        self.crash_point.call(|| socket.error.take()).flatten()
    }

    /// Pending until the socket changes.
    fn wait<T>(socket: &mut Socket, cx: &Context<'_>) -> Poll<T> {
        socket.waker = Some(cx.waker().clone());
        Poll::Pending
    }

    fn receive(
        &self,
        cx: &Context<'_>,
        most: u64,
        take: impl FnOnce(&[u8]),
    ) -> Poll<io::Result<u64>> {
        let mut socket = self.socket.lock();
        let count = most.min(socket.arrived - socket.read);
        if count == 0 && socket.fin_arrived {
            return Poll::Ready(Ok(0));
        }
        if count == 0 {
            return match self.take_error(&mut socket) {
                Some(code) => Poll::Ready(Err(io::Error::from_raw_os_error(code))),
                None if socket.is_dead => Poll::Ready(Ok(0)),
                None => Self::wait(&mut socket, cx),
            };
        }
        let received = self.crash_point.call(|| {
            let mut buffer = vec![0; count as usize];
            bytes(socket.content(), socket.outward(), socket.read, &mut buffer);
            take(&buffer);
            socket.read += count;
            socket.is_news = true;
            count
        });
        received.map_or(Poll::Pending, |count| Poll::Ready(Ok(count)))
    }

    fn send(
        &self,
        cx: &Context<'_>,
        most: u64,
        give: impl FnOnce(&mut [u8]),
    ) -> Poll<io::Result<u64>> {
        let mut socket = self.socket.lock();
        if socket.is_closed() {
            let code = self.take_error(&mut socket).unwrap_or(libc::EPIPE);
            return Poll::Ready(Err(io::Error::from_raw_os_error(code)));
        }
        let count = most.min(socket.buffers[1] - (socket.written - socket.acked));
        if count == 0 {
            return Self::wait(&mut socket, cx);
        }
        let sent = self.crash_point.call(|| {
            let mut buffer = vec![0; count as usize];
            give(&mut buffer);
            let mut expected = vec![0; count as usize];
            let direction = socket.outward().other();
            bytes(socket.content(), direction, socket.written, &mut expected);
            if socket.fin_given {
                socket.violate("byte sent after the end".to_owned());
            }
            if let Some(wrong) = buffer.iter().zip(&expected).position(|(a, b)| a != b) {
                let at = socket.written + wrong as u64;
                socket.violate(format!("byte {at} of direction {direction:?} is wrong"));
            }
            socket.written += count;
            socket.is_news = true;
            count
        });
        sent.map_or(Poll::Pending, |count| Poll::Ready(Ok(count)))
    }
}

impl Leg for Connection {
    fn cookie(&self) -> io::Result<u64> {
        Ok(self.socket.lock().cookie)
    }

    fn connected<'a>(&'a self, _: &'a Unanswered, _: IpAddr, limit: Duration) -> Answer<'a> {
        let answered = std::future::poll_fn(|cx| {
            let mut socket = self.socket.lock();
            match self.take_error(&mut socket) {
                Some(code) => Poll::Ready(Err(io::Error::from_raw_os_error(code))),
                None if !socket.connecting => Poll::Ready(Ok(())),
                None => Self::wait(&mut socket, cx),
            }
        });
        Box::pin(async move {
            let late = io::Error::from_raw_os_error(libc::ETIMEDOUT);
            tokio::time::timeout(limit, answered)
                .await
                .unwrap_or(Err(late))
        })
    }

    fn poll_receive(
        &self,
        cx: &mut Context<'_>,
        slot: &mut Slot,
        direction: Direction,
        space: &Ranges,
    ) -> Poll<io::Result<u64>> {
        self.receive(cx, space.len(), |bytes| {
            let space = space.clone().up_to(bytes.len() as u64);
            slot.write(direction, &space, bytes);
        })
    }

    fn poll_send(
        &self,
        cx: &mut Context<'_>,
        slot: &Slot,
        direction: Direction,
        data: &Ranges,
    ) -> Poll<io::Result<u64>> {
        self.send(cx, data.len(), |into| slot.read(direction, data, into))
    }

    fn poll_read(&self, cx: &mut Context<'_>, into: &mut [u8]) -> Poll<io::Result<usize>> {
        let most = into.len() as u64;
        let take = |bytes: &[u8]| into[..bytes.len()].copy_from_slice(bytes);
        self.receive(cx, most, take).map_ok(|count| count as usize)
    }

    fn poll_write(&self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let give = |into: &mut [u8]| into.copy_from_slice(&bytes[..into.len()]);
        let sent = self.send(cx, bytes.len() as u64, give);
        sent.map_ok(|count| count as usize)
    }

    fn poll_broken(&self, cx: &mut Context<'_>) -> Poll<io::Error> {
        let mut socket = self.socket.lock();
        match self.take_error(&mut socket) {
            Some(code) => Poll::Ready(io::Error::from_raw_os_error(code)),
            None => Self::wait(&mut socket, cx),
        }
    }

    fn finish(&self) -> io::Result<()> {
        let mut socket = self.socket.lock();
        if socket.is_dead {
            let code = self.take_error(&mut socket).unwrap_or(libc::ENOTCONN);
            return Err(io::Error::from_raw_os_error(code));
        }
        self.crash_point.call(|| {
            socket.fin_given = true;
            socket.is_news = true;
        });
        Ok(())
    }

    fn has_tail(&self, fin: bool) -> bool {
        let socket = self.socket.lock();
        let unacked = socket.written - socket.acked;
        let end = u64::from(socket.fin_given && !socket.fin_acked);
        unacked + end > u64::from(fin) && !socket.is_closed()
    }

    fn close_with_fin(&self) {
        self.crash_point
            .call(|| self.socket.lock().closes_well = true);
    }
}

/// The keeper holds the descriptor until the process closes it, and beyond the process's end.
impl Drop for Connection {
    fn drop(&mut self) {
        self.crash_point.call(|| self.socket.lock().close());
    }
}

/// Servers that this kernel reaches; the port identifies the flow.
#[derive(Debug)]
pub(super) struct Reached {
    pub(super) kernel: Kernel,
    pub(super) crash_point: Arc<CrashPoint>,
    pub(super) buffers: [u64; 2],
}

impl Servers for Reached {
    /// Hosts of schedules have loopback addresses.
    fn check(&self, _: &Reach, _: &Request) -> Result<(), Forbidden> {
        Ok(())
    }

    fn connect(
        &self,
        _: &FlowContext,
        ends: &FlowInfo,
        _dscp: u8,
        publish: &dyn Fn(io::Result<u64>),
    ) -> io::Result<Box<dyn Leg>> {
        let closed = || io::Error::from_raw_os_error(libc::EINTR);
        let flow = u64::from(ends.destination.port()) - 1;
        let socket = self
            .crash_point
            .call(|| self.kernel.socket(flow, Side::Server, self.buffers));
        let socket = socket.ok_or_else(closed)?;
        publish(Ok(socket.lock().cookie));
        let begun = self.crash_point.call(|| {
            socket.lock().called = true;
            self.kernel.0.lock().calls.push(Arc::clone(&socket));
        });
        begun.ok_or_else(closed)?;
        Ok(Box::new(Connection::new(&socket, &self.crash_point)))
    }
}
