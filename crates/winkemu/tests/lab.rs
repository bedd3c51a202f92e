//! `winkemu lab` from outside: results, exit codes, and what is left after it ends.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::{
    fs,
    os::unix::{fs::PermissionsExt as _, process::CommandExt as _},
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::{Pid, geteuid},
};
use serde_json::Value;
use tempfile::TempDir;

const PATIENCE: Duration = Duration::from_secs(30);

/// A short transfer over a link, and a command over it.
const SHORT: &str = r#"
path = ["client", "router", "link", "server"]
metrics = ["goodput", "seconds"]
parallel = 2
late = "1s"

[link]
rate = "4Mbit/s"
delay = "10ms"

[matrix]
"link.delay" = ["10ms", "30ms"]

[[workload]]
name = "upload"
program = "bulk"
duration = "1s"
interval = "100ms"
family = "ipv6"

[[workload]]
name = "addresses"
program = "command"
command = ["sh", "-c", "echo $SERVER_IPV4"]
"#;

struct Lab {
    directory: TempDir,
}

impl Lab {
    fn new(scenario: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("test.toml"), scenario).unwrap();
        Self { directory }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_winkemu"));
        command.arg("lab").arg("test.toml").args(arguments);
        command
            .current_dir(self.directory.path())
            .stdin(Stdio::null());
        // What it leaves behind would be found here.
        fs::create_dir_all(self.path("tmp")).unwrap();
        command.env("TMPDIR", self.path("tmp"));
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn wait_until(what: &str, mut check: impl FnMut() -> bool) {
    let start = Instant::now();
    while !check() {
        assert!(start.elapsed() < PATIENCE, "{what}");
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_scenario_ends_in_a_table_a_file_and_plots() {
    let lab = Lab::new(SHORT);
    let output = lab.run(&["--json", "out/all.json", "--plots", "plots"]);
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{stdout}\n{stderr}");
    assert!(
        stdout.contains("upload") && stdout.contains("30ms"),
        "{stdout}"
    );
    assert!(
        stderr.contains("[4/4]"),
        "lines where there is no terminal: {stderr}"
    );
    let json: Value = serde_json::from_slice(&fs::read(lab.path("out/all.json")).unwrap()).unwrap();
    let runs = json["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 4);
    for run in runs {
        assert_eq!(run["outcome"], "good", "{run}");
        let measured = &run["measurements"][0];
        if run["group"] == "addresses" {
            assert_eq!(measured["detail"]["stdout"], "10.77.1.2\n");
            continue;
        }
        // 4 Mbit/s less headers of 72 bytes in 1500, give or take an interval.
        let goodput = measured["goodput_bps"].as_f64().unwrap();
        assert!((3.0e6..4.2e6).contains(&goodput), "{goodput}");
        let first = measured["first_byte_s"].as_f64().unwrap();
        let delay = if run["point"]["link.delay"] == "10ms" {
            0.010
        } else {
            0.030
        };
        assert!(first >= 3.0 * delay && first < 3.0 * delay + 0.3, "{first}");
        assert!(
            run["links"]["link"]["ab"]["delivered"].as_u64().unwrap() > 100,
            "{run}"
        );
    }
    for plot in [
        "test-goodput.svg",
        "test-goodput.png",
        "test-seconds.png",
        "test-upload-over-time.svg",
    ] {
        assert!(lab.path("plots").join(plot).exists(), "{plot}");
    }
    assert_eq!(
        fs::read_dir(lab.path("tmp")).unwrap().count(),
        0,
        "temporary files are gone"
    );
}

/// Two senders on one slow link with a deep queue, one of them paced to a quarter of it.
const TWO: &str = r#"
path = ["client", "router", "link", "server"]
metrics = ["goodput", "share", "utilisation", "queue", "queue_drops", "retransmitted_early"]
late = "1s"

[link]
rate = "4Mbit/s"
delay = "20ms"
queue = "600%bdp"

[matrix]
"link.loss" = ["0%", "0.1%"]

[[variant]]
name = "reno"
node.client.congestion = "reno"

[[workload]]
name = "greedy"
group = "both"
program = "bulk"
duration = "4s"
interval = "500ms"
sample = "100ms"
early = "500ms"

[[workload]]
name = "modest"
group = "both"
program = "bulk"
start = "500ms"
duration = "3500ms"
warmup = "500ms"
pacing = "1Mbit/s"

[[check]]
variant = "reno"
workload = "greedy"
metric = "share"
min = "60%"

[[check]]
variant = "reno"
workload = "modest"
metric = "goodput"
max = "1.1Mbit/s"

[[check]]
variant = "reno"
workload = "greedy"
metric = "queue"
min = "10%bdp"
max = "600%bdp"
at = { "link.loss" = "0%" }
"#;

#[test]
fn senders_are_watched_and_share_and_queue_are_measured() {
    let lab = Lab::new(TWO);
    let output = lab.run(&["--json", "all.json", "--plots", "plots"]);
    let stdout = text(&output.stdout);
    assert_eq!(
        output.status.code(),
        Some(0),
        "{stdout}\n{}",
        text(&output.stderr)
    );
    assert_eq!(stdout.matches("holds ").count(), 5, "{stdout}");
    assert!(stdout.contains("Standing queue, % BDP"), "{stdout}");
    let json: Value = serde_json::from_slice(&fs::read(lab.path("all.json")).unwrap()).unwrap();
    let number = |value: &Value| value.as_f64().unwrap_or_else(|| panic!("{value}"));
    for run in json["runs"].as_array().unwrap() {
        let [greedy, modest] = [&run["measurements"][0], &run["measurements"][1]];
        let shares = number(&greedy["share"]) + number(&modest["share"]);
        assert!((shares - 1.0).abs() < 1e-9, "{shares}");
        let tcp = greedy["detail"]["tcp"].as_array().unwrap();
        // Ten a second, but a busy machine may miss some.
        assert!(tcp.len() >= 10, "{}", tcp.len());
        assert!(number(&tcp[tcp.len() - 1]["snd_cwnd"]) >= 2.0, "{tcp:?}");
        assert!(greedy["retransmitted_early_bytes"].is_u64(), "{greedy}");
        let links = &greedy["link_use"];
        let left = if run["point"]["link.loss"] == "0%" {
            1.0
        } else {
            0.999
        };
        let ceiling = 4e6 * 1448.0 / 1500.0 * left;
        assert!(
            (number(&links["ceiling_bps"]) - ceiling).abs() < 1.0,
            "{links}"
        );
        let queue = &links["queues"][0];
        assert_eq!(
            (&queue["direction"], &queue["bdp_bytes"]),
            (&"ab".into(), &20_000.into())
        );
        assert_eq!(queue["series"].as_array().unwrap().len(), 8, "{queue}");
        let [mean, p50, p95, max] =
            ["mean", "p50", "p95", "max"].map(|key| number(&queue["bytes"][key]));
        assert!(
            mean <= max && p50 <= p95 && p95 <= max && max <= 120_000.0,
            "{queue}"
        );
        assert!(
            (number(&queue["bdp"]["mean"]) - mean / 20_000.0).abs() < 1e-9,
            "{queue}"
        );
        let peak = number(&run["links"]["link"]["ab"]["queue_bytes_peak"]);
        assert!(
            max <= peak && number(&queue["whole_bytes"]["max"]) <= peak,
            "{run}"
        );
    }
    for plot in ["test-queue.svg", "test-share.png", "test-utilisation.svg"] {
        assert!(lab.path("plots").join(plot).exists(), "{plot}");
    }
}

/// Registers eBPF programs where it may; elsewhere it checks the message.
#[test]
fn congestion_controls_of_ours_are_there_while_it_runs_or_it_says_why_not() {
    let second = "[[workload]]\nname = \"upload by a socket\"\nprogram = \"bulk\"\n\
        duration = \"1s\"\ncongestion = \"hybla\"\n";
    let variant = "[[variant]]\nname = \"node\"\nnode.client.congestion = ";
    let lab = Lab::new(&format!(
        "controls = [\"hybla\"]\n{SHORT}{second}{variant}\"hybla\"\n"
    ));
    let output = lab.run(&["--only", "upload", "--only", "10ms", "--json", "all.json"]);
    let stderr = text(&output.stderr);
    if output.status.code() == Some(4) {
        return assert!(stderr.contains("eBPF congestion control"), "{stderr}");
    }
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    let json: Value = serde_json::from_slice(&fs::read(lab.path("all.json")).unwrap()).unwrap();
    let name = &json["controls"]["hybla"];
    assert!(name.is_string(), "{json}");
    let runs = json["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 2, "by its node and by its socket");
    for run in runs {
        assert_eq!(
            run["measurements"][0]["detail"]["congestion"], *name,
            "{run}"
        );
    }
    let available = "/proc/sys/net/ipv4/tcp_available_congestion_control";
    let name = name.as_str().unwrap();
    wait_until("the kernel forgets it", || {
        let names = fs::read_to_string(available).unwrap();
        !names.split_whitespace().any(|known| known == name)
    });
}

#[test]
fn a_list_that_cannot_be_written_is_an_error_unless_nobody_reads_it() {
    let lab = Lab::new(SHORT);
    let list_to = |stdout: Stdio| {
        let mut command = lab.command(&["--list"]);
        let child = command.stdout(stdout).stderr(Stdio::piped()).spawn();
        child.unwrap().wait_with_output().unwrap()
    };
    let full = fs::File::options().write(true).open("/dev/full");
    let output = list_to(full.unwrap().into());
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(
        message.contains("cannot write to standard output"),
        "{message}"
    );
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = list_to(writer.into());
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(output.stderr.is_empty(), "{output:?}");
}

#[test]
fn a_filter_chooses_runs_and_a_list_shows_them() {
    let lab = Lab::new(SHORT);
    let output = lab.run(&["--list", "--only", "30ms"]);
    let expected =
        "direct, upload, link.delay 30ms, seed 1\ndirect, addresses, link.delay 30ms, seed 1\n";
    assert_eq!(text(&output.stdout), expected);
    let output = lab.run(&["--only", "31ms"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("no run of the scenario contains `31ms`"));
}

#[test]
fn a_mistake_is_named_with_file_and_line() {
    let lab = Lab::new(&SHORT.replace("4Mbit/s", "4 parsecs"));
    let output = lab.run(&[]);
    assert_eq!(output.status.code(), Some(2));
    let stderr = text(&output.stderr);
    assert!(
        stderr.contains("test.toml:8: link.rate: `4 parsecs` is not a rate"),
        "{stderr}"
    );
}

#[test]
fn runs_on_a_machine_that_is_too_busy_are_repeated_then_left_out() {
    // No machine is ever this quiet.
    let lab = Lab::new(&SHORT.replace("late = \"1s\"", "late = \"1ns\"\nretries = 1"));
    let output = lab.run(&["--only", "upload", "--only", "10ms", "--json", "all.json"]);
    assert_eq!(output.status.code(), Some(3), "{}", text(&output.stderr));
    assert!(
        text(&output.stdout).contains("1 of 1 runs are left out"),
        "{}",
        text(&output.stdout)
    );
    let json: Value = serde_json::from_slice(&fs::read(lab.path("all.json")).unwrap()).unwrap();
    assert_eq!(
        (&json["runs"][0]["outcome"], &json["runs"][0]["attempt"]),
        (&"late".into(), &2.into())
    );
    assert_eq!(json["summary"], Value::Array(Vec::new()));
}

#[test]
fn a_program_that_fails_and_a_check_that_breaks_are_reported() {
    let lab = Lab::new(&SHORT.replace("echo $SERVER_IPV4", "echo no luck >&2; exit 3"));
    let output = lab.run(&["--only", "addresses"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text(&output.stdout).contains("no luck"),
        "{}",
        text(&output.stdout)
    );
    let check = "[[variant]]\nname = \"a\"\n[[variant]]\nname = \"b\"\n\
        [[check]]\nvariant = \"a\"\nbaseline = \"b\"\nworkload = \"upload\"\nmean_ratio_min = 3.0\n";
    let lab = Lab::new(&format!("{SHORT}{check}"));
    let output = lab.run(&["--only", "upload"]);
    let stdout = text(&output.stdout);
    assert!(
        stdout.contains("BROKEN upload, link.delay 10ms"),
        "{stdout}"
    );
    // Beside tests that keep all processors busy it says that this proves nothing.
    let starved = stdout.contains("proves nothing");
    let code = if starved { 3 } else { 1 };
    assert_eq!(output.status.code(), Some(code), "{stdout}");
}

/// Starts a scenario whose command writes its process id and sleeps; gives both.
fn start_sleeper(lab: &Lab) -> (Child, i32) {
    let child = lab
        .command(&["--only", "addresses", "--only", "10ms"])
        .stderr(Stdio::piped())
        .spawn();
    let file = lab.path("pid");
    let read = || fs::read_to_string(&file).ok()?.trim().parse().ok();
    wait_until("the command starts", || read().is_some());
    (child.unwrap(), read().unwrap())
}

fn sleeper(directory: &Path) -> String {
    let command = format!("echo $$ > {}/pid; exec sleep 300", directory.display());
    SHORT.replace("echo $SERVER_IPV4", &command)
}

fn sleeping_lab() -> Lab {
    let lab = Lab::new(SHORT);
    fs::write(lab.path("test.toml"), sleeper(lab.directory.path())).unwrap();
    lab
}

fn is_gone(pid: i32) -> bool {
    !Path::new("/proc").join(pid.to_string()).exists()
}

#[test]
fn a_signal_ends_everything() {
    for (signal, code) in [(Signal::SIGINT, 130), (Signal::SIGTERM, 143)] {
        let lab = sleeping_lab();
        let (child, pid) = start_sleeper(&lab);
        kill(Pid::from_raw(child.id().try_into().unwrap()), signal).unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(code));
        assert!(text(&output.stderr).contains("nothing is left running"));
        wait_until("the command is killed", || is_gone(pid));
        assert_eq!(
            fs::read_dir(lab.path("tmp")).unwrap().count(),
            0,
            "temporary files are gone"
        );
    }
}

#[test]
fn programs_do_not_outlive_a_kill() {
    let lab = sleeping_lab();
    let (mut child, pid) = start_sleeper(&lab);
    child.kill().unwrap();
    child.wait().unwrap();
    wait_until("the command is killed", || is_gone(pid));
}

/// As root this test becomes somebody else; without user namespaces it checks the message.
#[test]
fn without_root_it_works_or_says_what_is_forbidden() {
    let lab = Lab::new(&format!(
        "path = [\"client\", \"server\"]\n[[workload]]{}",
        {
            let mut workloads = SHORT.split("[[workload]]");
            workloads.nth(1).expect("the upload")
        }
    ));
    let directory = lab.directory.path();
    let binary = directory.join("winkemu");
    fs::copy(env!("CARGO_BIN_EXE_winkemu"), &binary).unwrap();
    for path in [directory.to_owned(), binary.clone()] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o777)).unwrap();
    }
    let mut command = Command::new(&binary);
    command
        .args(["lab", "test.toml", "--only", "upload"])
        .current_dir(directory);
    if geteuid().is_root() {
        const NOBODY: u32 = 65_534;
        command.uid(NOBODY).gid(NOBODY);
    }
    let output = command.output().unwrap();
    let stderr = text(&output.stderr);
    match output.status.code() {
        Some(0) => assert!(text(&output.stdout).contains("upload"), "{stderr}"),
        Some(4) => assert!(
            stderr.contains("user namespaces, which this system refuses")
                || stderr.contains("/dev/net/tun"),
            "{stderr}"
        ),
        code => panic!("{code:?}: {stderr}"),
    }
}

/// A hub with two spokes, one of which was away for a while.
const HUB: &str = r#"
path = ["client1", "one", "hub", "server"]
branches = [["client2", "two", "hub"]]
metrics = ["on_time", "delay_p95", "resumed", "seconds"]
late = "1s"

[links.one]
rate = "4Mbit/s"
delay = "40ms"

[links.two]
rate = "4Mbit/s"
delay = "10ms"
outages = "2s+1s"

[[workload]]
name = "messages"
group = "both"
program = "messages"
client = "client1"
size = "200B"
interval = "20ms"
duration = "2s"
within = "500ms"

[[workload]]
name = "upload"
group = "both"
program = "bulk"
client = "client2"
duration = "8s"
interval = "20ms"

[[workload]]
name = "page"
program = "page"
client = "client2"
objects = 5
size = "20kB"
connections = 2
"#;

#[test]
fn spokes_of_a_hub_have_delays_outages_and_pages_of_their_own() {
    let lab = Lab::new(HUB);
    let output = lab.run(&["--json", "all.json"]);
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{stdout}\n{stderr}");
    let json: Value = serde_json::from_slice(&fs::read(lab.path("all.json")).unwrap()).unwrap();
    let number = |value: &Value| value.as_f64().unwrap_or_else(|| panic!("{value}"));
    let [messages, upload] = [0, 1].map(|index| &json["runs"][0]["measurements"][index]);
    let detail = &messages["detail"];
    assert_eq!(detail["one_way_s"], 0.04, "that of its own spoke: {detail}");
    assert_eq!(
        (&detail["sent"], &detail["arrived"]),
        (&75.into(), &75.into())
    );
    assert!(
        number(&detail["p50_s"]) > 0.0 && number(&detail["on_time"]) > 0.5,
        "{detail}"
    );
    // The outage ended at 3 s of the link's time, which is not much older than the upload.
    let outage = &upload["link_use"]["outage"];
    assert!(
        (1.0..=3.0).contains(&number(&outage["ended_s"])),
        "{outage}"
    );
    assert!(number(&upload["resumed_s"]) > 0.0, "{upload}");
    let page = &json["runs"][1]["measurements"][0];
    assert!(
        number(&page["seconds"]) >= 0.08,
        "two requests in a row: {page}"
    );
    assert!(
        (2..=3).contains(&page["detail"]["connections"].as_u64().unwrap()),
        "{page}"
    );
}
