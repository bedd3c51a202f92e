//! Hubs called by name: moved by DNS, with several addresses, or temporarily without one.

use std::{
    cell::Cell,
    fs,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::PathBuf,
    thread::sleep,
    time::{Duration, Instant},
};

use pepd_tests::{
    bed::Family,
    echo::EchoServer,
    pep::Pep,
    tunnel::{self, End, TunnelBed},
    wait::wait_until,
};
use tempfile::TempDir;

use crate::{
    support::echo_once,
    tunnel::{LINK, PORT, SITE, STATED, connect},
};

const NAME: &str = "hub.example";
/// A second address of the hub on the link.
const OTHER: Ipv4Addr = Ipv4Addr::new(10, 77, 1, 99);
const ADMIN: &str = "[admin]\nsocket = \"admin.sock\"\n";

/// A boat, a hub with two IPv4 addresses and one of IPv6, and the answers of the boat's resolver.
struct Names {
    bed: TunnelBed,
    files: TempDir,
    /// True if a black hole was installed before the hub started, which restores the rules it
    /// found.
    holed: Cell<bool>,
}

impl Names {
    fn new() -> Self {
        let bed = TunnelBed::new(LINK);
        bed.host("hub").ip(&format!("addr add {OTHER}/24 dev boat"));
        let files = tempfile::tempdir().expect("a temporary directory can be made");
        // There is no name server: only names in the hosts file have addresses.
        fs::write(files.path().join("resolv.conf"), "nameserver 127.0.0.1\n").expect("writable");
        let holed = Cell::new(false);
        let names = Self { bed, files, holed };
        names.say(&[]);
        names
    }

    fn file(&self, name: &str) -> PathBuf {
        self.files.path().join(name)
    }

    /// Sets the addresses of the hub's name.
    fn say(&self, addresses: &[IpAddr]) {
        let line = |address: &IpAddr| format!("{address} {NAME}\n");
        let text: String = addresses.iter().map(line).collect();
        // In place: the file is mounted over the machine's.
        fs::write(self.file("hosts"), text).expect("writable");
    }

    fn v4(&self) -> IpAddr {
        self.bed.hub_at().ip()
    }

    fn v6(&self) -> IpAddr {
        let shown = self
            .bed
            .host("hub")
            .ip("-6 -o addr show dev boat scope global");
        let words = shown.split_whitespace();
        let address = words.skip_while(|word| *word != "inet6").nth(1);
        let address = address.and_then(|net| net.split('/').next()).expect("one");
        address.parse().expect("an address")
    }

    /// Drops all packets on the link from or to an address of the hub.
    fn black_hole(&self, address: IpAddr) {
        let ip = if address.is_ipv4() { "ip" } else { "ip6" };
        self.bed.host("hub").nft(&format!(
            "table inet hole {{
                chain from {{ type filter hook prerouting priority -400; {ip} daddr {address} drop; }}
                chain to {{ type filter hook output priority -400; {ip} saddr {address} drop; }}
            }}"
        ));
    }

    /// Ends [`black_hole`](Self::black_hole), and both pepds.
    fn stop(&self, boat: Pep, hub: Pep) {
        if self.has_hole() && !self.holed.get() {
            self.bed.host("hub").nft("delete table inet hole");
        }
        for pep in [boat, hub] {
            pep.wait_idle();
            pep.stop();
        }
    }

    fn has_hole(&self) -> bool {
        let tables = self.bed.host("hub").run("nft", &["list", "tables"]);
        tables.contains("hole")
    }

    fn start_hub(&self) -> Pep {
        self.holed.set(self.has_hole());
        let config = self.bed.config(End::Hub, STATED, "", "");
        self.bed.start(End::Hub, &config)
    }

    /// Starts a boat that calls the hub by its name.
    fn start_boat(&self, peer: &str) -> Pep {
        let config = self
            .bed
            .config(End::Boat, STATED, peer, &format!("{SITE}{ADMIN}"));
        let (address, name) = (
            self.bed.hub_at().to_string(),
            format!("{NAME}:{}", tunnel::PORT),
        );
        assert!(config.contains(&address));
        let config = config.replace(&address, &name);
        let mount = format!(
            "mount --bind {} /etc/hosts && mount --bind {} /etc/resolv.conf && exec \"$0\" \"$@\"",
            self.file("hosts").display(),
            self.file("resolv.conf").display(),
        );
        Pep::start_by(&self.bed.host("boat"), &config, |command| {
            let mut words = vec![command.get_program().to_owned()];
            words.extend(command.get_args().map(ToOwned::to_owned));
            let mut wrapped = self.bed.host("boat").command("unshare");
            wrapped.args(["--mount", "sh", "-c", &mount]).args(words);
            wrapped
        })
    }
}

/// Returns the peer from `pepd status`.
fn peer(boat: &Pep) -> serde_json::Value {
    let status = boat.ask(&["status", "--json"]);
    let status: serde_json::Value = serde_json::from_str(&status).expect("JSON");
    status["peers"][0].clone()
}

/// Waits until the boat has a session with the hub at that address. Returns the time.
fn time_until_at(boat: &Pep, address: IpAddr) -> Duration {
    let began = Instant::now();
    let at = SocketAddr::new(address, tunnel::PORT).to_string();
    wait_until(&format!("the hub to be reached at {at}"), || {
        let peer = peer(boat);
        peer["session"]["path"] == "up" && peer["remote"] == at
    });
    began.elapsed()
}

/// Returns the number of log lines with these words.
fn count(boat: &Pep, words: &str) -> usize {
    let events = boat.log().events_since(0);
    let logged = events
        .iter()
        .filter(|event| event.message().contains(words));
    logged.count()
}

const BEGUN: &str = "session established";
const ELSEWHERE: &str = "resolves to other addresses";
const NO_ADDRESS: &str = "peer endpoint does not resolve";

/// Returns the addresses in the order in which pepd has called them.
fn endpoint_in_use(boat: &Pep) -> String {
    let event = boat.log().expect("pepd calls these addresses");
    event.text("addresses")
}

#[test]
fn a_hub_that_dns_has_moved_is_followed_while_a_session_exists() {
    let names = Names::new();
    names.say(&[names.v4()]);
    let (hub, boat) = (names.start_hub(), names.start_boat(""));
    time_until_at(&boat, names.v4());
    let server = names.bed.host("server");
    let _echo = EchoServer::start(server.listen(names.bed.server_at(Family::V4, PORT)));
    let mut stream = connect(&names.bed, Family::V4);
    echo_once(&mut stream, b"before");
    // While the session works, pepd does not resolve the name again.
    names.say(&[OTHER.into()]);
    sleep(Duration::from_secs(8));
    assert_eq!(peer(&boat)["remote"], names.bed.hub_at().to_string());
    assert_eq!(count(&boat, ELSEWHERE), 0);
    names.black_hole(names.v4());
    let moved = Instant::now();
    echo_once(&mut stream, b"after");
    let echoed = moved.elapsed();
    time_until_at(&boat, OTHER.into());
    eprintln!("moved by DNS: bytes arrive after {echoed:?}");
    // Three seconds of silence and half a second until pepd asks. More if the hub has the larger
    // key: it waits for answers to its own calls before it answers others.
    assert!(echoed < Duration::from_secs(8), "{echoed:?}");
    assert_eq!(
        [BEGUN, ELSEWHERE, NO_ADDRESS].map(|words| count(&boat, words)),
        [1, 1, 0]
    );
    let addresses = &peer(&boat)["addresses"];
    assert_eq!(
        *addresses,
        serde_json::json!([format!("{OTHER}:{}", tunnel::PORT)])
    );
    let text = boat.ask(&["status"]);
    let place = format!("at {OTHER}:{0} ({NAME}:{0}), last heard ", tunnel::PORT);
    assert!(text.contains(&place), "{text}");
    drop(stream);
    names.stop(boat, hub);
}

/// The machine that has the name now knows nothing of the session.
#[test]
fn a_hub_that_restarts_at_another_address_is_found() {
    let names = Names::new();
    names.say(&[names.v4()]);
    let (mut hub, boat) = (names.start_hub(), names.start_boat(""));
    time_until_at(&boat, names.v4());
    names.black_hole(names.v4());
    // Its close message does not arrive.
    assert_eq!(hub.terminate(), 0);
    let hub = names.start_hub();
    sleep(Duration::from_secs(10));
    assert_eq!(count(&boat, BEGUN), 1, "it is nowhere");
    names.say(&[OTHER.into()]);
    let time = time_until_at(&boat, OTHER.into());
    eprintln!("moved by DNS after 10 s of silence: a session after {time:?}");
    // During silence pepd resolves the name at once, after 10 s, 30 s and 70 s.
    assert!(time < Duration::from_secs(26), "{time:?}");
    assert_eq!([BEGUN, ELSEWHERE].map(|words| count(&boat, words)), [2, 1]);
    names.stop(boat, hub);
}

#[test]
fn where_the_first_of_two_addresses_is_dead_the_second_is_used() {
    for carrier in ["auto", "udp", "tcp"] {
        let names = Names::new();
        names.say(&[OTHER.into(), names.v4()]);
        // The resolver puts this one first, as it shares more bits with the boat's own.
        names.black_hole(names.v4());
        let hub = names.start_hub();
        let boat = names.start_boat(&format!("carrier = \"{carrier}\""));
        let time = time_until_at(&boat, OTHER.into());
        eprintln!("first address dead, {carrier}: a session {time:?} after pepd is ready");
        assert!(
            endpoint_in_use(&boat).starts_with(&names.v4().to_string()),
            "{}",
            endpoint_in_use(&boat)
        );
        assert!(time < Duration::from_secs(4), "{carrier}: {time:?}");
        let carrier = if carrier == "tcp" { "tcp" } else { "udp" };
        assert_eq!(peer(&boat)["session"]["carrier"], carrier);
        names.stop(boat, hub);
    }
}

#[test]
fn where_ipv6_is_a_black_hole_ipv4_is_used() {
    for carrier in ["auto", "tcp"] {
        let names = Names::new();
        names.say(&[names.v6(), names.v4()]);
        names.black_hole(names.v6());
        let hub = names.start_hub();
        let boat = names.start_boat(&format!("carrier = \"{carrier}\""));
        let time = time_until_at(&boat, names.v4());
        eprintln!("IPv6 black, {carrier}: a session {time:?} after pepd is ready");
        assert!(
            endpoint_in_use(&boat).starts_with('['),
            "{}",
            endpoint_in_use(&boat)
        );
        assert!(time < Duration::from_secs(4), "{carrier}: {time:?}");
        names.stop(boat, hub);
    }
}

#[test]
fn a_session_by_ipv6_goes_on_by_ipv4_when_ipv6_goes_black() {
    let names = Names::new();
    names.say(&[names.v6(), names.v4()]);
    let (hub, boat) = (names.start_hub(), names.start_boat(""));
    time_until_at(&boat, names.v6());
    let server = names.bed.host("server");
    let _echo = EchoServer::start(server.listen(names.bed.server_at(Family::V4, PORT)));
    let mut stream = connect(&names.bed, Family::V4);
    echo_once(&mut stream, b"by IPv6");
    names.black_hole(names.v6());
    let began = Instant::now();
    echo_once(&mut stream, b"by IPv4");
    let time = began.elapsed();
    eprintln!("IPv6 goes black: bytes arrive by IPv4 after {time:?}");
    assert!(time < Duration::from_secs(8), "{time:?}");
    time_until_at(&boat, names.v4());
    assert_eq!([BEGUN, ELSEWHERE].map(|words| count(&boat, words)), [1, 0]);
    drop(stream);
    names.stop(boat, hub);
}

#[test]
fn a_name_that_has_no_address_at_the_start_is_asked_for_until_it_has() {
    let names = Names::new();
    let (hub, boat) = (names.start_hub(), names.start_boat(""));
    let logged = boat.log().expect(NO_ADDRESS);
    assert!(
        logged.message().contains("`peer.hub.endpoint`"),
        "{}",
        logged.message()
    );
    sleep(Duration::from_secs(11));
    let text = boat.ask(&["status"]);
    assert!(
        text.contains(&format!("at {NAME}:{}, never heard", tunnel::PORT)),
        "{text}"
    );
    names.say(&[names.v4()]);
    let time = time_until_at(&boat, names.v4());
    eprintln!("name without address: a session {time:?} after it has one");
    assert!(time < Duration::from_secs(8), "{time:?}");
    let logged = [NO_ADDRESS, "peer endpoint resolves again", ELSEWHERE];
    assert_eq!(logged.map(|words| count(&boat, words)), [1, 1, 0]);
    names.stop(boat, hub);
}

#[test]
fn a_name_that_loses_its_addresses_ends_no_session() {
    let names = Names::new();
    names.say(&[names.v4()]);
    let (hub, boat) = (names.start_hub(), names.start_boat(""));
    time_until_at(&boat, names.v4());
    names.say(&[]);
    names.bed.cut_link();
    wait_until("the silence is seen", || {
        peer(&boat)["session"]["path"] != "up"
    });
    sleep(Duration::from_secs(12));
    names.bed.restore_link();
    let time = time_until_at(&boat, names.v4());
    eprintln!("outage of a name without address: session after {time:?}");
    assert!(time < Duration::from_secs(4), "{time:?}");
    // The log of a short outage is the same as without a name.
    assert_eq!([BEGUN, NO_ADDRESS].map(|words| count(&boat, words)), [1, 0]);
    names.stop(boat, hub);
}
