//! Socket options of a leg. Required ones return errors; functions ending in `_or_warn` only warn.

use std::{
    collections::BTreeSet,
    io,
    os::fd::{AsFd, BorrowedFd},
    time::Duration,
};

use parking_lot::Mutex;
use pep_core::{
    config::{CongestionName, Keepalive},
    site::{Buffers, ReceiveBuffer},
};
use socket2::{SockRef, Socket, TcpKeepalive};
use units::Rate;

use super::Family;
use crate::congestion::ControlTerms;

/// A socket option that the kernel refused.
#[derive(Debug, thiserror::Error)]
#[error("cannot set {name}")]
pub struct OptionError {
    /// The option, or the call.
    pub name: &'static str,
    /// The error.
    pub source: io::Error,
}

impl From<OptionError> for io::Error {
    /// Keeps the error number: callers test for EMFILE.
    fn from(err: OptionError) -> Self {
        match err.source.raw_os_error() {
            Some(number) => Self::from_raw_os_error(number),
            None => err.source,
        }
    }
}

/// The congestion control of a leg.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Congestion {
    /// The kernel's default.
    System,
    /// A control registered in the kernel.
    Named(CongestionName),
}

impl From<Option<&CongestionName>> for Congestion {
    fn from(name: Option<&CongestionName>) -> Self {
        name.map_or(Self::System, |name| Self::Named(name.clone()))
    }
}

/// The payload rate that a packet rate allows over each version of IP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PayloadRate {
    /// Over IPv4.
    pub v4: Rate,
    /// Over IPv6.
    pub v6: Rate,
}

impl PayloadRate {
    fn over(self, family: Family) -> Rate {
        match family {
            Family::V4 => self.v4,
            Family::V6 => self.v6,
        }
    }
}

/// Options of a leg that do not depend on the flow.
#[derive(Debug, Clone, PartialEq)]
pub struct LegOptions {
    /// SO_MARK, which exempts pepd's packets from its own rules.
    pub mark: u32,
    /// TCP_CONGESTION.
    pub congestion: Congestion,
    /// TCP_NODELAY.
    pub nodelay: bool,
    /// SO_SNDBUFFORCE and SO_RCVBUFFORCE.
    pub buffers: Buffers,
    /// TCP_MAXSEG, in bytes.
    pub mss: Option<u16>,
    /// TCP_NOTSENT_LOWAT, in bytes.
    pub notsent_lowat: Option<u32>,
    /// Terms of an eBPF congestion control, where they are not its own.
    pub terms: Option<ControlTerms>,
    /// SO_MAX_PACING_RATE.
    pub pacing: Option<PayloadRate>,
    /// TCP_USER_TIMEOUT.
    pub user_timeout: Option<Duration>,
    /// TCP_RTO_MAX_MS. Only with a user timeout: without one the kernel counts retransmissions, and
    /// capped ones end a flow within seconds.
    pub rto_max: Option<Duration>,
    /// TCP_RTO_MIN_US.
    pub rto_min: Option<Duration>,
    /// The connect timeout; raises TCP_SYNCNT where a cap shortens the SYN's backoff.
    pub connect: Duration,
    /// SO_KEEPALIVE and its times.
    pub keepalive: Option<Keepalive>,
}

/// The kernel's initial retransmission timeout of SYNs (TCP_TIMEOUT_INIT).
const SYN_RTO: Duration = Duration::from_secs(1);
/// The maximum wait between SYNs, where `rto_max` is shorter. SYNs to a dead server must back off
/// as those of hosts do, but not far beyond the end of an outage.
const SYN_RTO_MAX: Duration = Duration::from_secs(16);

/// The kernel's minimum of the retransmission timer (TCP_RTO_MIN).
const RTO_MIN: Duration = Duration::from_millis(200);
/// The size to which the kernel's autotuning grows a send buffer by default (tcp_wmem).
const SEND_LIMIT: u64 = 4 << 20;

impl LegOptions {
    /// Sets all options.
    ///
    /// # Errors
    /// The first required option that the kernel refuses.
    pub fn apply(&self, socket: &Socket, family: Family) -> Result<(), OptionError> {
        self.apply_to_connect(socket, family)?;
        self.set_keepalive_or_warn(socket.as_fd());
        if let Some(rto_max) = self.rto_max {
            self.set_rto_max_or_warn(socket.as_fd(), rto_max);
        }
        Ok(())
    }

    /// Sets the options that a leg needs from its first packet on. Most flows end before the others
    /// matter, so the caller sets those later: [`back_off_syns`](Self::back_off_syns),
    /// [`cap_retransmissions`](Self::cap_retransmissions) and
    /// [`set_keepalive_or_warn`](Self::set_keepalive_or_warn).
    ///
    /// # Errors
    /// As [`apply`](Self::apply).
    pub(crate) fn apply_to_connect(
        &self,
        socket: &Socket,
        family: Family,
    ) -> Result<(), OptionError> {
        self.set_required(socket)?;
        self.set_rates_or_warn(socket, family);
        self.set_buffers_or_warn(socket);
        self.set_segments_or_warn(socket);
        self.set_timeouts_or_warn(socket);
        Ok(())
    }

    /// Sets what differs from the options that a connecting leg has. Its SYN has left: the MSS and
    /// the window scale stay.
    pub(super) fn replace_or_warn(&self, before: &Self, fd: BorrowedFd<'_>, family: Family) {
        let socket = SockRef::from(&fd);
        if self.congestion != before.congestion {
            let name = match &self.congestion {
                Congestion::Named(name) => Some(name.to_string()),
                Congestion::System => crate::sysctl("net/ipv4/tcp_congestion_control"),
            };
            let name = name.unwrap_or_default();
            let set = socket.set_tcp_congestion(name.trim().as_bytes());
            or_warn("TCP_CONGESTION", set);
        }
        or_warn("TCP_NODELAY", socket.set_tcp_nodelay(self.nodelay));
        if self.pacing != before.pacing {
            let rate = self.pacing.map(|rate| rate.over(family).bytes_per_second());
            set_pacing_or_warn(fd, rate.unwrap_or(u64::MAX));
        }
        if self.notsent_lowat != before.notsent_lowat {
            // With 0 the kernel takes its own value.
            let set = socket.set_tcp_notsent_lowat(self.notsent_lowat.unwrap_or(0));
            or_warn("TCP_NOTSENT_LOWAT", set);
        }
        if self.user_timeout != before.user_timeout {
            let set = socket.set_tcp_user_timeout(self.user_timeout);
            or_warn("TCP_USER_TIMEOUT", set);
        }
        if self.rto_min != before.rto_min {
            let _ = crate::socket::set_rto_min(fd, self.rto_min.unwrap_or(RTO_MIN));
        }
        self.replace_send_buffer(before, fd);
    }

    /// Sets the size of the send buffer, or has the kernel tune it. Before Linux 5.14 it cannot do
    /// so again: there the buffer gets the size to which it would grow.
    fn replace_send_buffer(&self, before: &Self, fd: BorrowedFd<'_>) {
        let set = match (self.buffers.send, before.buffers.send) {
            (Some(bytes), _) => crate::socket::set_send_buffer(fd, bytes.saturating_mul(2)),
            (None, Some(bytes)) => crate::socket::tune_send_buffer(fd).or_else(|_| {
                let size = bytes.saturating_mul(2).max(SEND_LIMIT);
                crate::socket::set_send_buffer(fd, size)
            }),
            (None, None) => Ok(()),
        };
        or_warn("SO_SNDBUFFORCE", set);
    }

    /// Caps the wait between the SYNs of a connecting leg, and has the kernel repeat them for as
    /// long as the connect timeout. The caller may wait for up to a second after connect(): until
    /// then the kernel repeats no SYN.
    pub fn back_off_syns(&self, socket: BorrowedFd<'_>) {
        if let Some(rto_max) = self.rto_max {
            self.set_rto_max_or_warn(socket, rto_max.max(SYN_RTO_MAX));
        }
    }

    fn set_required(&self, socket: &Socket) -> Result<(), OptionError> {
        let step = |name| move |source| OptionError { name, source };
        // TIME_WAIT of an earlier socket must not block a restart, or a client that reuses its
        // port.
        socket
            .set_reuse_address(true)
            .map_err(step("SO_REUSEADDR"))?;
        socket.set_mark(self.mark).map_err(step("SO_MARK"))?;
        // Inline, urgent bytes keep their place in the stream; else one would be lost.
        socket
            .set_out_of_band_inline(true)
            .map_err(step("SO_OOBINLINE"))?;
        socket
            .set_tcp_nodelay(self.nodelay)
            .map_err(step("TCP_NODELAY"))?;
        if let Congestion::Named(name) = &self.congestion {
            socket
                .set_tcp_congestion(name.as_str().as_bytes())
                .map_err(step("TCP_CONGESTION"))?;
        }
        Ok(())
    }

    /// Starts or ends the keepalive of a connection. It may start late: the kernel counts from the
    /// last packet received.
    pub fn set_keepalive_or_warn(&self, socket: BorrowedFd<'_>) {
        let Some(keepalive) = self.keepalive else {
            or_warn("SO_KEEPALIVE", SockRef::from(&socket).set_keepalive(false));
            return;
        };
        let times = TcpKeepalive::new()
            .with_time(keepalive.idle)
            .with_interval(keepalive.interval)
            .with_retries(keepalive.count);
        let set = SockRef::from(&socket).set_tcp_keepalive(&times);
        or_warn("SO_KEEPALIVE", set);
    }

    /// Sets buffers with the forced variants, since `net.core.wmem_max` is not sized for the link.
    fn set_buffers_or_warn(&self, socket: &Socket) {
        let fd = socket.as_fd();
        if let Some(bytes) = self.buffers.send {
            or_warn(
                "SO_SNDBUFFORCE",
                crate::socket::set_send_buffer(fd, bytes.saturating_mul(2)),
            );
        }
        let set = match self.buffers.receive {
            ReceiveBuffer::System | ReceiveBuffer::Grown(_) => Ok(()),
            ReceiveBuffer::Fixed(bytes) => {
                crate::socket::set_receive_buffer(fd, bytes.saturating_mul(2))
            }
        };
        or_warn("SO_RCVBUFFORCE", set);
    }

    fn set_segments_or_warn(&self, socket: &Socket) {
        if let Some(mss) = self.mss {
            or_warn("TCP_MAXSEG", socket.set_tcp_mss(mss.into()));
        }
        if let Some(bytes) = self.notsent_lowat {
            or_warn("TCP_NOTSENT_LOWAT", socket.set_tcp_notsent_lowat(bytes));
        }
    }

    fn set_rates_or_warn(&self, socket: &Socket, family: Family) {
        if let Some(rate) = self.pacing {
            set_pacing_or_warn(socket.as_fd(), rate.over(family).bytes_per_second());
        }
        if let Some(terms) = &self.terms {
            or_warn("BPF_MAP_UPDATE_ELEM", terms.state(socket.as_fd()));
        }
    }

    /// Caps the time between retransmissions of a leg that has connected.
    pub fn cap_retransmissions(&self, socket: BorrowedFd<'_>) {
        if let Some(rto_max) = self.rto_max.filter(|_| self.user_timeout.is_some()) {
            // `pepd run` warns at its start if the kernel lacks the option.
            let _ = crate::socket::set_rto_max(socket, rto_max);
        }
    }

    fn set_timeouts_or_warn(&self, socket: &Socket) {
        if let Some(rto_min) = self.rto_min {
            // Without the option (before Linux 6.15), pepd's own controls set it themselves.
            let _ = crate::socket::set_rto_min(socket.as_fd(), rto_min);
        }
        if let Some(user_timeout) = self.user_timeout {
            or_warn(
                "TCP_USER_TIMEOUT",
                socket.set_tcp_user_timeout(Some(user_timeout)),
            );
        }
    }

    /// Caps the wait between SYNs and between retransmissions, with as many SYNs as the connect
    /// timeout needs then.
    fn set_rto_max_or_warn(&self, socket: BorrowedFd<'_>, rto_max: Duration) {
        // `pepd run` warns at its start if the kernel lacks the option.
        if self.user_timeout.is_some() && crate::socket::set_rto_max(socket, rto_max).is_ok() {
            let retries = self.syn_retries(rto_max);
            let set = crate::socket::set_int(socket, libc::IPPROTO_TCP, libc::TCP_SYNCNT, retries);
            or_warn("TCP_SYNCNT", set);
        }
    }

    /// Returns the SYN retransmissions that span the connect timeout: the first after a second,
    /// each next after twice the time, up to `rto_max`. The kernel's default is 6, its maximum 127.
    pub(super) fn syn_retries(&self, rto_max: Duration) -> i32 {
        let (mut retries, mut wait) = (0, SYN_RTO);
        let mut lasts = wait;
        while lasts < self.connect && retries < 127 {
            wait = (2 * wait).min(rto_max.max(SYN_RTO));
            lasts += wait;
            retries += 1;
        }
        retries.max(6)
    }
}

/// Sets the maximum rate of a leg, in bytes of payload per second.
pub fn set_pacing_or_warn(fd: BorrowedFd<'_>, bytes_per_second: u64) {
    let (level, name) = (libc::SOL_SOCKET, crate::socket::SO_MAX_PACING_RATE);
    let result = crate::socket::set_ulong(fd, level, name, bytes_per_second);
    or_warn("SO_MAX_PACING_RATE", result);
}

/// Warns, once per option and process, when the kernel refuses it.
pub(super) fn or_warn(name: &'static str, result: io::Result<()>) {
    static WARNED: Mutex<BTreeSet<&str>> = Mutex::new(BTreeSet::new());
    let Err(err) = result else { return };
    let mut warned = WARNED.lock();
    if warned.insert(name) {
        tracing::warn!(option = name, error = %err, "the kernel refuses a socket option: connections work without it; is the kernel too old?");
    }
}
