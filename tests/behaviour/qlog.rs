//! `pepd trace --qlog`: flows and tunnels as qlog.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Output, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
};

use pepd_tests::{bed::Family, pep::Pep, pep_binary::pepd, tunnel::TunnelBed, wait::wait_until};
use serde_json::Value;
use tempfile::TempDir;
use winkemu::netns::spawn;

use crate::{
    support::echo_once,
    survive::crash,
    trace::{SPLIT_PORT, connect_split, echo_on, numbers, start},
    tunnel::{LINK, PORT, Running},
};

/// A running `pepd trace --qlog` at the boat.
struct Qlog {
    child: Child,
    directory: TempDir,
}

impl Qlog {
    fn start(bed: &TunnelBed, pep: &Pep, words: &[&str]) -> Self {
        let directory = TempDir::new().expect("a directory");
        let boat = bed.host("boat");
        let mut command = boat.command(pepd().to_str().expect("a path"));
        command.arg("trace").args(words).arg("--qlog");
        command.arg(directory.path().join("out.sqlog"));
        command.arg("--socket").arg(pep.path("admin.sock"));
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = spawn(&mut command).expect("it starts");
        Self { child, directory }
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("out.sqlog")
    }

    /// Waits until the file has `count` events of this name.
    fn wait_for(&self, name: &str, count: usize) {
        let quoted = format!("\"name\":\"{name}\"");
        wait_until(name, || {
            let text = fs::read_to_string(self.path()).unwrap_or_default();
            text.matches(&quoted).count() >= count
        });
    }

    /// Waits for its end; returns the records after the header, and the output.
    fn end(self) -> (Vec<Value>, Output) {
        let path = self.path();
        let output = self.child.wait_with_output().expect("it ends");
        assert!(output.status.success(), "{output:?}");
        (records(&path), output)
    }
}

fn records(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).expect("a file");
    let mut records = text.split('\u{1e}').skip(1).map(|record| {
        let record = record.strip_suffix('\n').expect("a whole record");
        serde_json::from_str::<Value>(record).expect("JSON")
    });
    let header = records.next().expect("a header");
    assert_eq!(header["qlog_format"], "JSON-SEQ", "{header}");
    let records: Vec<_> = records.collect();
    assert!(
        records.iter().all(|record| record["name"].is_string()),
        "one header"
    );
    records
}

fn named<'a>(records: &'a [Value], name: &str) -> Vec<&'a Value> {
    let is_named = |record: &&Value| record["name"] == name;
    records.iter().filter(is_named).collect()
}

fn bytes_of(events: &[&Value], direction: &str) -> u64 {
    let of_direction = events
        .iter()
        .filter(|event| event["data"]["direction"] == direction);
    of_direction
        .filter_map(|event| event["data"]["bytes"].as_u64())
        .sum()
}

#[test]
fn a_relay_is_written_step_by_step_through_a_crash() {
    let bed = TunnelBed::new(LINK);
    let running = start(&bed);
    let _echo = echo_on(&bed, SPLIT_PORT);
    let mut stream = connect_split(&bed);
    echo_once(&mut stream, &[1; 1000]);
    let number = numbers(&running).remove(0);
    let qlog = Qlog::start(&bed, &running.boat, &[&number]);
    qlog.wait_for("pepd:flow", 1);
    // The flow notices in its next turn.
    echo_once(&mut stream, &[2]);
    echo_once(&mut stream, &[3; 50_000]);
    // A crash takes along events that its process has not passed on.
    wait_until("the relay's events are in the file", || {
        let text = fs::read_to_string(qlog.path()).unwrap_or_default();
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        let parsed = whole
            .split('\u{1e}')
            .filter_map(|record| serde_json::from_str(record).ok());
        let records: Vec<Value> = parsed.collect();
        bytes_of(&named(&records, "relay:sent"), "down") >= 50_000
    });
    crash(&running.boat);
    qlog.wait_for("pepd:flow", 2);
    echo_once(&mut stream, &[4]);
    echo_once(&mut stream, &[5; 2000]);
    drop(stream);
    let (records, output) = qlog.end();
    for direction in ["up", "down"] {
        for step in ["relay:received", "relay:sent"] {
            let bytes = bytes_of(&named(&records, step), direction);
            assert!(bytes >= 52_000, "{step} {direction}: {bytes}");
        }
    }
    // The link's delay is 20 ms in each direction; the kernel's RTT of the leg is that of the
    // connection.
    let metrics = named(&records, "recovery:metrics_updated");
    let rtt = metrics[0]["data"]["smoothed_rtt"].as_f64();
    assert!(rtt >= Some(40.0), "{}", metrics[0]);
    let ended = named(&records, "pepd:flow_ended");
    assert_eq!(ended[0]["data"]["reason"], "closed");
    let times: Vec<_> = records
        .iter()
        .map(|record| record["time"].as_f64().expect("a time"))
        .collect();
    // A relay's events follow one turn later; the next process continues with the same clock.
    assert!(
        times.windows(2).all(|pair| pair[1] > pair[0] - 1000.0),
        "{times:?}"
    );
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("the flow has ended: closed"), "{said}");
    running.stop_after_errors();
}

/// Returns the bytes of a stream in packets of that name, by the end of the last one.
fn stream_end(records: &[Value], name: &str, stream: u64) -> u64 {
    let events = named(records, name);
    let frames = events
        .iter()
        .flat_map(|event| event["data"]["frames"].as_array().expect("frames"));
    let ours = frames.filter(|frame| {
        frame["frame_type"] == "stream" && frame["stream_id"].as_u64() == Some(stream)
    });
    let ends = ours.map(|frame| {
        frame["offset"].as_u64().expect("an offset") + frame["length"].as_u64().expect("a length")
    });
    ends.max().unwrap_or(0)
}

#[test]
fn a_tunnel_is_written_packet_by_packet() {
    let bed = TunnelBed::new(LINK);
    let running = start(&bed);
    let _echo = echo_on(&bed, PORT);
    let mut stream = bed
        .host("client")
        .connect(bed.server_at(Family::V4, PORT))
        .expect("pepd answers");
    echo_once(&mut stream, &[1; 1000]);
    let number = numbers(&running).remove(0);
    let qlog = Qlog::start(&bed, &running.boat, &[&number]);
    let tunnel = Qlog::start(&bed, &running.boat, &["--peer", "hub", "--for", "2s"]);
    qlog.wait_for("pepd:flow_updated", 1);
    qlog.wait_for("transport:packet_sent", 1);
    tunnel.wait_for("transport:packet_sent", 1);
    echo_once(&mut stream, &[2; 50_000]);
    // A tunnel that is busy with other flows does not keep the trace of this one.
    let mut other = bed
        .host("client")
        .connect(bed.server_at(Family::V4, PORT))
        .expect("pepd answers");
    let is_over = Arc::new(AtomicBool::new(false));
    let talker = thread::spawn({
        let is_over = Arc::clone(&is_over);
        move || {
            while !is_over.load(Relaxed) {
                echo_once(&mut other, &[3; 100]);
            }
        }
    });
    drop(stream);
    let (records, _) = qlog.end();
    is_over.store(true, Relaxed);
    talker.join().expect("its echo comes");
    let matching = named(&records, "pepd:flow_stream");
    let id = matching[0]["data"]["stream_id"].as_u64().expect("a number");
    for name in ["transport:packet_sent", "transport:packet_received"] {
        assert_eq!(stream_end(&records, name, id), 51_000, "{name}");
    }
    assert!(!named(&records, "recovery:metrics_updated").is_empty());
    let (of_tunnel, output) = tunnel.end();
    assert_eq!(stream_end(&of_tunnel, "transport:packet_sent", id), 51_000);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("time limit reached (--for)"), "{said}");
    running.stop();
}

#[test]
fn files_that_are_there_and_unknown_peers_are_refused_and_leave_no_file() {
    let bed = TunnelBed::new(LINK);
    let running = start(&bed);
    let refused = |running: &Running, words: &[&str]| {
        let qlog = Qlog::start(&bed, &running.boat, words);
        let path = qlog.path();
        let output = qlog.child.wait_with_output().expect("it ends");
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(!path.exists(), "an empty file");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let matching = refused(&running, &["--peer", "ship"]);
    assert!(
        matching.contains("no peer `ship`; peers: hub"),
        "{matching}"
    );
    let matching = refused(&running, &["99999-0000"]);
    assert!(matching.contains("no open flow `99999-0000`"), "{matching}");
    running.stop();
}
