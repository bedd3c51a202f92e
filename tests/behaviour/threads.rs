//! A hub with several boats, whose tunnels share one thread or several.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
    sync::mpsc,
    thread,
    time::Duration,
};

use parking_lot::Mutex;

use pepd_tests::{
    bed::Family,
    echo::EchoServer,
    objects::{self, ObjectServer},
    outcome::Ended,
    payload::{Payload, receive},
    pep::Pep,
    serve::Server,
    tunnel::{End, TunnelBed},
    wait::{PATIENCE, wait_until},
};

use crate::{
    custody::{self, HOLD, MB, MIB},
    support::echo_once,
    survive::{crash, upgrade},
    tunnel::{LINK, PORT, SITE, STATED},
};

const BOATS: [End; 2] = [End::Boat, End::SecondBoat];

/// A hub and two boats.
struct Fleet<'a> {
    bed: &'a TunnelBed,
    hub: Pep,
    boats: Vec<Pep>,
    _echo: EchoServer,
}

impl<'a> Fleet<'a> {
    /// Starts a hub with so many tunnel threads, and both boats; `peer` is in the section of each
    /// peer.
    fn start(bed: &'a TunnelBed, threads: usize, peer: &str) -> Self {
        Self::start_with(bed, threads, peer, "")
    }

    /// Starts them with more keys of the hub.
    fn start_with(bed: &'a TunnelBed, threads: usize, peer: &str, more: &str) -> Self {
        let fleet = Self {
            bed,
            hub: bed.start(End::Hub, &Self::hub(bed, threads, peer, more)),
            boats: Vec::from(BOATS.map(|end| bed.start(end, &bed.config(end, STATED, peer, SITE)))),
            _echo: EchoServer::start(bed.host("server").listen(bed.server_at(Family::V4, PORT))),
        };
        fleet.wait_for_sessions();
        fleet
    }

    fn hub(bed: &TunnelBed, threads: usize, peer: &str, more: &str) -> String {
        let second = bed.peer(End::Hub, End::SecondBoat);
        let limits = format!("[limits]\ntunnel_threads = {threads}\n");
        bed.config(
            End::Hub,
            STATED,
            peer,
            &format!("{second}{peer}\n{limits}{more}"),
        )
    }

    fn wait_for_sessions(&self) {
        self.hub.wait_counter("tunnel_peers_up", |peers| peers == 2);
        for boat in &self.boats {
            boat.wait_counter("tunnel_peers_up", |peers| peers == 1);
        }
    }

    /// Opens a flow of each boat's client.
    fn flows(&self) -> [TcpStream; 2] {
        ["client", "client2"].map(|client| {
            let server = self.bed.server_at(Family::V4, PORT);
            let stream = self.bed.host(client).connect(server);
            let mut stream = stream.expect("pepd answers");
            stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
            echo_once(&mut stream, client.as_bytes());
            stream
        })
    }

    fn threads(&self) -> usize {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.hub.id())).expect("it runs");
        let name = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("comm")).ok();
        let names = tasks.filter_map(|task| name(task.ok()?));
        names.filter(|name| name.starts_with("tunnels")).count()
    }

    fn stop(self) {
        for pep in self.boats.into_iter().chain([self.hub]) {
            pep.stop();
        }
    }
}

/// Each boat's flows reach the server by the hub's one port, and a boat that dies ends only its own
/// flows.
#[test]
fn a_hub_serves_several_boats() {
    for threads in [1, 2] {
        for carrier in ["udp", "tcp"] {
            let bed = TunnelBed::with_two_boats(LINK);
            let peer = format!("carrier = \"{carrier}\"");
            let mut fleet = Fleet::start(&bed, threads, &peer);
            assert_eq!(fleet.threads(), threads);
            let mut streams = fleet.flows();
            assert_eq!(fleet.hub.counter("tunnel_flows_far"), 2);
            let by_tcp = if carrier == "tcp" { 2 } else { 0 };
            let hub = &fleet.hub;
            hub.wait_counter("tunnel_peers_by_tcp", |peers| peers == by_tcp);
            hub.wait_counter("tunnel_tcp_connections", |open| open == by_tcp);
            assert_eq!(hub.counter("tunnel_tcp_unauthenticated"), 0);
            fleet.boats.remove(0).kill();
            assert_eq!(Ended::from_stream(&streams[0]), Ended::RESET);
            echo_once(&mut streams[1], b"still there");
            drop(streams);
            for pep in fleet.boats.iter_mut().chain([&mut fleet.hub]) {
                pep.assert_healthy();
            }
        }
    }
}

/// A boat falls silent in the middle of many downloads. What the hub then holds of them leaves a
/// part of memory to downloads of another boat, also by another thread.
#[test]
fn downloads_that_a_silent_peer_leaves_unacknowledged_leave_memory_to_others() {
    const MEMORY: u64 = 64 * MIB;
    for threads in [1, 2] {
        let bed = TunnelBed::with_two_boats(LINK);
        let limits = format!("memory = {MEMORY}\nflows = 400\n");
        let mut fleet = Fleet::start_with(&bed, threads, "", &limits);
        let to = bed.server_at(Family::V4, PORT + 1);
        let _objects = ObjectServer::start(bed.host("server").listen(to));
        let ask = |client, number| {
            let stream = bed.host(client).connect(to);
            let mut stream = stream.expect("the server listens");
            objects::get(&mut stream, number, 1 << 30).expect("connected");
            stream
        };
        let honest: Vec<_> = (0..8).map(|number| ask("client2", number)).collect();
        let silent: Vec<_> = (0..60).map(|number| ask("client", number)).collect();
        let open = honest.len() + silent.len();
        fleet
            .hub
            .wait_counter("tunnel_flows_far", |far| far == open as u64);
        bed.cut_link();
        let mut last = 0;
        wait_until("the hub to take no more", || {
            thread::sleep(Duration::from_millis(1100));
            let held = fleet.hub.counter("custody_memory_bytes");
            std::mem::replace(&mut last, held) == held && held >= MEMORY / 4
        });
        assert!(last <= MEMORY / 2, "{last}");
        // Now the other boat's downloads are held as well.
        fleet.boats.remove(1).kill();
        fleet
            .hub
            .wait_counter("custody_memory_bytes", |held| held >= last + MEMORY / 16);
        let held = fleet.hub.counter("custody_memory_bytes");
        println!("{threads} threads: {last} bytes of one boat, {held} of both");
        fleet.hub.assert_healthy();
    }
}

/// Flows of all threads outlive the process, whatever the number of threads before and after.
#[test]
fn flows_survive_a_change_of_the_number_of_threads() {
    for carrier in ["udp", "tcp"] {
        let peer = format!("carrier = \"{carrier}\"\n");
        let bed = TunnelBed::with_two_boats(LINK);
        let fleet = Fleet::start(&bed, 2, &peer);
        survives_changes(&bed, fleet, &peer);
    }
}

fn survives_changes(bed: &TunnelBed, fleet: Fleet<'_>, peer: &str) {
    let mut streams = fleet.flows();
    for threads in [1, 2] {
        let changed = Fleet::hub(bed, threads, peer, "");
        std::fs::write(fleet.hub.path("pepd.toml"), changed).expect("a directory");
        for replace in [upgrade, crash] {
            replace(&fleet.hub);
            assert_eq!(fleet.threads(), threads);
            for stream in &mut streams {
                echo_once(stream, b"goes on");
            }
        }
    }
    assert_eq!(fleet.hub.counter("flows_lost_at_restart"), 0);
    drop(streams);
    fleet.stop();
}

/// Peers whose UDP is blocked go on by TCP on their threads, and return to UDP.
#[test]
fn boats_of_all_threads_change_their_carrier() {
    let bed = TunnelBed::with_two_boats(LINK);
    let fleet = Fleet::start(&bed, 2, "");
    let mut streams = fleet.flows();
    for (blocked, by_tcp) in [(true, 2), (false, 0)] {
        if blocked {
            bed.block_udp();
        } else {
            bed.unblock_udp();
        }
        let hub = &fleet.hub;
        hub.wait_counter("tunnel_peers_by_tcp", |peers| peers == by_tcp);
        for stream in &mut streams {
            echo_once(stream, b"goes on");
        }
    }
    drop(streams);
    fleet.stop();
}

/// Bytes for a boat whose link is down are on the hub's disk, and outlive the process with another
/// number of threads. The other boat's flows go on meanwhile.
#[test]
fn bytes_on_disk_survive_a_change_of_the_number_of_threads() {
    const LEN: u64 = 16 * MB;
    let bed = TunnelBed::with_two_boats(custody::LINK);
    let directory = tempfile::tempdir().expect("a temporary directory can be made");
    let keys = format!(
        "[custody]\nfolder = \"{}\"\nmemory = \"4MiB\"\ndisk = \"64MiB\"\n",
        directory.path().display()
    );
    let fleet = Fleet::start_with(&bed, 2, HOLD, &keys);
    let listener = bed
        .host("server")
        .listen(bed.server_at(Family::V4, PORT + 1));
    let (go, gone) = mpsc::channel();
    let gone = Mutex::new(gone);
    let _server = Server::start(listener, move |mut stream, _| {
        stream.write_all(b"begin").expect("connected");
        gone.lock().recv().expect("the test goes on");
        Payload::new(1, LEN).send(&mut stream).expect("connected");
    });
    let mut others = fleet.flows();
    let client = bed
        .host("client")
        .connect(bed.server_at(Family::V4, PORT + 1));
    let mut client = client.expect("pepd answers");
    client.set_read_timeout(Some(PATIENCE)).expect("a socket");
    let mut begin = [0; 5];
    client.read_exact(&mut begin).expect("connected");
    bed.cut_link();
    let hub = &fleet.hub;
    hub.log()
        .expect("link to the peer down: its flows' bytes go into custody");
    go.send(()).expect("the server waits");
    hub.wait_counter("custody_disk_bytes", |bytes| bytes >= 4 * MIB);
    for threads in [1, 2] {
        let changed = Fleet::hub(&bed, threads, HOLD, &keys);
        std::fs::write(hub.path("pepd.toml"), changed).expect("a directory");
        upgrade(hub);
        assert_eq!(fleet.threads(), threads);
        echo_once(&mut others[1], b"goes on");
    }
    bed.restore_link();
    let received = receive(&mut client).expect("a payload");
    assert_eq!(received, (LEN, Payload::new(1, LEN).sum()));
    let counters = hub.counters();
    assert_eq!(counters["flows_lost_at_restart"], 0, "{counters:?}");
    drop((others, client));
    for counter in ["custody_memory_bytes", "custody_disk_bytes"] {
        hub.wait_counter(counter, |bytes| bytes == 0);
    }
    fleet.stop();
}

/// Forged datagrams move strangers' connections from thread to thread, and take nothing from peers.
#[test]
fn strangers_whose_connections_move_are_closed_and_counted() {
    const STRANGERS: u64 = 40;
    let bed = TunnelBed::with_two_boats(LINK);
    let fleet = Fleet::start(&bed, 2, "");
    let mut streams = fleet.flows();
    let strangers = (0..STRANGERS).map(|number| {
        let mut stream = bed.host("boat").connect(bed.hub_at()).expect("a listener");
        // DATA for the first thread, for the second one, and half of one for the second.
        let data = |thread: u8| [&[0, 40, 5, 0, thread][..], &[7; 37][..]].concat();
        let bytes = match number % 3 {
            0 => data(0),
            1 => [data(1), data(0), data(1)].concat(),
            _ => [&data(1)[..], &data(1)[..20]].concat(),
        };
        // The hub may have closed the connection already.
        let _ = stream.write_all(&bytes);
        stream
    });
    let strangers: Vec<_> = strangers.collect();
    for stream in &mut streams {
        echo_once(stream, b"undisturbed");
    }
    drop(strangers);
    let hub = &fleet.hub;
    hub.wait_counter("tunnel_tcp_unauthenticated", |closed| closed == STRANGERS);
    hub.wait_counter("tunnel_tcp_connections", |open| open == 0);
    drop(streams);
    fleet.stop();
}
