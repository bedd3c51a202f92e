//! `pepd capture`: the packets of one flow as a file.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use pepd_tests::{
    bed::Family, host::Host, pep::Pep, pep_binary::pepd, tunnel::TunnelBed, wait::wait_until,
};
use winkemu::netns::spawn;

use crate::{
    custody::Directory,
    support::echo_once,
    trace::{SPLIT_PORT, client_of, connect_split, echo_on, numbers, start},
    tunnel::{LINK, PORT, connect},
};

/// The payload to search for in files.
const OURS: &[u8] = b"these bytes are of the flow that is captured";
const OTHERS: &[u8] = b"and these are of another one, beside the one";

/// Returns `pepd capture` into this file.
fn command_into(host: &Host, pep: &Pep, flow: &str, file: &Path) -> Command {
    let mut command = host.command(pepd().to_str().expect("a path"));
    command.arg("capture").arg(flow).arg("--out").arg(file);
    command.arg("--socket").arg(pep.path("admin.sock"));
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Returns `pepd capture` into a file beside the configuration.
fn command(host: &Host, pep: &Pep, flow: &str, words: &[&str]) -> (Command, PathBuf) {
    let file = pep.path("flow.pcapng");
    let mut command = command_into(host, pep, flow, &file);
    command.args(words);
    (command, file)
}

/// Starts a capture and waits until it sees packets.
fn begin(host: &Host, pep: &Pep, flow: &str, words: &[&str]) -> (Child, PathBuf) {
    let (mut command, file) = command(host, pep, flow, words);
    let _ = fs::remove_file(&file);
    let child = spawn(&mut command).expect("it starts");
    wait_until("the capture to begin", || file.exists());
    (child, file)
}

/// Returns exit code, standard output and standard error.
fn end(child: Child) -> (Option<i32>, String, String) {
    let output = child.wait_with_output().expect("it ends");
    let text = |bytes| String::from_utf8(bytes).expect("text");
    (
        output.status.code(),
        text(output.stdout),
        text(output.stderr),
    )
}

/// Returns tcpdump's line for each packet in a file.
fn packets(host: &Host, file: &Path) -> Vec<String> {
    let listed = host.run("tcpdump", &["-nr", file.to_str().expect("a path")]);
    listed.lines().map(str::to_owned).collect()
}

fn count(file: &Path, part: &[u8]) -> usize {
    let bytes = fs::read(file).expect("a file");
    bytes
        .windows(part.len())
        .filter(|found| *found == part)
        .count()
}

#[test]
fn both_connections_of_a_flow_are_in_the_file_and_nothing_else() {
    let bed = TunnelBed::new(LINK);
    let running = start(&bed);
    let _echo = echo_on(&bed, SPLIT_PORT);
    let mut stream = connect_split(&bed);
    echo_once(&mut stream, b"before");
    let number = numbers(&running).remove(0);
    let mut other = connect_split(&bed);
    let boat = bed.host("boat");
    let (child, file) = begin(&boat, &running.boat, &number, &[]);
    for (stream, bytes) in [(&mut stream, OURS), (&mut other, OTHERS)] {
        echo_once(stream, bytes);
    }
    let client = client_of(&stream);
    drop(stream);
    let (code, out, complaints) = end(child);
    assert_eq!((code, complaints.as_str()), (Some(0), ""), "{out}");
    assert!(
        out.ends_with("dropped by the kernel: 0; the flow has ended: closed\n"),
        "{out}"
    );
    let packets = packets(&boat, &file);
    assert!(
        out.contains(&format!(": {} packets (", packets.len())),
        "{out}"
    );
    let port = client.rsplit_once(':').expect("a port").1;
    let is_ours =
        |line: &String| line.contains(&format!(".{port} ")) || line.contains(&format!(".{port}:"));
    assert!(packets.iter().all(is_ours), "{packets:?}");
    // To pepd and to the server, and in return.
    assert_eq!(
        (count(&file, OURS), count(&file, OTHERS)),
        (4, 0),
        "{packets:?}"
    );
    let fins = packets.iter().filter(|line| line.contains("Flags [F"));
    assert!(fins.count() >= 4, "{packets:?}");
    // On two interfaces, both of which are named.
    let (_, interfaces) = out.split_once(" packets (").expect("interfaces");
    let (interfaces, _) = interfaces.split_once(')').expect("interfaces");
    let names: Vec<_> = interfaces
        .split(", ")
        .filter_map(|by| by.split(' ').next())
        .collect();
    assert_eq!(names.len(), 2, "{out}");
    assert!(
        names.iter().all(|name| count(&file, name.as_bytes()) == 1),
        "{out}"
    );
    assert_eq!(
        count(&file, format!("flow {number}: {client} -> ").as_bytes()),
        1
    );
    let mode = fs::metadata(&file).expect("a file").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    drop(other);
    running.stop();
}

#[test]
fn limits_end_a_capture_and_what_cannot_be_is_said() {
    let bed = TunnelBed::new(LINK);
    let running = start(&bed);
    let _echoes = [PORT, SPLIT_PORT].map(|port| echo_on(&bed, port));
    let mut stream = connect_split(&bed);
    echo_once(&mut stream, OURS);
    let client = client_of(&stream);
    let boat = bed.host("boat");
    let capture = |words: &[&str], stream: &mut _| {
        let (mut child, file) = begin(&boat, &running.boat, &client, words);
        // Until it has captured enough.
        while child.try_wait().expect("a child").is_none() {
            echo_once(stream, &[7; 3000]);
            thread::sleep(Duration::from_millis(5));
        }
        let (code, out, complaints) = end(child);
        assert_eq!((code, complaints.as_str()), (Some(0), ""), "{out}");
        (out, file)
    };
    let (out, file) = capture(&["--packets", "3"], &mut stream);
    assert!(
        out.contains(": 3 packets") && out.contains("packet limit reached"),
        "{out}"
    );
    assert_eq!(packets(&boat, &file).len(), 3);
    let (out, file) = capture(&["--size", "20kB"], &mut stream);
    assert!(out.contains("size limit reached"), "{out}");
    let length = fs::metadata(&file).expect("a file").len();
    assert!((5000..=20_000).contains(&length), "{length}");
    assert!(!packets(&boat, &file).is_empty());
    let (out, file) = capture(&["--for", "300ms", "--snaplen", "60"], &mut stream);
    assert!(out.contains("time limit reached"), "{out}");
    let lines = packets(&boat, &file);
    assert!(
        lines.iter().any(|line| line.contains("length ")),
        "{lines:?}"
    );
    assert_eq!(count(&file, &[7; 20]), 0, "only headers");

    // An existing file stays unchanged without --force.
    let before = fs::read(&file).expect("a file");
    let run = |mut command: Command| end(spawn(&mut command).expect("it starts"));
    let (again, _) = command(&boat, &running.boat, &client, &["--packets", "1"]);
    let (code, _, complaints) = run(again);
    assert!(
        code == Some(1) && complaints.contains("exists already"),
        "{complaints}"
    );
    assert_eq!(fs::read(&file).expect("a file"), before);
    let (forced, _) = command(
        &boat,
        &running.boat,
        &client,
        &["--force", "--for", "100ms"],
    );
    let (code, out, _) = run(forced);
    assert_eq!(code, Some(0), "{out}");
    assert_ne!(fs::read(&file).expect("a file"), before);
    fs::remove_file(&file).expect("a file");

    let (unknown, _) = command(&boat, &running.boat, "99999-0000", &[]);
    let (code, _, complaints) = run(unknown);
    assert!(
        code == Some(1) && complaints.contains("no open flow"),
        "{complaints}"
    );
    let (plain, _) = command(&boat, &running.boat, &client, &[]);
    let mut without = boat.command("setpriv");
    without.args(["--bounding-set=-net_raw", "--inh-caps=-net_raw"]);
    without.arg(plain.get_program()).args(plain.get_args());
    without.stdout(Stdio::piped()).stderr(Stdio::piped());
    let (code, _, complaints) = run(without);
    assert!(
        code == Some(1) && complaints.contains("takes CAP_NET_RAW"),
        "{complaints}"
    );
    assert!(!file.exists(), "the failed capture leaves no file");

    let mut in_tunnel = connect(&bed, Family::V4);
    echo_once(&mut in_tunnel, b"a flow");
    let (child, file) = begin(&boat, &running.boat, &client_of(&in_tunnel), &[]);
    echo_once(&mut in_tunnel, OURS);
    drop(in_tunnel);
    let (code, out, complaints) = end(child);
    assert_eq!(code, Some(0), "{out}");
    assert!(complaints.contains("in a tunnel with hub"), "{complaints}");
    assert_eq!(count(&file, OURS), 2, "from the client and back");
    drop(stream);
    running.stop_after_errors();
}

/// Capture files and output are complete however the capture ends.
#[test]
fn an_interrupted_capture_or_one_on_a_full_disk_is_complete_so_far() {
    let bed = TunnelBed::new(LINK);
    let running = start(&bed);
    let _echo = echo_on(&bed, SPLIT_PORT);
    let mut stream = connect_split(&bed);
    echo_once(&mut stream, b"before");
    let client = client_of(&stream);
    let boat = bed.host("boat");
    // `nohup` makes this one ignored, for its children too.
    let status = fs::read_to_string("/proc/self/status").expect("a /proc");
    let mut lines = status.lines();
    let ignored = lines.find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = u64::from_str_radix(ignored.expect("a mask").trim(), 16).expect("a mask");
    let is_heard = |signal: &Signal| ignored & 1 << (*signal as i32 - 1) == 0;
    let signals = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP];
    for signal in signals.into_iter().filter(is_heard) {
        let (child, file) = begin(&boat, &running.boat, &client, &[]);
        echo_once(&mut stream, OURS);
        wait_until("it is in the file", || count(&file, OURS) == 4);
        kill(Pid::from_raw(child.id() as i32), signal).expect("it runs");
        let (code, out, _) = end(child);
        assert_eq!(code, Some(0), "{signal}: {out}");
        let seen = packets(&boat, &file).len();
        let said = format!(": {seen} packets (");
        assert!(
            out.contains(&said) && out.ends_with("; interrupted\n"),
            "{out}"
        );
    }
    // Without output.
    let (mut child, file) = begin(&boat, &running.boat, &client, &[]);
    echo_once(&mut stream, OURS);
    wait_until("it is in the file", || count(&file, OURS) == 4);
    child.kill().expect("it runs");
    child.wait().expect("it was killed");
    assert!(packets(&boat, &file).len() >= 4);

    let full = Directory::new(&bed, Some(64 << 10));
    let file = full.path().join("flow.pcapng");
    let into = |file: &Path| {
        let mut command = command_into(&boat, &running.boat, &client, file);
        spawn(&mut command).expect("it starts")
    };
    let mut child = into(&file);
    while child.try_wait().expect("a child").is_none() {
        echo_once(&mut stream, &[7; 3000]);
    }
    let (code, _, complaints) = end(child);
    let seen = packets(&boat, &file).len();
    let said =
        format!("flow.pcapng: cannot write more than {seen} packets: No space left on device");
    assert!(
        code == Some(1) && complaints.contains(&said),
        "{complaints}"
    );
    assert!(
        seen > 4 && complaints.contains("Free some space"),
        "{complaints}"
    );

    let child = into(Path::new("-"));
    wait_until("it sees packets", || {
        echo_once(&mut stream, OURS);
        let path = format!("/proc/{}/net/packet", child.id());
        fs::read_to_string(path).is_ok_and(|sockets| sockets.lines().count() > 1)
    });
    echo_once(&mut stream, OURS);
    drop(stream);
    let output = child.wait_with_output().expect("it ends");
    let complaints = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        complaints.contains("-: ") && complaints.contains(" packets ("),
        "{complaints}"
    );
    let file = running.boat.path("streamed.pcapng");
    fs::write(&file, &output.stdout).expect("a file");
    assert!(count(&file, OURS) >= 4);
    assert!(packets(&boat, &file).len() > 4);
    running.stop();
}
