//! The interfaces of sites in mode `packet`: packets out of them, and back into them.

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
    tun::{PacketTun, PacketTuns, Tun},
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

/// Packets read from one interface before others have their turn.
const TURN: usize = 128;
/// How often it is looked how long packets may be.
const LOOK: Duration = Duration::from_secs(1);
/// What every interface with IPv6 has to take (RFC 8200 §5). What is longer than the tunnel takes goes in pieces.
const MTU_MIN: usize = 1280;

/// The longest packet that the kernel hands out.
const PACKET_MAX: usize = 65_535;

/// The interface of a site.
#[derive(Debug)]
struct Tap {
    /// Whose packets they are, and their chain there.
    of: (usize, usize),
    tun: Tun,
    index: u32,
    watch: AsyncFd<OwnedFd>,
    /// What it was last set to, which is 0 until then.
    mtu: Rc<Cell<usize>>,
    /// It is being set.
    setting: Rc<Cell<bool>>,
    /// What it could not be set to, as was told.
    failed: Rc<Cell<usize>>,
}

impl Tap {
    /// To be called within a runtime.
    fn new(of: (usize, usize), packets: PacketTun) -> io::Result<Self> {
        let PacketTun { tun, index, .. } = packets;
        let watch = tun.as_fd().try_clone_to_owned()?;
        Ok(Self {
            of,
            tun,
            index,
            watch: reactor::register(watch, Interest::READABLE)?,
            mtu: Rc::default(),
            setting: Rc::default(),
            failed: Rc::default(),
        })
    }

    /// Reads a packet to the beginning of `buffer`; how long it is.
    fn poll_read(&self, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        loop {
            let mut ready = ready!(self.watch.poll_read_ready(cx))?;
            match self.tun.read(buffer)? {
                Some(length) => return Poll::Ready(Ok(length)),
                None => ready.clear_ready(),
            }
        }
    }

    /// Sets its MTU, if that is another. What fails is tried again the next time.
    fn fit(&self, mtu: usize) {
        if self.mtu.get() == mtu || self.setting.replace(true) {
            return;
        }
        let (name, index) = (self.tun.name().to_owned(), self.index);
        let (set, setting) = (Rc::clone(&self.mtu), Rc::clone(&self.setting));
        let failed = Rc::clone(&self.failed);
        tokio::task::spawn_local(async move {
            match set_mtu(index, mtu).await {
                Ok(()) => {
                    tracing::debug!(interface = name, mtu, "longest packet");
                    set.set(mtu);
                }
                Err(error) if failed.replace(mtu) != mtu => {
                    tracing::warn!(interface = name, mtu, %error, "cannot set the MTU of an interface yet");
                }
                Err(_) => {}
            }
            setting.set(false);
        });
    }
}

/// All of them.
#[derive(Debug)]
pub(crate) struct Taps {
    taps: Vec<Tap>,
    /// By which packets pass that are not carried.
    passing: Option<Tun>,
    /// Where sites name some.
    groups: Option<Groups>,
    runs: Runs,
    buffer: Box<[u8]>,
    look: Duration,
}

impl Taps {
    /// To be called within a runtime. `find` says of which peer a site is, and which chain of its.
    ///
    /// # Errors
    /// When descriptors are short; without CAP_NET_RAW where sites name groups.
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
            buffer: vec![0; PACKET_MAX].into_boxed_slice(),
            look: Duration::ZERO,
        })
    }

    /// Takes packets of hosts, and gives them theirs.
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
        core.settle_packets();
        self.deliver(core);
        let [martian, foreign] = core.take_strangers();
        if martian + foreign > 0 {
            core.context.counters.update(|stats| {
                stats.packets_martian += martian;
                stats.packets_foreign += foreign;
            });
        }
        // What a new session takes hosts are to know from its first packet.
        if core.take_joined() || now >= self.look {
            self.look = now + LOOK;
            self.fit(core);
            self.groups.iter_mut().for_each(Groups::look);
        }
    }

    /// Lets the peer's packets go on to hosts.
    fn deliver(&mut self, core: &mut Core) {
        let (mut all, mut written) = (0, 0);
        loop {
            let next = core.poll_host();
            if next.is_none() || self.runs.is_full() {
                for (of, run) in self.runs.take() {
                    let tap = self.taps.iter().find(|tap| tap.of == of);
                    written += tap.map_or(0, |tap| tap.tun.write_run(&run));
                }
            }
            let Some((of, packet)) = next else {
                break;
            };
            all += 1;
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
                // What the kernel does not take is lost, as it would be on a link.
                stats.packets_undeliverable += (all - written) as u64;
            });
        }
    }

    /// Interfaces take what the tunnel carries in one piece, so that hosts hear of what does not fit (RFC 1191, RFC 8201).
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

/// Reads what an interface has; whether there may be more.
fn read(
    (tap, passing): (&Tap, Option<&Tun>),
    buffer: &mut [u8],
    now: Duration,
    cx: &mut Context<'_>,
    core: &mut Core,
) -> bool {
    let [mut taken, mut passed, mut dropped] = [0; 3];
    let mut more = true;
    for _ in 0..TURN {
        let Poll::Ready(Ok(length)) = tap.poll_read(cx, buffer) else {
            more = false;
            break;
        };
        let packet = &buffer[..length];
        // The kernel's own, which looks for neighbours and groups at every interface: hosts' go another way.
        if ends(packet).is_none_or(|(_, to)| to.is_multicast()) {
            continue;
        }
        match core.packet_from_host(now, tap.of, packet) {
            Taken::Yes => taken += 1,
            Taken::Pass if passes(passing, packet) => passed += 1,
            Taken::Pass | Taken::Dropped => dropped += 1,
        }
    }
    if taken + passed + dropped > 0 {
        core.context.counters.update(|stats| {
            stats.packets_taken += taken;
            stats.packets_passed += passed;
            stats.packets_dropped += dropped;
        });
    }
    more
}

/// Takes what hosts have sent to groups; whether there may be more.
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
            // What the kernel does with the packet itself it does in any case.
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

/// Gives the kernel a packet to forward as if there were no pepd; whether it took it.
fn passes(passing: Option<&Tun>, packet: &[u8]) -> bool {
    passing.is_some_and(|tun| tun.write(packet).is_ok())
}
