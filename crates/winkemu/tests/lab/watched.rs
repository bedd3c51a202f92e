//! Tests of senders and their congestion controls.

use super::*;

/// Two senders on one slow link with a deep queue, one of them paced to a quarter of its rate.
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
        // Ten per second, but a busy machine may miss some.
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

/// Registers eBPF programs where this is permitted; elsewhere the test checks the message.
#[test]
fn ebpf_congestion_controls_exist_during_a_run_or_the_error_says_why_not() {
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
    assert_eq!(
        runs.len(),
        2,
        "runs with the control of the node and of the socket"
    );
    for run in runs {
        assert_eq!(
            run["measurements"][0]["detail"]["congestion"], *name,
            "{run}"
        );
    }
    let available = "/proc/sys/net/ipv4/tcp_available_congestion_control";
    let name = name.as_str().unwrap();
    wait_until("the kernel releases the congestion control", || {
        let names = fs::read_to_string(available).unwrap();
        !names.split_whitespace().any(|known| known == name)
    });
}
