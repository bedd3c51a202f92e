//! The task between the TUNs and the boosters.

use std::{
    future::poll_fn,
    io,
    sync::Arc,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use pepd_intercept::{
    rules::LaneKind,
    tun::{PacketTuns, READ_MAX, Tun},
};
use pepd_relay::flow::FlowContext;

use super::Sites;
use crate::{
    driver::Timer,
    packets::{SiteFacts, groups::ends},
    tap::Source,
};

/// Interval at which other threads get the state of the sites.
const SHOWN_EVERY: Duration = Duration::from_secs(1);

/// Carries packets until `stopped`.
pub(super) async fn run(
    sites: Sites,
    tuns: PacketTuns,
    context: &Arc<FlowContext>,
    shown: &Mutex<Vec<SiteFacts>>,
    stopped: impl Future<Output = ()>,
) -> io::Result<()> {
    let PacketTuns {
        sites: tuns,
        passing,
    } = tuns;
    let found = tuns
        .into_iter()
        .filter_map(|tun| Some((sites.place(tun.site)?, tun)));
    let lanes = found.map(|(place, tun)| {
        Ok(Lane {
            place,
            kind: tun.kind,
            source: Source::new(tun.tun)?,
        })
    });
    let mut driver = Driver {
        lanes: lanes.collect::<io::Result<_>>()?,
        passing,
        sites,
        context,
        shown,
        show: Duration::ZERO,
        timer: Timer::new()?,
        base: Instant::now(),
        buffer: vec![0; READ_MAX].into_boxed_slice(),
    };
    tokio::select! {
        () = poll_fn(|cx| driver.poll(cx)) => {}
        () = stopped => {}
    }
    Ok(())
}

/// A TUN of a site.
struct Lane {
    place: usize,
    kind: LaneKind,
    source: Source,
}

struct Driver<'a> {
    lanes: Vec<Lane>,
    /// The TUN by which packets for the link enter the kernel.
    passing: Option<Tun>,
    sites: Sites,
    context: &'a FlowContext,
    shown: &'a Mutex<Vec<SiteFacts>>,
    show: Duration,
    timer: Timer,
    base: Instant,
    buffer: Box<[u8]>,
}

impl Driver<'_> {
    /// Never ready: the task ends on drop.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let now = self.base.elapsed();
        let [taken, malformed] = self.read(cx, now);
        self.sites.settle(now);
        let [written, lost] = self.write(now);
        if taken + malformed + written + lost > 0 {
            self.context.counters.update(|stats| {
                stats.packets_taken += taken;
                stats.packets_dropped += malformed;
                stats.packets_delivered += written;
                // Packets that the kernel does not take are lost, as on a link.
                stats.packets_undeliverable += lost;
            });
        }
        if now >= self.show {
            self.show = now + SHOWN_EVERY;
            *self.shown.lock() = self.sites.facts(now);
        }
        let deadline = self.sites.deadline();
        let deadline = deadline.map_or(self.show, |at| at.min(self.show));
        let now = self.base.elapsed();
        if self.timer.poll(cx, Some(deadline), now).is_ready() {
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    }

    /// Takes packets out of the TUNs. Returns their number, and that of malformed ones.
    fn read(&mut self, cx: &mut Context<'_>, now: Duration) -> [u64; 2] {
        let [mut taken, mut malformed] = [0; 2];
        for lane in &self.lanes {
            let (dropped, more) = lane.source.read_turn(cx, &mut self.buffer, |packet| {
                // The kernel's own neighbour and group queries on every interface.
                if ends(packet).is_some_and(|(_, to)| !to.is_multicast()) {
                    self.sites.take(now, lane.place, lane.kind, packet);
                    taken += 1;
                }
            });
            malformed += dropped;
            if more {
                cx.waker().wake_by_ref();
            }
        }
        [taken, malformed]
    }

    /// Gives the kernel what has passed the boosters. Returns the numbers of packets that it took,
    /// and of others.
    fn write(&mut self, now: Duration) -> [u64; 2] {
        let [mut written, mut lost] = [0; 2];
        let mut count = |is_written: bool| match is_written {
            true => written += 1,
            false => lost += 1,
        };
        let mut packet = Vec::new();
        while self.sites.poll_link(now, &mut packet) {
            let tun = self.passing.as_ref();
            count(tun.is_some_and(|tun| tun.write(&packet).is_ok()));
            packet.clear();
        }
        while let Some((place, packet)) = self.sites.poll_host() {
            let is_of = |lane: &&Lane| (lane.place, lane.kind) == (place, LaneKind::ToHosts);
            let tun = self.lanes.iter().find(is_of).map(|lane| lane.source.tun());
            count(tun.is_some_and(|tun| tun.write(&packet.bytes).is_ok()));
        }
        [written, lost]
    }
}
