//! Tests of cleanup after the end, and of runs without privileges.

use super::*;

/// Starts a scenario whose command writes its process id and sleeps; returns the lab's process and
/// that id.
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
        let reported = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{reported}");
        assert!(reported.contains("nothing is left running"), "{reported}");
        wait_until("the command is killed", || is_gone(pid));
        assert_eq!(
            fs::read_dir(lab.path("tmp")).unwrap().count(),
            0,
            "temporary files are left"
        );
    }
}

#[test]
fn runs_that_were_finished_before_a_signal_are_reported() {
    let lab = Lab::new(SHORT);
    let script = format!(
        "[ -e {0}/first ] || {{ touch {0}/first; exit 0; }}; echo $$ > {0}/pid; exec sleep 300",
        lab.directory.path().display()
    );
    let scenario = SHORT.replace("echo $SERVER_IPV4", &script);
    fs::write(lab.path("test.toml"), scenario).unwrap();
    // Two runs in sequence; the second one sleeps.
    let child = lab
        .command(&["--only", "addresses", "--jobs", "1", "--json", "out.json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let (child, pid) = (child.unwrap(), lab.path("pid"));
    wait_until("the second run has begun", || pid.exists());
    kill(
        Pid::from_raw(child.id().try_into().unwrap()),
        Signal::SIGINT,
    )
    .unwrap();
    let output = child.wait_with_output().unwrap();
    let (reported, printed) = (text(&output.stderr), text(&output.stdout));
    assert_eq!(output.status.code(), Some(130), "{reported}");
    assert!(printed.contains("interrupted: 1 of 2 runs"), "{printed}");
    assert!(!reported.contains("FAILED"), "{reported}");
    let json: Value =
        serde_json::from_str(&fs::read_to_string(lab.path("out.json")).unwrap()).unwrap();
    assert_eq!(
        (&json["planned"], json["runs"].as_array().unwrap().len()),
        (&2.into(), 1)
    );
}

#[test]
fn programs_do_not_outlive_a_kill() {
    let lab = sleeping_lab();
    let (mut child, pid) = start_sleeper(&lab);
    child.kill().unwrap();
    child.wait().unwrap();
    wait_until("the command is killed", || is_gone(pid));
}

/// Drops root if the test runs as root. Without user namespaces it checks the message.
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
    // Copied by another program: a child that another test starts meanwhile would inherit the open
    // file, and the binary could not be executed.
    let copied = Command::new("cp")
        .args([Path::new(env!("CARGO_BIN_EXE_winkemu")), &binary])
        .status();
    assert!(copied.unwrap().success());
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
