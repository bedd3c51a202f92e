//! Idle legs over the link: applies [`revival`](pep_core::outage::revival) to legs that are stuck,
//! most likely because the link is down, and [`patience`](pep_core::outage::patience) to legs whose
//! receiver pauses.
//!
//! Each worker handles its own legs: no other thread may use a socket that is being made to send a
//! probe.

use std::{
    cell::RefCell,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use pep_core::outage::{
    flows::Seen,
    patience::Patience,
    revival::{Care, Revival, Tempo, Vitals},
};
use pepd_sys::{leg::LegOptions, socket};
use socket2::SockRef;
use tokio::{
    sync::Notify,
    time::{Instant, sleep},
};

use super::FlowContext;

/// Interval between two looks at each leg.
const SCAN: Duration = Patience::LOOK;
/// Interval between two looks at legs of quick tempo while some have bytes in flight, and while
/// none has.
const SCAN_QUICK: Duration = Duration::from_millis(10);
const SCAN_IDLE: Duration = Duration::from_millis(200);
/// Minimum interval between two looks per leg of quick tempo, or per stuck leg: 1 % of a CPU for
/// all of them.
const SCAN_EACH: Duration = Duration::from_micros(100);
/// Intervals between two looks at stuck legs, by tempo.
const QUICK_LOOK: Duration = Tempo::quick(None).look();
const USUAL_LOOK: Duration = Tempo::usual(None).look();
/// Minimum interval between two probes of one worker, when many legs are stuck.
const BETWEEN_PROBES: Duration = Duration::from_millis(5);

thread_local! {
    static LEGS: RefCell<Legs> = RefCell::default();
}

/// Legs of one worker.
#[derive(Debug, Default)]
struct Legs {
    list: Vec<Leg>,
    /// Notified when the first leg is added to an empty list.
    some: Arc<Notify>,
}

#[derive(Debug)]
struct Leg {
    socket: Weak<OwnedFd>,
    /// Maximum of its retransmission timeout in normal operation; without one the leg is not
    /// revived.
    rto_max: Option<Duration>,
    tempo: Tempo,
    patience: Patience,
    /// The maximum that the kernel has now.
    rto_max_set: Option<Duration>,
    /// Bytes acknowledged while more are in flight or wait, and the scan that first found as many.
    waits: Option<(u64, Duration)>,
    /// State of the revival, if the leg seems stuck.
    revival: Option<Revival>,
    /// Time of the last try of a leg without bytes in flight.
    tried: Option<Duration>,
    /// Time since which bytes are in flight.
    loaded: Option<Duration>,
    /// True if the last scan found nothing in flight and no closed window.
    is_quiet: bool,
    used: Arc<Used>,
}

/// Marks of a leg whose flow has sent or received since the last look.
#[derive(Debug, Default)]
pub(super) struct Used {
    sent: AtomicBool,
    received: AtomicBool,
}

impl Used {
    /// Notes that bytes or a FIN were sent. To be called before the flow yields: the looks run as
    /// another task of the same thread.
    pub(super) fn on_sent(&self) {
        self.sent.store(true, Relaxed);
    }

    /// Notes that bytes were received.
    pub(super) fn on_received(&self) {
        self.received.store(true, Relaxed);
    }
}

/// Adds a leg with these options to the calling worker's list, if it has a user timeout. Without
/// one, the kernel gives up after a number of retransmissions, so that a cap on the time between
/// them would end the flow early. Returns the mark to set when the leg sends.
pub(super) fn watch(socket: &Arc<OwnedFd>, options: &LegOptions) -> Arc<Used> {
    let used = Arc::new(Used::default());
    let Some(user_timeout) = options.user_timeout else {
        return used;
    };
    // A predecessor may have extended the timeout of a leg whose receiver pauses.
    let set = SockRef::from(socket).tcp_user_timeout().ok().flatten();
    let rate = options.pacing.map(|rate| rate.v4.bytes_per_second());
    LEGS.with_borrow_mut(|legs| {
        if legs.list.is_empty() {
            legs.some.notify_one();
        }
        legs.list.push(Leg {
            socket: Arc::downgrade(socket),
            rto_max: options.rto_max,
            rto_max_set: options.rto_max,
            tempo: match options.rto_min {
                Some(_) => Tempo::quick(rate),
                None => Tempo::usual(rate),
            },
            patience: Patience::new(user_timeout, set.unwrap_or(user_timeout)),
            waits: None,
            revival: None,
            tried: None,
            loaded: None,
            is_quiet: false,
            used: Arc::clone(&used),
        });
    });
    used
}

/// Looks after the legs of this worker, by its number, for as long as it runs.
pub async fn run(context: Arc<FlowContext>, worker: usize) {
    let some = LEGS.with_borrow(|legs| Arc::clone(&legs.some));
    let began = Instant::now();
    let mut looks = Looks::default();
    loop {
        if LEGS.with_borrow(|legs| legs.list.is_empty()) {
            some.notified().await;
        }
        sleep(looks.pause()).await;
        let now = began.elapsed();
        looks.heard = context.outage.heard_ago();
        let probes = LEGS.with_borrow_mut(|legs| legs.care(now, &mut looks));
        if let Some(seen) = looks.seen.take() {
            context.outage.see(worker, seen);
        }
        if probes > 0 {
            context.counters.update(|stats| stats.link_probes += probes);
        }
    }
}

/// Times of the looks at the legs of one worker, and the findings that determine the next.
#[derive(Debug, Default)]
struct Looks {
    /// Time of the last look at all legs, and at those of quick tempo.
    scanned: Duration,
    scanned_quick: Duration,
    /// Stuck legs, and those of quick tempo among them.
    stuck: u32,
    stuck_quick: u32,
    /// Stuck legs without bytes in flight. They are looked at with all others: receivers that pause
    /// make many of them.
    waiting: u32,
    /// Time since something came over the link, before the present look.
    heard: Option<Duration>,
    /// Observation by the last look at all legs.
    seen: Option<Seen>,
    /// True if legs received something that have ended since then.
    ended_heard: bool,
    /// Legs of quick tempo, and those with bytes in flight.
    quick: u32,
    quick_in_flight: u32,
}

impl Looks {
    /// Returns the time until the next look.
    fn pause(&self) -> Duration {
        let for_stuck = SCAN_EACH * self.stuck;
        if self.stuck_quick > 0 {
            QUICK_LOOK.max(for_stuck).min(SCAN)
        } else if self.stuck > 0 {
            USUAL_LOOK.max(for_stuck).min(self.scan_quick())
        } else {
            self.scan_quick()
        }
    }

    /// Returns the interval between looks at all legs of quick tempo.
    fn scan_quick(&self) -> Duration {
        let scan = match (self.quick, self.quick_in_flight) {
            (0, _) => SCAN,
            (_, 0) => SCAN_IDLE,
            _ => SCAN_QUICK,
        };
        scan.max(SCAN_EACH * self.quick).min(SCAN)
    }
}

impl Legs {
    /// Looks at the legs that are due. Returns the number of legs made to send.
    fn care(&mut self, now: Duration, looks: &mut Looks) -> u64 {
        let scan = now - looks.scanned >= SCAN;
        let scan_quick = now - looks.scanned_quick >= looks.scan_quick();
        if scan {
            looks.scanned = now;
        }
        if scan_quick {
            looks.scanned_quick = now;
            (looks.quick, looks.quick_in_flight) = (0, 0);
        }
        let (stuck_before, waiting_before) = (looks.stuck, looks.waiting);
        let between = BETWEEN_PROBES * stuck_before;
        (looks.stuck, looks.stuck_quick, looks.waiting) = (0, 0, 0);
        let mut probes = 0;
        let mut seen = Seen::new(looks.heard);
        self.list.retain_mut(|leg| {
            let quick = leg.tempo.is_quick();
            let due = scan || (scan_quick && quick);
            if !due && leg.revival.is_none() {
                return true;
            }
            let Some(socket) = leg.socket.upgrade() else {
                looks.ended_heard |= leg.used.received.load(Relaxed);
                return false;
            };
            if scan && leg.used.received.swap(false, Relaxed) {
                seen.hear(Duration::ZERO);
            }
            // Most legs are idle, and system calls for each would be most of what they cost. A leg
            // that was empty, and has not sent since, is still empty.
            let is_used = leg.used.sent.swap(false, Relaxed);
            if leg.is_quiet && (!is_used || matches!(socket::unacknowledged(socket.as_fd()), Ok(0)))
            {
                looks.quick += u32::from(scan_quick && quick && leg.rto_max.is_some());
                return true;
            }
            let Ok(vitals) = socket::vitals(socket.as_fd()) else {
                return false;
            };
            // The vitals of a leg that has sent its FIN show nothing in flight.
            leg.is_quiet = scan
                && vitals.unacked == 0
                && !vitals.waits_for_window
                && matches!(socket::unacknowledged(socket.as_fd()), Ok(0));
            if scan {
                leg.show(now, &vitals, socket.as_fd(), &mut seen);
            }
            if vitals.gives_up_soon {
                // Fails without the right to: then the kernel gives up.
                let _ = socket::count_as_sent(socket.as_fd());
            }
            if scan && let Some(timeout) = leg.user_timeout(now, &vitals) {
                let socket = SockRef::from(&socket);
                let _ = socket.set_tcp_user_timeout(Some(timeout));
            }
            let Some(rto_max) = leg.rto_max else {
                return true;
            };
            if scan_quick && quick {
                looks.quick += 1;
                looks.quick_in_flight += u32::from(vitals.unacked > 0);
            }
            let period = leg.tempo.period(stuck_before).max(between);
            let care = leg.care(now, &vitals, rto_max, period);
            if care == Care::Probe && leg.may_try(now, &vitals, waiting_before) {
                probes += u64::from(probe(socket.as_fd(), &vitals));
            }
            let is_stuck = leg.revival.is_some();
            leg.is_quiet &= !is_stuck;
            leg.cap_retransmissions(socket.as_fd(), &vitals, rto_max);
            let is_waiting = is_stuck && vitals.unacked == 0;
            looks.waiting += u32::from(is_waiting);
            looks.stuck += u32::from(is_stuck && !is_waiting);
            looks.stuck_quick += u32::from(is_stuck && !is_waiting && quick);
            true
        });
        if scan {
            if std::mem::take(&mut looks.ended_heard) {
                seen.hear(Duration::ZERO);
            }
            looks.seen = Some(seen);
        }
        if self.list.len() < self.list.capacity() / 4 {
            self.list.shrink_to_fit();
        }
        probes
    }
}

impl Leg {
    /// Sets the maximum of the retransmission timeout that its state calls for. pepd already warned
    /// of a kernel without this option when it made the leg.
    fn cap_retransmissions(&mut self, fd: BorrowedFd<'_>, vitals: &Vitals, rto_max: Duration) {
        let is_stuck = self.revival.is_some();
        let most = self.tempo.rto_max_for(vitals, is_stuck, rto_max);
        if self.rto_max_set.replace(most) != Some(most) {
            let _ = socket::set_rto_max(fd, most);
        }
    }

    /// Adds what the leg shows of the link. A paused receiver is no silence: only bytes in flight
    /// count.
    fn show(&mut self, now: Duration, vitals: &Vitals, fd: BorrowedFd<'_>, seen: &mut Seen) {
        seen.hear(vitals.silent);
        self.loaded = (vitals.unacked > 0).then(|| self.loaded.unwrap_or(now));
        let Some(loaded) = self.loaded else { return };
        let waited = vitals.silent.min(now - loaded);
        let patience = Seen::patience(vitals.rtt, self.tempo.limit(vitals));
        if waited < patience {
            return;
        }
        let remote = SockRef::from(&fd).peer_addr();
        if let Some(remote) = remote.ok().and_then(|remote| remote.as_socket()) {
            seen.wait(remote.ip(), waited, patience);
        }
    }

    /// Returns the leg's new user timeout, if it changes.
    fn user_timeout(&mut self, now: Duration, vitals: &Vitals) -> Option<Duration> {
        self.patience.care(now, vitals)
    }

    /// Returns false for a leg without bytes in flight that has tried lately, as many do.
    fn may_try(&mut self, now: Duration, vitals: &Vitals, waiting: u32) -> bool {
        if vitals.unacked > 0 {
            return true;
        }
        let between = self.tempo.period(waiting).max(BETWEEN_PROBES * waiting);
        let is_due = self.tried.is_none_or(|tried| now >= tried + between);
        if is_due {
            self.tried = Some(now);
        }
        is_due
    }

    /// Decides the action for the leg.
    fn care(
        &mut self,
        now: Duration,
        vitals: &Vitals,
        rto_max: Duration,
        period: Duration,
    ) -> Care {
        if self.revival.is_none() {
            let stands = self.waits.filter(|(acked, _)| *acked == vitals.acked);
            let since = stands.map_or(now, |(_, since)| since);
            self.waits = vitals.has_bytes().then_some((vitals.acked, since));
            let limit = self.tempo.limit_with(vitals, rto_max);
            if !vitals.has_bytes() || now - since < limit || vitals.silent < limit {
                return Care::Wait;
            }
        }
        let revival = self
            .revival
            .get_or_insert_with(|| Revival::new(self.tempo, now, vitals));
        let care = revival.care(now, vitals, period);
        if care == Care::Leave {
            (self.revival, self.waits) = (None, None);
        }
        care
    }
}

/// Makes a leg try to reach its far end, by bytes that could not be sent, or by a probe. Returns
/// true if it has sent a probe.
fn probe(fd: BorrowedFd<'_>, vitals: &Vitals) -> bool {
    if vitals.waits_for_window {
        let _ = socket::push(fd);
    }
    vitals.is_established && socket::send_probe(fd).is_ok()
}

#[cfg(test)]
mod tests {
    use std::{
        io::Write,
        net::{Shutdown, TcpListener, TcpStream},
        os::unix::net::UnixStream,
    };

    use pepd_sys::leg::testing::site;
    use socket2::SockFilter;

    use super::*;

    #[test]
    fn a_leg_without_a_user_timeout_keeps_the_kernels_timer() {
        let (socket, _other) = UnixStream::pair().expect("sockets");
        let socket = Arc::new(OwnedFd::from(socket));
        let mut options = LegOptions {
            rto_max: Some(Duration::from_secs(2)),
            rto_min: Some(Duration::from_millis(50)),
            user_timeout: None,
            ..site().server
        };
        watch(&socket, &options);
        assert!(LEGS.with_borrow(|legs| legs.list.is_empty()));
        options.user_timeout = Some(Duration::from_secs(900));
        watch(&socket, &options);
        assert_eq!(LEGS.with_borrow(|legs| legs.list.len()), 1);
    }

    /// Watched leg, and its receiver.
    struct Watched {
        leg: TcpStream,
        receiver: TcpStream,
        used: Arc<Used>,
        looks: Looks,
        socket: Arc<OwnedFd>,
    }

    impl Watched {
        fn new() -> Self {
            let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
            let address = listener.local_addr().expect("an address");
            let leg = TcpStream::connect(address).expect("a listener");
            let (receiver, _) = listener.accept().expect("a connection");
            leg.set_nonblocking(true).expect("a socket");
            let socket = Arc::new(OwnedFd::from(leg.try_clone().expect("descriptors")));
            let options = LegOptions {
                user_timeout: Some(Duration::from_secs(900)),
                ..site().server
            };
            Self {
                used: watch(&socket, &options),
                looks: Looks::default(),
                leg,
                receiver,
                socket,
            }
        }

        fn is_quiet_at(&mut self, seconds: u64) -> bool {
            let now = Duration::from_secs(seconds);
            LEGS.with_borrow_mut(|legs| {
                legs.care(now, &mut self.looks);
                legs.list[0].is_quiet
            })
        }
    }

    #[test]
    fn a_quiet_leg_is_looked_at_again_once_bytes_wait() {
        let mut watched = Watched::new();
        assert!(watched.is_quiet_at(1) && watched.is_quiet_at(2));
        // Until the receiver's window is closed.
        while watched.leg.write(&[0; 1 << 16]).is_ok() {}
        watched.used.on_sent();
        assert!(!watched.is_quiet_at(3));
    }

    /// Connections shorter than a second show that the link is not silent.
    #[test]
    fn what_a_leg_received_before_its_end_is_heard() {
        let Watched {
            used,
            mut looks,
            socket,
            ..
        } = Watched::new();
        used.on_received();
        drop(socket);
        LEGS.with_borrow_mut(|legs| legs.care(Duration::from_secs(1), &mut looks));
        let mut heard = Seen::default();
        heard.hear(Duration::ZERO);
        assert_eq!(looks.seen, Some(heard));
    }

    /// A leg that has sent its FIN sends no more, so that no mark would end the quiet.
    #[test]
    fn a_leg_whose_fin_waits_behind_bytes_in_flight_is_not_quiet() {
        let mut watched = Watched::new();
        // The receiver's kernel drops all packets, so that bytes stay in flight.
        let take_nothing = SockFilter::new((libc::BPF_RET | libc::BPF_K) as u16, 0, 0, 0);
        let receiver = SockRef::from(&watched.receiver);
        receiver.attach_filter(&[take_nothing]).expect("a filter");
        watched.leg.write_all(&[0; 1000]).expect("room");
        watched.leg.shutdown(Shutdown::Write).expect("a connection");
        watched.used.on_sent();
        assert!(!watched.is_quiet_at(1) && !watched.is_quiet_at(2));
    }
}
