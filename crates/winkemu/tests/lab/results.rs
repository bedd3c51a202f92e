//! Tests of tables, files, exit codes and error messages.

use super::*;

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
        "no progress lines without a terminal: {stderr}"
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
        // 4 Mbit/s less headers of 72 bytes in 1500, plus or minus an interval.
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
        "temporary files are left"
    );
}

/// Uploads of which one is incomplete at its time limit.
const UPLOADS: &str = r#"
title = "Uploads"
description = "Over a short link."
path = ["client", "link", "server"]
parallel = 2
late = "1s"
baseline = "slow"
timeout = "4s"

[link]
rate = "8Mbit/s"
delay = "40ms"

[[variant]]
name = "slow"
# A window of less than 4 kB for each round trip.
node.server.sysctl = { "net.ipv4.tcp_rmem" = "4096 4096 4096" }

[[variant]]
name = "fast"

[[workload]]
name = "upload"
program = "curl"
size = "500kB"
partial = true

[[check]]
variant = "fast"
metric = "seconds"
max = "4s"
"#;

#[test]
fn brief_results_are_a_table_and_sentences_on_one_screen() {
    let lab = Lab::new(UPLOADS);
    let output = lab.run(&["--brief", "--quiet", "--plots", "plots"]);
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{stdout}\n{stderr}");
    assert_eq!(stderr, "");
    assert!(
        stdout.starts_with("Uploads\n\nOver a short link.\n\n"),
        "{stdout}"
    );
    for part in [
        " MB in 4.00 s",
        "slow: used ",
        "fast: used ",
        "times as fast as `slow`",
        "holds",
        "plots/test-arrived.svg",
    ] {
        assert!(stdout.contains(part), "{part}\n{stdout}");
    }
    let lines: Vec<_> = stdout.lines().collect();
    assert!(lines.len() <= 24, "{stdout}");
    assert!(
        lines.iter().all(|line| line.chars().count() <= 100),
        "{stdout}"
    );
    let plots = fs::read_dir(lab.path("plots")).unwrap();
    assert_eq!(plots.count(), 2, "one plot, as SVG and PNG");
}

#[test]
fn brief_results_need_transfers_with_a_time() {
    let bulk = SHORT.split("[[workload]]").take(2).collect::<Vec<_>>();
    let output = Lab::new(&bulk.join("[[workload]]")).run(&["--brief"]);
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(
        stderr.contains("curl, page, counting_tcp or command"),
        "{stderr}"
    );
}

#[test]
fn a_failed_write_of_the_list_is_an_error_unless_the_reader_is_gone() {
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
    // No machine is this exact.
    let lab = Lab::new(&SHORT.replace("late = \"1s\"", "late = \"1ns\"\nretries = 1"));
    let output = lab.run(&["--only", "upload", "--only", "10ms", "--json", "all.json"]);
    assert_eq!(output.status.code(), Some(3), "{}", text(&output.stderr));
    assert!(
        text(&output.stdout).contains("1 of 1 runs left out"),
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
    // Beside tests that keep all CPUs busy, the report says that the check is inconclusive.
    let starved = stdout.contains("inconclusive");
    let code = if starved { 3 } else { 1 };
    assert_eq!(output.status.code(), Some(code), "{stdout}");
}
