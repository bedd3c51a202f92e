//! Data accepted from hosts during outages, and delivered after them.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::{Shutdown, TcpStream},
    os::unix::fs::PermissionsExt as _,
    path::Path,
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use pepd_tests::{
    bed::Family,
    payload::{Payload, receive},
    pep::Pep,
    serve::Server,
    tunnel::TunnelBed,
    wait::{PATIENCE, wait_until},
};

use crate::{
    survive::crash,
    tunnel::{PORT, Running, SITE, connect},
};

pub const MB: u64 = 1_000_000;
pub const MIB: u64 = 1 << 20;
/// A fast link, so that the time is that of the outage.
pub const LINK: &str = "rate=200Mbit/s,delay=10ms,queue=1MB";

/// A directory for custody; with a size, on a file system of that size.
pub struct Directory {
    directory: tempfile::TempDir,
    mounted: bool,
}

impl Directory {
    pub fn new(bed: &TunnelBed, size: Option<u64>) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory can be made");
        if let Some(size) = size {
            let path = directory.path().to_str().expect("text");
            let options = format!("size={size},mode=0700");
            let words = ["-t", "tmpfs", "-o", &options, "none", path];
            bed.host("boat").run("mount", &words);
        }
        let mounted = size.is_some();
        Self { directory, mounted }
    }

    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    pub fn keys(&self, keys: &str) -> String {
        format!(
            "{SITE}[custody]\nfolder = \"{}\"\n{keys}\n",
            self.path().display()
        )
    }

    pub fn bytes(&self) -> u64 {
        use std::os::unix::fs::MetadataExt as _;
        let files = fs::read_dir(self.path()).expect("a directory");
        let files = files.filter_map(|file| file.ok()?.metadata().ok());
        files.map(|file| file.blocks() * 512).sum()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        if self.mounted {
            let _ = std::process::Command::new("umount")
                .args(["-l", self.path().to_str().unwrap_or_default()])
                .status();
        }
    }
}

pub const HOLD: &str = "on_peer_loss = \"hold\"\nlost_after = \"60s\"\n";

/// Starts a server that receives a payload of that length, and then answers.
pub fn sink(bed: &TunnelBed, len: u64) -> Server {
    sink_at(bed, len, PORT)
}

/// Starts such a server at another port.
pub fn sink_at(bed: &TunnelBed, len: u64, port: u16) -> Server {
    let listener = bed.host("server").listen(bed.server_at(Family::V4, port));
    Server::start(listener, move |mut stream, _| {
        let (received, sum) = receive(&mut stream).expect("a payload");
        assert_eq!((received, sum), (len, Payload::new(1, len).sum()));
        stream.write_all(b"done").expect("connected");
    })
}

/// Writes the payload, and closes for writing.
pub fn upload(stream: &mut TcpStream, len: u64) {
    // If pepd accepts no more, the test fails instead of waiting for ever.
    let limited = stream.set_write_timeout(Some(PATIENCE));
    limited.expect("a socket");
    Payload::new(1, len).send(stream).expect("connected");
    stream.shutdown(Shutdown::Write).expect("connected");
}

pub fn assert_done(stream: &mut TcpStream) {
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("in order");
    assert_eq!(answer, b"done");
}

pub fn wait_down(running: &Running) {
    running
        .boat
        .log()
        .expect("link to the peer down: its flows' bytes go into custody");
}

pub fn assert_nothing_held(running: &Running, directory: &Directory) {
    for counter in ["custody_memory_bytes", "custody_disk_bytes"] {
        running.boat.wait_counter(counter, |bytes| bytes == 0);
    }
    wait_until("the directory is empty", || directory.bytes() <= 4096);
    assert_eq!(running.boat.counter("custody_flows_damaged"), 0);
}

#[test]
fn a_whole_upload_is_accepted_while_the_link_is_down_and_delivered_later() {
    const LEN: u64 = 24 * MB;
    let bed = TunnelBed::new(LINK);
    let directory = Directory::new(&bed, None);
    let running = Running::start(
        &bed,
        HOLD,
        &directory.keys("memory = \"4MiB\"\ndisk = \"64MiB\"\n[admin]\nsocket = \"admin.sock\""),
    );
    let _server = sink(&bed, LEN);
    bed.cut_link();
    wait_down(&running);
    let mut stream = connect(&bed, Family::V4);
    upload(&mut stream, LEN);
    // The rest is in the kernel's buffers.
    let boat = &running.boat;
    let disk = boat.wait_counter("custody_disk_bytes", |bytes| bytes >= 8 * MIB);
    assert!(disk <= 64 * MIB && directory.bytes() <= 64 * MIB, "{disk}");
    assert!(boat.counter("custody_memory_bytes") <= 4 * MIB);
    let shown = running.boat.ask(&["custody", "--json"]);
    let shown: serde_json::Value = serde_json::from_str(&shown).expect("JSON");
    let (site, flow) = (&shown["sites"][0], &shown["flows"][0]);
    let disk = site["disk"].as_u64().expect("bytes");
    assert!(disk >= 8 * MIB && flow["disk"][0] == disk, "{shown}");
    assert!(
        site["memory"].as_u64().expect("bytes") <= 4 * MIB,
        "{shown}"
    );
    // Data on the disk is encrypted.
    let beginning = &mut [0; 64];
    Payload::new(1, 64).read_exact(beginning).expect("bytes");
    for file in fs::read_dir(directory.path()).expect("a directory") {
        let bytes = fs::read(file.expect("a file").path()).expect("readable");
        assert!(
            !bytes
                .windows(64)
                .step_by(8)
                .any(|window| window == *beginning)
        );
    }
    bed.restore_link();
    assert_done(&mut stream);
    drop(stream);
    assert_nothing_held(&running, &directory);
    running.assert_in_tunnel(1);
    running.stop();
}

#[test]
fn a_disk_that_is_full_keeps_hosts_waiting_and_loses_nothing() {
    const LEN: u64 = 24 * MB;
    let bed = TunnelBed::new(LINK);
    let directory = Directory::new(&bed, Some(4 * MIB));
    let running = Running::start(
        &bed,
        HOLD,
        &directory.keys("memory = \"4MiB\"\ndisk = \"64MiB\""),
    );
    let _server = sink(&bed, LEN);
    bed.cut_link();
    wait_down(&running);
    let mut stream = connect(&bed, Family::V4);
    thread::scope(|scope| {
        let mut sender = stream.try_clone().expect("a descriptor");
        let sending = scope.spawn(move || upload(&mut sender, LEN));
        let boat = &running.boat;
        boat.wait_counter("custody_disk_errors", |errors| errors >= 1);
        boat.log().expect("custody on disk: cannot write");
        assert!(!sending.is_finished(), "the host waits");
        bed.restore_link();
        sending.join().expect("sent");
    });
    assert_done(&mut stream);
    drop(stream);
    assert_nothing_held(&running, &directory);
    // One line, not one for each chunk.
    let errors = running.boat.log().events_since(0);
    let errors = errors.iter().filter(|event| event.level() == "ERROR");
    assert_eq!(errors.count(), 1);
    running.stop_after_errors();
}

#[test]
fn without_a_disk_hosts_wait_once_memory_is_full() {
    const LEN: u64 = 24 * MB;
    let bed = TunnelBed::new(LINK);
    let site = format!("{SITE}[custody]\nmemory = \"4MiB\"\n");
    let running = Running::start(&bed, HOLD, &site);
    let _server = sink(&bed, LEN);
    bed.cut_link();
    wait_down(&running);
    let mut stream = connect(&bed, Family::V4);
    thread::scope(|scope| {
        let mut sender = stream.try_clone().expect("a descriptor");
        let sending = scope.spawn(move || upload(&mut sender, LEN));
        let boat = &running.boat;
        boat.wait_counter("custody_memory_bytes", |bytes| bytes >= MIB / 2);
        bed.restore_link();
        sending.join().expect("sent");
    });
    assert_done(&mut stream);
    running.stop();
}

#[test]
fn what_does_not_get_on_expires_at_both_ends() {
    let bed = TunnelBed::new(LINK);
    let site = format!("{SITE}hold = \"2s\"\n");
    let running = Running::start(&bed, HOLD, &site);
    let listener = bed.host("server").listen(bed.server_at(Family::V4, PORT));
    let _server = Server::start(listener, |mut stream, _| {
        assert!(receive(&mut stream).is_err(), "it is reset");
    });
    let mut stream = connect(&bed, Family::V4);
    stream.write_all(b"hello").expect("connected");
    running.hub.wait_counter("up_bytes", |bytes| bytes == 5);
    bed.cut_link();
    wait_down(&running);
    upload(&mut stream, MB);
    let end = stream.read(&mut [0]);
    assert!(end.is_err(), "{end:?}");
    let expired = running.boat.wait_flow_end(|end| end.reason == "expired");
    assert!(expired.up_bytes == 5, "{expired:?}");
    assert_eq!(running.boat.counter("ended_expired"), 1);
    bed.restore_link();
    running.hub.wait_flow_end(|end| end.reason != "closed");
    running.stop();
}

#[test]
fn unusable_directories_are_an_error_at_the_start() {
    let bed = TunnelBed::new(LINK);
    let directory = Directory::new(&bed, None);
    let open = fs::Permissions::from_mode(0o777);
    fs::set_permissions(directory.path(), open).expect("ours");
    let config = bed.config(pepd_tests::tunnel::End::Boat, "", "", &directory.keys(""));
    let mut pep = Pep::spawn(&bed.host("boat"), &config, |command| command);
    assert!(!pep.wait().success());
    let said = pep.log().text();
    assert!(
        said.contains("custody.directory") && said.contains("chmod 700"),
        "{said}"
    );
}

/// Checks that neither data nor an end arrives for a while.
pub fn assert_waits(stream: &mut TcpStream) {
    let brief = Some(Duration::from_millis(300));
    stream.set_read_timeout(brief).expect("a socket");
    let nothing = stream.read(&mut [0]);
    assert!(nothing.is_err(), "{nothing:?}");
    stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
}

#[test]
fn a_client_that_ends_is_answered_when_the_server_has_everything() {
    let bed = TunnelBed::new(LINK);
    let running = Running::start(&bed, HOLD, SITE);
    let _server = sink(&bed, MB / 2);
    bed.cut_link();
    wait_down(&running);
    let mut stream = connect(&bed, Family::V4);
    upload(&mut stream, MB / 2);
    assert_waits(&mut stream);
    bed.restore_link();
    assert_done(&mut stream);
    drop(stream);
    running.stop();
}

#[test]
fn a_client_that_ends_is_answered_at_once_where_that_is_wanted() {
    let bed = TunnelBed::new(LINK);
    let site = format!("{SITE}close = \"early\"\n");
    let running = Running::start(&bed, HOLD, &site);
    let _server = sink(&bed, MB / 2);
    bed.cut_link();
    wait_down(&running);
    let mut stream = connect(&bed, Family::V4);
    upload(&mut stream, MB / 2);
    let end = stream.read(&mut [0]);
    assert_eq!(end.expect("an end in order"), 0);
    drop(stream);
    bed.restore_link();
    // The server's answer, which no client receives.
    let late = running
        .boat
        .wait_counter("custody_late_bytes", |bytes| bytes > 0);
    assert_eq!(late, 4);
    for pep in [&running.boat, &running.hub] {
        let end = pep.wait_flow_end(|end| end.up_bytes == MB / 2);
        assert_eq!(end.reason, "closed", "{end:?}");
    }
    running.stop();
}

/// The next process knows that pepd already closed toward the client: before the answer arrived,
/// and after a part of it.
#[test]
fn a_client_that_was_answered_at_once_is_so_for_the_next_process() {
    let bed = TunnelBed::new(LINK);
    let client = bed.host("client");
    client.sysctl("net.ipv4.tcp_fin_timeout", "1");
    let site = format!("{SITE}close = \"early\"\n");
    let running = Running::start(&bed, HOLD, &site);
    let listener = bed.host("server").listen(bed.server_at(Family::V4, PORT));
    let (go_on, may_go_on) = mpsc::channel();
    let may_go_on = Mutex::new(may_go_on);
    let _server = Server::start(listener, move |mut stream, _| {
        let (received, sum) = receive(&mut stream).expect("a payload");
        assert_eq!((received, sum), (MB / 2, Payload::new(1, MB / 2).sum()));
        stream.write_all(b"half").expect("connected");
        let go_on = may_go_on.lock().recv();
        go_on.expect("the test goes on");
        stream.write_all(b"done").expect("connected");
    });
    bed.cut_link();
    wait_down(&running);
    let mut stream = connect(&bed, Family::V4);
    upload(&mut stream, MB / 2);
    assert_eq!(stream.read(&mut [0]).expect("an end in order"), 0);
    drop(stream);
    crash(&running.boat);
    bed.restore_link();
    let late = |bytes| {
        running
            .boat
            .wait_counter("custody_late_bytes", |late| late == bytes)
    };
    late(4);
    crash(&running.boat);
    go_on.send(()).expect("the server waits");
    late(4);
    for pep in [&running.boat, &running.hub] {
        let end = pep.wait_flow_end(|end| end.down_bytes <= 8);
        assert_eq!(end.reason, "closed", "{end:?}");
    }
    assert_eq!(running.boat.counter("flows_lost_at_restart"), 0);
    running.stop_after_errors();
}

/// The client's kernel forgets the connection after a while, and answers probes by RST.
#[test]
fn data_of_a_client_that_closed_long_ago_is_delivered() {
    let bed = TunnelBed::new(LINK);
    let client = bed.host("client");
    client.sysctl("net.ipv4.tcp_fin_timeout", "1");
    let keepalive = "[timeouts]\nkeepalive = { idle = \"1s\", interval = \"1s\", count = 1 }\n";
    let running = Running::start(&bed, HOLD, &format!("{SITE}{keepalive}"));
    let _server = sink(&bed, MB / 2);
    bed.cut_link();
    wait_down(&running);
    let mut stream = connect(&bed, Family::V4);
    upload(&mut stream, MB / 2);
    drop(stream);
    wait_until("the client's kernel to forget it", || {
        client.run("ss", &["-Htan"]).is_empty()
    });
    wait_until("the leg of the boat to be reset", || {
        let legs = bed
            .host("boat")
            .run("ss", &["-Htan", "state", "close-wait"]);
        legs.is_empty()
    });
    bed.restore_link();
    let end = running.hub.wait_flow_end(|_| true);
    assert_eq!(end.up_bytes, MB / 2, "{end:?}");
    running.stop_after_errors();
}

/// The figures of docs/custody.md: 200 MB from a LAN while the link is down for two minutes.
///
///     PEPD_BIN=target/release/pepd cargo test -p pepd-tests --test behaviour two_hundred \
///         -- --ignored --nocapture
#[test]
#[ignore = "takes seven minutes"]
fn two_hundred_megabytes_during_an_outage_of_two_minutes() {
    const LEN: u64 = 200 * MB;
    println!("disk: taken from the host, disk and memory held, peak of pepd, time to deliver");
    for (name, disk) in [
        ("free", None),
        ("90 % full", Some(104 * MIB)),
        ("none", Some(0)),
    ] {
        let bed = TunnelBed::new(LINK);
        let directory = Directory::new(&bed, disk.filter(|disk| *disk > 0));
        let limits = "[limits]\nmemory = \"64MiB\"\nflows = 100\n";
        let site = match disk {
            Some(0) => format!("{SITE}{limits}"),
            _ => format!("{}{limits}", directory.keys("disk = \"1GiB\"")),
        };
        let running = Running::start(&bed, HOLD, &site);
        let _server = sink(&bed, LEN);
        bed.cut_link();
        let began = Instant::now();
        wait_down(&running);
        let mut stream = connect(&bed, Family::V4);
        stream
            .set_read_timeout(Some(10 * PATIENCE))
            .expect("a socket");
        thread::scope(|scope| {
            let mut sender = stream.try_clone().expect("a descriptor");
            let sending = scope.spawn(move || {
                let began = Instant::now();
                upload(&mut sender, LEN);
                println!("{name}: the host was done after {:?}", began.elapsed());
            });
            thread::sleep(Duration::from_secs(120).saturating_sub(began.elapsed()));
            let boat = &running.boat;
            let held =
                ["custody_disk_bytes", "custody_memory_bytes"].map(|name| boat.counter(name));
            let done = sending.is_finished();
            println!(
                "{name}: done {done}, held on disk and in memory {held:?}, directory {}",
                directory.bytes()
            );
            bed.restore_link();
            let mended = Instant::now();
            sending.join().expect("sent");
            assert_done(&mut stream);
            println!("{name}: delivered {:?} after the outage", mended.elapsed());
            let peak = boat.peak_resident_bytes();
            println!("{name}: peak {} MiB", peak / MIB);
            assert!(peak <= (64 + 32) * MIB, "{peak}");
        });
    }
}

#[test]
fn uploads_that_can_wait_are_delivered_in_the_order_in_which_they_were_given() {
    deliver_in_order(|_| {});
}

#[test]
fn in_another_process_uploads_are_as_old_as_before() {
    deliver_in_order(crash);
}

/// With alternating chunks the shortest upload would complete first.
fn deliver_in_order(meanwhile: impl FnOnce(&Pep)) {
    const SIZES: [u64; 3] = [3 * MB, 2 * MB, MB];
    let bed = TunnelBed::new(LINK);
    let directory = Directory::new(&bed, None);
    let keys = directory.keys("memory = \"16MiB\"\ndisk = \"64MiB\"");
    let site = keys.replacen(SITE, &format!("{SITE}class = \"delay_tolerant\"\n"), 1);
    let running = Running::start(&bed, HOLD, &site);
    let (whole, order) = mpsc::channel();
    let whole = Mutex::new(whole);
    let listener = bed.host("server").listen(bed.server_at(Family::V4, PORT));
    let _server = Server::start(listener, move |mut stream, _| {
        let (received, sum) = receive(&mut stream).expect("a payload");
        assert_eq!(sum, Payload::new(1, received).sum());
        let whole = whole.lock();
        whole.send(received).expect("the test waits");
        drop(whole);
        stream.write_all(b"done").expect("connected");
    });
    bed.cut_link();
    wait_down(&running);
    let mut held = 0;
    let mut streams = SIZES.map(|len| {
        let mut stream = connect(&bed, Family::V4);
        upload(&mut stream, len);
        held += len;
        // The first upload is accepted before the second begins.
        let taken = || {
            ["custody_memory_bytes", "custody_disk_bytes"]
                .map(|counter| running.boat.counter(counter))
                .iter()
                .sum::<u64>()
                + MB / 2
        };
        wait_until("it is held", || taken() >= held);
        stream
    });
    meanwhile(&running.boat);
    bed.restore_link();
    let order: Vec<_> = SIZES
        .iter()
        .map(|_| order.recv_timeout(PATIENCE).expect("it is delivered"))
        .collect();
    assert_eq!(order, SIZES);
    streams.iter_mut().for_each(assert_done);
    running.stop_after_errors();
}
