//! A day of flows and faults in real time, after which nothing may have grown.
//!
//! Two boats and a hub. Each boat has a site of each of the modes `tunnel`, `split` and `packet`.
//! In each cycle all kinds of flows run beside one event; then only idle flows are open, and
//! [`watch`] takes its samples. Events replace the worker of the first boat only: the memory of the
//! second boat and of the hub is that of one process each.
//!
//! ```text
//!   client --- boat ~~~~ link ~~~~ hub -- server
//!   client2 -- boat2 ~~~ link ~~~~~+
//! ```
//!
//! `SOAK_SECONDS` is the duration in which the load of a day passes, 40 by default. 1800 s have 180
//! cycles: 14,000 flows, and each event 30 times. Peers take new keys each ten minutes, which no
//! configuration changes: only longer runs have that. The test prints a table of all series, and
//! fails if one grows by more than noise.

mod load;
mod slope;
mod watch;

use std::{
    env, fs, thread,
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use pepd_tests::{
    bed::Family,
    host::Host,
    pep::Pep,
    tunnel::{End, TunnelBed},
    wait::PATIENCE,
};

use load::Load;
use watch::{Watched, assert_nothing_grows, sample};

const LINK: &str = "rate=20Mbit/s,delay=20ms,queue=100kB";
const STATED: &str = "rate = \"20Mbit/s\"\nrtt = \"40ms\"";
/// Machines that run pepd.
const MACHINES: [&str; 3] = ["boat", "boat2", "hub"];
/// Duration of outages, and of other changes that are undone.
const WHILE: Duration = Duration::from_secs(2);
/// Maximum seconds of a cycle that has nothing more to do.
const CYCLE: f64 = 10.0;
/// Second address of the second boat.
const SECOND: &str = "198.51.100.7";
/// Sites of boats, for the ports of [`load`]. Reloads change the first one.
const SITES: &str = "[[site]]\nname = \"mail\"\nmode = \"split\"\nmatch = { dport = 25 }\n\
    [[site]]\nname = \"split\"\nmode = \"split\"\nmatch = { dport = [7001, 7011, 7021] }\n\
    [[site]]\nname = \"packet\"\nmode = \"packet\"\npeer = \"hub\"\n\
    match = { protocol = \"tcp\", dport = [7002, 7012, 7022] }\n\
    [[site]]\nname = \"tunnel\"\nmode = \"tunnel\"\npeer = \"hub\"\n";
/// Tracking of all connections, as by a firewall.
const TRACKING: &str = "table inet tracking {
    chain in { type filter hook prerouting priority 0; ct state established accept; }
}";
const OUTAGE: &str = "
    chain from { type filter hook prerouting priority -400; iifname hub drop; }
    chain to { type filter hook postrouting priority 400; oifname hub drop; }";
const VPN: &str = "
    chain in { type filter hook prerouting priority mangle; meta mark 0x99 counter; }";

/// Makes the event of a cycle happen, a while after its flows have begun.
fn happen(bed: &TunnelBed, boat: &Pep, cycle: usize) {
    thread::sleep(WHILE / 8);
    match cycle % 6 {
        0 => for_a_while(bed, &MACHINES[..2], OUTAGE, |_, _| {}),
        1 => reload(boat),
        2 => roam(bed),
        3 => for_a_while(bed, &MACHINES, VPN, change_rules),
        4 => drop(MACHINES.map(|name| bed.host(name).run("conntrack", &["-F"]))),
        _ => crash(boat),
    }
}

/// Adds a table of these chains for a while, and makes another change, on these machines.
fn for_a_while(bed: &TunnelBed, machines: &[&str], chains: &str, change: fn(&Host, &str)) {
    let hosts = machines.iter().map(|name| bed.host(name));
    for host in hosts.clone() {
        change(&host, "add");
        host.nft(&format!("table inet soak {{ {chains}\n}}"));
    }
    thread::sleep(WHILE);
    for host in hosts {
        change(&host, "delete");
        host.nft("delete table inet soak");
    }
}

/// Changes rules as a VPN does: without a number, so that they come first.
fn change_rules(host: &Host, change: &str) {
    for family in ["-4", "-6"] {
        host.ip(&format!("{family} rule {change} fwmark 0x99 lookup 999"));
    }
}

fn reload(boat: &Pep) {
    let path = boat.path("pepd.toml");
    let config = fs::read_to_string(&path).expect("a file");
    let [old, new] = match config.contains("dport = 25") {
        true => ["dport = 25", "dport = 26"],
        false => ["dport = 26", "dport = 25"],
    };
    fs::write(path, config.replace(old, new)).expect("writable");
    let answer = boat.ask(&["reload"]);
    assert!(answer.contains("site.mail.match.dport"), "{answer}");
}

/// Gives the second boat another address for a while, as by another uplink.
fn roam(bed: &TunnelBed) {
    let (boat, hub) = (bed.host("boat2"), bed.host("hub"));
    let at = bed.hub_for(End::SecondBoat).ip();
    let [first, _] = bed.addresses_toward("boat2", "hub");
    boat.ip(&format!("address add {SECOND}/32 dev hub"));
    hub.ip(&format!("route add {SECOND}/32 via {first} dev boat2"));
    boat.ip(&format!("route add {at}/32 dev hub src {SECOND}"));
    thread::sleep(WHILE);
    boat.ip(&format!("route delete {at}/32"));
    hub.ip(&format!("route delete {SECOND}/32"));
    boat.ip(&format!("address delete {SECOND}/32 dev hub"));
}

fn crash(boat: &Pep) {
    let (worker, position) = (boat.id(), boat.log().position());
    let id = Pid::from_raw(worker.try_into().expect("a process id"));
    kill(id, Signal::SIGKILL).expect("it lives");
    let ready = boat.log().find(position, PATIENCE, |event| {
        event.message().contains("pepd is ready")
    });
    assert!(ready.is_some(), "no process after {worker}");
}

fn start(bed: &TunnelBed, end: End, more: &str) -> Pep {
    let more = format!("[admin]\nsocket = \"admin.sock\"\n{more}");
    let config = bed.config(end, STATED, "", &more);
    bed.start(end, &config.replace("= \"debug\"", "= \"info\""))
}

fn start_hub(bed: &TunnelBed) -> Pep {
    // For answers to packets of mode `packet`.
    let sites = [("boat", "client"), ("boat2", "client2")].map(|(boat, client)| {
        let client = bed.address(client, Family::V4);
        format!(
            "[[site]]\nname = \"{boat}\"\nmode = \"packet\"\npeer = \"{boat}\"\n\
             match = {{ protocol = \"tcp\", dst = \"{client}\", sport = [7002, 7012, 7022] }}\n"
        )
    });
    let second = bed.peer(End::Hub, End::SecondBoat);
    start(bed, End::Hub, &(second + &sites.concat()))
}

#[test]
#[ignore = "takes half an hour to tell growth from noise: .ci/night soak"]
fn nothing_grows_in_a_day_of_flows_and_faults() {
    let seconds = env::var("SOAK_SECONDS").map_or(40.0, |text| {
        let seconds = text.parse();
        seconds.expect("SOAK_SECONDS is a number of seconds, such as 1800")
    });
    println!("a day's load, {:.0} times as fast", 86_400.0 / seconds);
    let bed = TunnelBed::with_two_boats(LINK);
    let machines = MACHINES.iter();
    machines.for_each(|name| bed.host(name).nft(TRACKING));
    let hub = start_hub(&bed);
    let [boat, mut second] = [End::Boat, End::SecondBoat].map(|end| start(&bed, end, SITES));
    hub.wait_counter("tunnel_peers_up", |peers| peers == 2);
    let load = Load::start(&bed);
    let mut all = [
        Watched::new(&bed, "boat", &boat, true),
        Watched::new(&bed, "boat2", &second, false),
        Watched::new(&bed, "hub", &hub, false),
    ];
    let began = Instant::now();
    let elapsed = || began.elapsed().as_secs_f64();
    for cycle in 0.. {
        let at = elapsed();
        if at >= seconds {
            break;
        }
        load.run(|| happen(&bed, &boat, cycle));
        sample(&mut all, elapsed());
        let left = at + CYCLE.min(seconds / 12.0) - elapsed();
        thread::sleep(Duration::from_secs_f64(left.max(0.0)));
    }
    drop(load);
    assert_nothing_grows(&all);
    second.assert_healthy();
    for pep in [boat, second, hub] {
        pep.wait_idle();
        assert!(!pep.log().text().contains("panicked at"), "pepd panicked");
        pep.stop();
    }
}
