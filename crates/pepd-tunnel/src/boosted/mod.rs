//! Packets of sites in mode `boost`: through boosters, and back to the kernel.
//!
//! ```text
//!   host --> kernel --mark--> TUN --> Chain, its queue --pace--> TUN pepd-p --> kernel --> link
//!   host <-- kernel <-- TUN <-------- Chain <------- TUN <--mark-- kernel <--------------- link
//! ```
//!
//! The kernel tracks each packet once, and translates its addresses on the side of the link only:
//! packets from hosts behind the boosters, those from the link before.

mod driver;
mod pacer;

use std::{io, sync::Arc, thread::JoinHandle, time::Duration};

use boosters::{chain::Chain, checksum, packet::Packet, rule::Path};
use parking_lot::Mutex;
use pep_core::{
    config::{Config, PacketSite},
    site::{Class, SiteId},
};
use pepd_intercept::{rules::LaneKind, tun::PacketTuns};
use pepd_relay::flow::FlowContext;
use pepd_sys::{keys, threads::IdleLoop};
use tokio::sync::watch;
use units::Rate;

use crate::packets::{LOOK, SiteFacts, settings};
use pacer::Pacer;

/// Boosters of all sites in mode `boost`.
#[derive(Debug)]
struct Sites {
    /// Sites in the order in which their packets leave: by class.
    list: Vec<Boosted>,
    pacer: Pacer,
    path: Path,
    /// Time of the last update of the path.
    looked: Duration,
}

#[derive(Debug)]
struct Boosted {
    id: SiteId,
    name: String,
    chain: Chain,
}

impl Sites {
    /// Creates the boosters. Packets of all sites together leave at the configured rate of the
    /// link. `seed` determines message numbers of boosters.
    fn new(config: &Config, seed: u64) -> Self {
        let link = config.link.as_ref();
        let (rate, back) = (
            link.and_then(|link| link.rate),
            link.and_then(|link| link.rate_down),
        );
        let mut sites: Vec<_> = config.boosted_sites().collect();
        sites.sort_by_key(|site| order(site.site.class));
        let boosted = |of: PacketSite<'_>| Boosted {
            id: of.id,
            name: of.site.name.clone(),
            chain: settings::chain(of.policy, rate, seed),
        };
        Self {
            list: sites.into_iter().map(boosted).collect(),
            pacer: Pacer::new(rate),
            path: Path {
                rate: rate.map_or(0, Rate::bits_per_second),
                peer_rate: back.map(Rate::bits_per_second),
                rtt: link.and_then(|link| link.rtt).unwrap_or(Path::RTT_UNKNOWN),
                ..Path::default()
            },
            looked: Duration::ZERO,
        }
    }

    /// Returns the place of a site.
    fn place(&self, id: SiteId) -> Option<usize> {
        self.list.iter().position(|site| site.id == id)
    }

    /// Takes a packet of the site at that place, as the kernel forwarded it.
    fn take(&mut self, now: Duration, place: usize, kind: LaneKind, packet: &mut [u8]) {
        undo_hop(packet);
        let chain = &mut self.list[place].chain;
        match kind {
            LaneKind::ToHosts => chain.to_host(now, Packet::new(packet.to_vec(), now)),
            LaneKind::ToLink | LaneKind::Peer => chain.from_host(now, packet),
        }
    }

    /// Runs due timers, and updates what boosters know of the path.
    fn settle(&mut self, now: Duration) {
        let looks = now >= self.looked + LOOK;
        if looks {
            self.looked = now;
        }
        for Boosted { chain, .. } in &mut self.list {
            if chain.deadline().is_some_and(|at| at <= now) {
                chain.on_time(now);
            }
            if looks {
                chain.set_path(now, &self.path);
            }
        }
    }

    /// Appends the next packet for the link to `out`. Returns false if there is none, or it has to
    /// wait.
    fn poll_link(&mut self, now: Duration, out: &mut Vec<u8>) -> bool {
        if !self.pacer.is_ready(now) {
            return false;
        }
        let mut chains = self.list.iter_mut().map(|site| &mut site.chain);
        let found = chains.any(|chain| chain.poll_message(now, usize::MAX, out).is_some());
        if found {
            self.pacer.on_sent(now, out.len());
        }
        found
    }

    /// Returns the next packet for a host, and the place of its site.
    fn poll_host(&mut self) -> Option<(usize, Packet)> {
        let mut sites = self.list.iter_mut().enumerate();
        sites.find_map(|(place, site)| Some((place, site.chain.poll_host()?)))
    }

    /// Returns the time at which there is something to do next.
    fn deadline(&self) -> Option<Duration> {
        let chains = self.list.iter().map(|site| &site.chain);
        let waits = chains.clone().any(Chain::has_message);
        let next = waits.then(|| self.pacer.next());
        chains.filter_map(Chain::deadline).chain(next).min()
    }

    fn facts(&self, now: Duration) -> Vec<SiteFacts> {
        let sites = self.list.iter();
        let facts = sites.map(|site| SiteFacts::new(&site.name, &site.chain, now));
        facts.collect()
    }
}

/// Returns the place of a class in the order of leaving.
fn order(class: Class) -> u8 {
    match class {
        Class::Interactive => 0,
        Class::Normal => 1,
        Class::Bulk => 2,
        Class::DelayTolerant => 3,
    }
}

/// Restores the TTL or hop limit from before the TUN: the kernel lowers it again behind the
/// boosters.
fn undo_hop(packet: &mut [u8]) {
    match packet.first().map(|first| first >> 4) {
        Some(4) if packet.len() >= 20 => {
            let [ttl, protocol] = [packet[8], packet[9]];
            let [old, new] =
                [ttl, ttl.saturating_add(1)].map(|ttl| u16::from_be_bytes([ttl, protocol]));
            packet[8] = ttl.saturating_add(1);
            checksum::replace_u16(packet, 10, old, new);
        }
        Some(6) if packet.len() >= 40 => packet[7] = packet[7].saturating_add(1),
        _ => {}
    }
}

/// The thread of mode `boost`, without work for now, and its seed.
#[derive(Debug)]
pub struct Prepared {
    thread: IdleLoop,
    seed: u64,
}

impl Prepared {
    /// Creates the thread.
    ///
    /// # Errors
    /// When memory, descriptors, or the limit of threads, are exhausted, or the kernel gives no
    /// random numbers.
    pub fn new() -> io::Result<Self> {
        let seed = keys::random().map_err(io::Error::other)?;
        Ok(Self {
            thread: IdleLoop::new("boosters".to_owned())?,
            seed: u64::from_be_bytes(seed[..8].try_into().expect("longer")),
        })
    }
}

/// The running thread of mode `boost`. It stops on drop; [`stop`](Self::stop) also waits for its
/// end.
#[derive(Debug)]
pub struct Boosters {
    thread: JoinHandle<()>,
    stop: watch::Sender<()>,
    facts: Arc<Mutex<Vec<SiteFacts>>>,
}

impl Boosters {
    /// Starts the thread. `tuns` are the interfaces of sites in mode `boost`.
    pub fn start(
        config: &Config,
        prepared: Prepared,
        tuns: PacketTuns,
        context: &Arc<FlowContext>,
    ) -> Self {
        let stop = watch::Sender::new(());
        let mut stopped = stop.subscribe();
        let sites = Sites::new(config, prepared.seed);
        let facts = Arc::new(Mutex::new(sites.facts(Duration::ZERO)));
        let (shown, context) = (Arc::clone(&facts), Arc::clone(context));
        let beat = context.heartbeat.of_thread();
        let thread = prepared.thread.begin(move |runtime| {
            runtime.block_on(async move {
                tokio::spawn(beat.tick());
                // No value is ever sent: the wait ends when the sender is dropped.
                let stopped = async { while stopped.changed().await.is_ok() {} };
                if let Err(err) = driver::run(sites, tuns, &context, &shown, stopped).await {
                    let error = &err as &dyn std::error::Error;
                    tracing::error!(
                        error,
                        "thread of mode \"boost\" stopped: the kernel forwards its packets"
                    );
                }
            });
        });
        Self {
            thread,
            stop,
            facts,
        }
    }

    /// Returns the state of the sites, at most a second old.
    pub fn facts(&self) -> Arc<Mutex<Vec<SiteFacts>>> {
        Arc::clone(&self.facts)
    }

    /// Stops the thread; waiting packets are lost.
    pub fn stop(self) {
        drop(self.stop);
        if self.thread.join().is_err() {
            tracing::error!("thread of mode \"boost\" panicked: a bug: please report");
        }
    }
}

#[cfg(test)]
mod tests {
    use boosters::ip::Ip;

    use super::*;

    fn sites(link: &str, sites: &str) -> Sites {
        let text =
            format!("[intercept]\nlan = [\"lan0\"]\n[link]\ninterface = \"sat0\"\n{link}\n{sites}");
        Sites::new(&pep_core::config::parse(&text).expect("valid"), 7)
    }

    fn site(name: &str, more: &str) -> String {
        format!(
            "[[site]]\nname = \"{name}\"\nmode = \"boost\"\nboost = {{ snoop = true }}\n{more}\n"
        )
    }

    /// Builds a datagram with these remaining hops.
    fn udp(ttl: u8, number: u8) -> Vec<u8> {
        let mut packet = vec![0x45, 0, 0, 29, 0, 0, 0x40, 0, ttl, 17, 0, 0];
        packet.extend([10, 1, 0, 1, 10, 2, 0, 1]);
        packet.extend([0, 1, 0, 2, 0, 9, 0, 0, number]);
        let sum = checksum::fold(checksum::sum(&packet[..20]));
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
        packet
    }

    #[test]
    fn a_hop_is_undone_with_its_checksum() {
        for ttl in [1, 63, 254] {
            let mut packet = udp(ttl, 1);
            undo_hop(&mut packet);
            assert_eq!(packet, udp(ttl + 1, 1));
            assert!(Ip::parse(&packet).is_some());
        }
        let mut v6 = vec![0x60; 40];
        undo_hop(&mut v6);
        assert_eq!((v6[6], v6[7]), (0x60, 0x61));
        for short in [&[][..], &[0x45; 19], &[0x60; 39], &[0; 60]] {
            let mut packet = short.to_vec();
            undo_hop(&mut packet);
            assert_eq!(packet, short);
        }
    }

    fn leaving(sites: &mut Sites, now: Duration) -> Vec<u8> {
        let (mut numbers, mut packet) = (Vec::new(), Vec::new());
        while sites.poll_link(now, &mut packet) {
            numbers.extend(packet.pop());
            packet.clear();
        }
        numbers
    }

    #[test]
    fn sites_wait_for_the_link_and_leave_by_class() {
        let both = site("bulk", "class = \"bulk\"") + &site("voice", "class = \"interactive\"");
        // A packet takes 29 ms.
        let mut sites = sites("rate = \"8000bit/s\"", &both);
        let ms = Duration::from_millis;
        let [bulk, voice] = [0, 1].map(|id| sites.place(SiteId(id)).expect("one"));
        assert_eq!((voice, bulk), (0, 1));
        for number in 0..3 {
            sites.take(ms(0), bulk, LaneKind::ToLink, &mut udp(63, number));
        }
        assert_eq!(leaving(&mut sites, ms(0)), [0]);
        assert_eq!(sites.deadline(), Some(ms(29)));
        sites.take(ms(1), voice, LaneKind::ToLink, &mut udp(63, 9));
        assert!(leaving(&mut sites, ms(28)).is_empty());
        assert_eq!(leaving(&mut sites, ms(29)), [9]);
        assert_eq!(leaving(&mut sites, ms(58)), [1]);
        // Packets for hosts do not wait.
        sites.take(ms(58), bulk, LaneKind::ToHosts, &mut udp(63, 5));
        let (place, packet) = sites.poll_host().expect("a packet");
        assert_eq!((place, packet.bytes), (bulk, udp(64, 5)));
        let facts = sites.facts(ms(58));
        let of_bulk = (facts[1].chain.packets, facts[1].chain.packets_up);
        assert_eq!((facts[1].site.as_str(), of_bulk), ("bulk", (3, 1)));
    }

    #[test]
    fn without_a_rate_nothing_waits() {
        let mut sites = sites("", &site("all", ""));
        for number in 0..100 {
            sites.take(Duration::ZERO, 0, LaneKind::ToLink, &mut udp(63, number));
        }
        assert_eq!(leaving(&mut sites, Duration::ZERO).len(), 100);
        assert_eq!(sites.deadline(), None);
    }
}
