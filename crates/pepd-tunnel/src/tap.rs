//! The TUN interfaces of sites in mode `packet`: packets from hosts and back to them.

use std::{
    cell::Cell,
    io,
    os::fd::{AsFd as _, OwnedFd},
    rc::Rc,
    task::{Context, Poll, ready},
    time::Duration,
};

use pep_core::site::SiteId;
use pepd_intercept::{
    netlink::{Netlink, RouteError},
    tun::{self, PacketTun, PacketTuns, Tun},
};
use pepd_sys::reactor;
use tokio::io::{Interest, unix::AsyncFd};

use crate::{
    core::Core,
    packets::{
        Taken,
        groups::{Groups, Heard, Named, ends},
        runs::Runs,
    },
};

/// Time that a turn spends on packets for hosts while there are other peers, and on timers.
const DELIVERY: Duration = Duration::from_millis(1);
/// Packets delivered between two readings of the clock.
const CHECK_EVERY: usize = 32;
/// Packets read from one interface before other tasks run.
const TURN: usize = 128;
/// Interval between checks of the maximum packet length.
const LOOK: Duration = Duration::from_secs(1);
/// Minimum MTU of IPv6 (RFC 8200 §5). Packets longer than the tunnel carries are fragmented.
const MTU_MIN: usize = 1280;

/// The longest packet that the kernel passes.
const PACKET_MAX: usize = tun::PACKET_MAX as usize;

/// A TUN and its readiness.
#[derive(Debug)]
pub(crate) struct Source {
    tun: Tun,
    watch: AsyncFd<OwnedFd>,
}

impl Source {
    /// Creates the value; to be called within a runtime.
    ///
    /// # Errors
    /// If descriptors are exhausted.
    pub(crate) fn new(tun: Tun) -> io::Result<Self> {
        let watch = tun.as_fd().try_clone_to_owned()?;
        let watch = reactor::register(watch, Interest::READABLE)?;
        Ok(Self { tun, watch })
    }

    /// Returns the TUN.
    pub(crate) fn tun(&self) -> &Tun {
        &self.tun
    }

    /// Reads what has arrived, some `TURN` packets at most, by way of `buffer`, and calls `each`
    /// with the packets. Returns the number of malformed ones, which are dropped, and whether there
    /// may be more.
    pub(crate) fn read_turn(
        &self,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
        mut each: impl FnMut(&mut [u8]),
    ) -> (u64, bool) {
        let (mut read, mut malformed) = (0, 0);
        while read < TURN {
            let Poll::Ready(Ok(count)) = self.poll_read(cx, buffer, &mut each) else {
                return (malformed, false);
            };
            read += count.max(1);
            malformed += u64::from(count == 0);
        }
        (malformed, true)
    }

    /// Reads what the kernel delivers at once. Returns the packets' number, 0 for a malformed one.
    fn poll_read(
        &self,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
        mut each: impl FnMut(&mut [u8]),
    ) -> Poll<io::Result<usize>> {
        loop {
            let mut ready = ready!(self.watch.poll_read_ready(cx))?;
            match self.tun.read_each(buffer, &mut each)? {
                Some(count) => return Poll::Ready(Ok(count)),
                None => ready.clear_ready(),
            }
        }
    }
}

/// The interface of a site.
#[derive(Debug)]
struct Tap {
    /// Peer and chain of the packets.
    of: (usize, usize),
    source: Source,
    index: u32,
    /// The MTU last set; 0 at first.
    mtu: Rc<Cell<usize>>,
    /// The MTU is being set.
    setting: Rc<Cell<bool>>,
    /// The MTU that could not be set, as logged.
    failed: Rc<Cell<usize>>,
}

impl Tap {
    /// Creates the value; to be called within a runtime.
    fn new(of: (usize, usize), packets: PacketTun) -> io::Result<Self> {
        let PacketTun { tun, index, .. } = packets;
        Ok(Self {
            of,
            source: Source::new(tun)?,
            index,
            mtu: Rc::default(),
            setting: Rc::default(),
            failed: Rc::default(),
        })
    }

    /// Sets the MTU if it has changed. A failure is retried the next time.
    fn fit(&self, mtu: usize) {
        if self.mtu.get() == mtu || self.setting.replace(true) {
            return;
        }
        let (name, index) = (self.source.tun().name().to_owned(), self.index);
        let (set, setting) = (Rc::clone(&self.mtu), Rc::clone(&self.setting));
        let failed = Rc::clone(&self.failed);
        tokio::task::spawn_local(async move {
            match set_mtu(index, mtu).await {
                Ok(()) => {
                    tracing::debug!(interface = name, mtu, "interface MTU set");
                    set.set(mtu);
                }
                Err(error) if failed.replace(mtu) != mtu => {
                    tracing::warn!(interface = name, mtu, %error, "cannot set the MTU of pepd's TUN interface, retrying: packets may be too long meanwhile");
                }
                Err(_) => {}
            }
            setting.set(false);
        });
    }
}

/// All interfaces.
#[derive(Debug)]
pub(crate) struct Taps {
    taps: Vec<Tap>,
    /// The interface by which packets pass that pepd does not carry.
    passing: Option<Tun>,
    /// Multicast groups that sites name.
    groups: Option<Groups>,
    runs: Runs,
    buffer: Box<[u8]>,
    look: Duration,
}

impl Taps {
    /// Creates the value; to be called within a runtime. `find` returns the peer and the chain of a
    /// site.
    ///
    /// # Errors
    /// If descriptors are exhausted; without CAP_NET_RAW if sites name groups.
    pub(crate) fn new(
        tuns: PacketTuns,
        named: Option<Named>,
        find: impl Fn(SiteId) -> Option<(usize, usize)>,
    ) -> io::Result<Self> {
        let PacketTuns { sites, passing } = tuns;
        let found = sites
            .into_iter()
            .filter_map(|tun| Some((find(tun.site)?, tun)));
        Ok(Self {
            taps: found
                .map(|(of, tun)| Tap::new(of, tun))
                .collect::<io::Result<_>>()?,
            passing,
            groups: named.map(Groups::open).transpose()?,
            runs: Runs::default(),
            buffer: vec![0; tun::READ_MAX].into_boxed_slice(),
            look: Duration::ZERO,
        })
    }

    /// Takes packets from hosts, and delivers those of peers.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>, core: &mut Core) {
        if self.taps.is_empty() {
            return;
        }
        let now = core.now();
        for tap in &self.taps {
            if read(
                (tap, self.passing.as_ref()),
                &mut self.buffer,
                now,
                cx,
                core,
            ) {
                cx.waker().wake_by_ref();
            }
        }
        if let Some(groups) = &self.groups
            && hear(groups, &mut self.buffer, now, cx, core)
        {
            cx.waker().wake_by_ref();
        }
        if core.settle_packets(DELIVERY) {
            cx.waker().wake_by_ref();
        }
        self.deliver(cx, core);
        let [martian, unmatched, forbidden] = core.take_strangers();
        if martian + unmatched + forbidden > 0 {
            core.context.counters.update(|stats| {
                stats.packets_martian += martian;
                stats.packets_unmatched += unmatched;
                stats.packets_forbidden += forbidden;
            });
        }
        // Hosts must know a new session's MTU from its first packet on.
        if core.take_joined() || now >= self.look {
            self.look = now + LOOK;
            self.fit(core);
            self.groups.iter_mut().for_each(Groups::refresh);
        }
    }

    /// Delivers packets of peers to hosts, those of each peer in turn. With several peers, what
    /// takes too long goes on in the next turn.
    fn deliver(&mut self, cx: &mut Context<'_>, core: &mut Core) {
        let (mut all, mut refused, mut written) = (0, 0, 0);
        let until = core.now() + DELIVERY;
        loop {
            let looks = all % CHECK_EVERY == CHECK_EVERY - 1;
            let is_over = looks && !core.is_alone() && core.now() >= until;
            let next = if is_over { None } else { core.poll_host() };
            if is_over {
                cx.waker().wake_by_ref();
            }
            if next.is_none() || self.runs.is_full() {
                for (of, run) in self.runs.take() {
                    let tap = self.taps.iter().find(|tap| tap.of == of);
                    written += tap.map_or(0, |tap| tap.source.tun().write_run(&run));
                }
            }
            let Some((of, packet)) = next else {
                break;
            };
            all += 1;
            let Some(packet) = packet else {
                refused += 1;
                continue;
            };
            match ends(&packet) {
                Some((_, to)) if to.is_multicast() => {
                    let groups = self.groups.as_ref();
                    written += usize::from(groups.is_some_and(|groups| groups.send(packet)));
                }
                between => self.runs.push(of, between, packet),
            }
        }
        if all > 0 {
            core.context.counters.update(|stats| {
                stats.packets_delivered += written as u64;
                // Packets that the kernel does not take are lost, as on a link.
                stats.packets_undeliverable += (all - refused - written) as u64;
            });
        }
    }

    /// Sets each MTU to what the tunnel carries in one piece, so that hosts get path MTU errors
    /// (RFC 1191, RFC 8201).
    fn fit(&mut self, core: &mut Core) {
        for tap in &self.taps {
            let Some(mtu) = core.packet_mtu(tap.of) else {
                continue;
            };
            tap.fit(mtu.clamp(MTU_MIN, PACKET_MAX));
        }
    }
}

async fn set_mtu(index: u32, mtu: usize) -> Result<(), RouteError> {
    let mtu = u32::try_from(mtu).unwrap_or(u32::MAX);
    Netlink::connect()?.set_mtu(index, mtu).await
}

/// Reads packets from an interface. Returns whether there may be more.
fn read(
    (tap, passing): (&Tap, Option<&Tun>),
    buffer: &mut [u8],
    now: Duration,
    cx: &mut Context<'_>,
    core: &mut Core,
) -> bool {
    let [mut taken, mut passed, mut dropped] = [0; 3];
    let (malformed, more) = tap.source.read_turn(cx, buffer, |packet| {
        // The kernel's own neighbour and group queries on every interface; hosts' multicast takes
        // another path.
        if ends(packet).is_none_or(|(_, to)| to.is_multicast()) {
            return;
        }
        match core.packet_from_host(now, tap.of, packet) {
            Taken::Yes => taken += 1,
            Taken::Pass if passes(passing, packet) => passed += 1,
            Taken::Pass | Taken::Dropped => dropped += 1,
        }
    });
    dropped += malformed;
    if taken + passed + dropped > 0 {
        core.context.counters.update(|stats| {
            stats.packets_taken += taken;
            stats.packets_passed += passed;
            stats.packets_dropped += dropped;
        });
    }
    more
}

/// Takes multicast packets of hosts. Returns whether there may be more.
fn hear(
    groups: &Groups,
    buffer: &mut [u8],
    now: Duration,
    cx: &mut Context<'_>,
    core: &mut Core,
) -> bool {
    let [mut taken, mut dropped] = [0; 2];
    let mut more = true;
    for _ in 0..TURN {
        let Poll::Ready(Ok(Heard { site, length })) = groups.poll(cx, buffer) else {
            more = false;
            break;
        };
        let of = core.chain_of(site);
        match of.map(|of| core.packet_from_host(now, of, &buffer[..length])) {
            Some(Taken::Yes) => taken += 1,
            // The kernel handles the original packet in any case.
            _ => dropped += 1,
        }
    }
    if taken + dropped > 0 {
        core.context.counters.update(|stats| {
            stats.packets_taken += taken;
            stats.packets_dropped += dropped;
        });
    }
    more
}

/// Gives the kernel a packet to forward unchanged. Returns whether the kernel took it.
fn passes(passing: Option<&Tun>, packet: &[u8]) -> bool {
    passing.is_some_and(|tun| tun.write(packet).is_ok())
}
