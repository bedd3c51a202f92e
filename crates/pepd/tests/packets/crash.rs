//! State of the TUNs after the end of their process.

use std::{
    process::Command,
    thread,
    time::{Duration, Instant},
};

use nix::{
    sched::{CloneFlags, unshare},
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::bed::{CONFIG, ip, run};

/// Returns the child processes of this one, with their names.
fn children(parent: u32) -> Vec<(u32, String)> {
    let processes = std::fs::read_dir("/proc").expect("/proc").flatten();
    let numbers = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let child = |id: u32| {
        let text = std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
        let (before, after) = text.rsplit_once(')')?;
        let of: u32 = after.split_whitespace().nth(1)?.parse().ok()?;
        (of == parent).then(|| (id, before.split_once('(').unwrap_or_default().1.to_owned()))
    };
    numbers.filter_map(child).collect()
}

fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "{what}");
        thread::sleep(Duration::from_millis(20));
    }
}

fn has_tun() -> Option<()> {
    let output = Command::new("ip").args(["link", "show", "pepd-0"]).output();
    output.expect("ip starts").status.success().then_some(())
}

fn send(process: u32, signal: Signal) {
    let process = Pid::from_raw(i32::try_from(process).expect("a process"));
    kill(process, signal).expect("a process of this test");
}

#[test]
fn a_crash_takes_the_tuns_although_the_keeper_lives_and_the_next_one_has_them() {
    let thread = thread::spawn(|| {
        unshare(CloneFlags::CLONE_NEWNET).expect("root");
        std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").expect("root");
        ip("link set lo up");
        ip("link add lan0 type veth peer name host0");
        let directory = tempfile::tempdir().expect("a directory");
        let pepd = env!("CARGO_BIN_EXE_pepd");
        let in_directory = |name: &str| directory.path().join(name);
        let key = in_directory("k");
        run(pepd, &["keygen", "--out", key.to_str().expect("text")]);
        let no_socket = "[admin]\nsocket = \"off\"\n";
        std::fs::write(in_directory("pepd.toml"), format!("{CONFIG}{no_socket}")).expect("writes");
        let mut supervisor = Command::new(pepd)
            .args(["run", "--config"])
            .arg(in_directory("pepd.toml"))
            .spawn()
            .expect("starts");
        let worker = || {
            children(supervisor.id())
                .into_iter()
                .next()
                .map(|(id, _)| id)
        };
        let keeper = |worker| {
            let all = children(worker).into_iter();
            all.filter(|(_, name)| name == "pepd-keeper")
                .map(|(id, _)| id)
                .next()
        };
        eventually("a TUN", has_tun);
        let first = worker().expect("a worker");
        let kept = keeper(first).expect("a keeper");
        // No process starts the next one.
        send(supervisor.id(), Signal::SIGSTOP);
        send(first, Signal::SIGKILL);
        eventually("the TUN is gone", || has_tun().is_none().then_some(()));
        let name = std::fs::read_to_string(format!("/proc/{kept}/comm"));
        assert_eq!(name.expect("it lives").trim(), "pepd-keeper");
        send(supervisor.id(), Signal::SIGCONT);
        eventually("a TUN once more", has_tun);
        send(supervisor.id(), Signal::SIGTERM);
        supervisor.wait().expect("ends");
    });
    thread.join().expect("the test's thread");
}
