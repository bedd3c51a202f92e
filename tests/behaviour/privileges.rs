//! Privileges of pepd's processes, and flows that continue with no more than these.

use std::fs;

use nix::sys::signal::Signal;
use pepd_tests::{
    bed::{Bed, Family, Path},
    matrix::shared,
    pep::{Pep, children},
    wait::wait_until,
};

use crate::{
    support::echo_once,
    survive::{crash, talking, upgrade},
};

/// Bits of capabilities (capabilities(7)).
const NET: u64 = 1 << 10 | 1 << 12 | 1 << 13;
const BIND: u64 = 1 << 10;
const SETPCAP: u64 = 1 << 8;
const SYS_RESOURCE: u64 = 1 << 24;
const LOADING: u64 = 1 << 38 | 1 << 39;

/// Returns a field of `/proc/PID/status` (proc(5)).
fn field(process: &str, name: &str) -> String {
    let status = fs::read_to_string(format!("/proc/{process}/status")).expect("it runs");
    let mut lines = status.lines();
    let line = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.expect("a field").trim().to_owned()
}

fn set(process: u32, name: &str) -> u64 {
    u64::from_str_radix(&field(&process.to_string(), name), 16).expect("hexadecimal")
}

/// Returns what the OOM killer adds to the badness of a process.
fn oom_score_adj(process: u32) -> i32 {
    let path = format!("/proc/{process}/oom_score_adj");
    let text = fs::read_to_string(path).expect("it runs");
    text.trim_end().parse().expect("a number")
}

fn keepers(worker: u32) -> Vec<u32> {
    named(worker, "pepd-keeper")
}

/// Returns the children of this name.
fn named(worker: u32, name: &str) -> Vec<u32> {
    let is_named = |id: &u32| {
        let found = fs::read_to_string(format!("/proc/{id}/comm")).unwrap_or_default();
        found.trim_end() == name
    };
    children(worker).into_iter().filter(is_named).collect()
}

/// Checks all processes of a pepd that root started with all capabilities.
fn assert_confined(pep: &Pep) {
    let (supervisor, worker) = (pep.supervisor(), pep.id());
    assert_ne!(supervisor, worker);
    let ours = set(std::process::id(), "CapPrm");
    let [runner] = named(worker, "pepd-runner")[..] else {
        panic!("one runner");
    };
    let limits = [
        (supervisor, NET | SYS_RESOURCE | SETPCAP | LOADING),
        (worker, NET | SYS_RESOURCE),
        (runner, NET & !BIND),
    ];
    for (process, most) in limits {
        for name in ["CapPrm", "CapEff", "CapBnd"] {
            // Even root may lack some, as in a container.
            assert_eq!(set(process, name), most & ours, "{name} of {process}");
        }
        for name in ["CapInh", "CapAmb"] {
            assert_eq!(set(process, name) & !most, 0, "{name} of {process}");
        }
    }
    let keepers = keepers(worker);
    assert_eq!(keepers.len(), 1);
    for keeper in &keepers {
        assert_eq!(set(*keeper, "CapPrm"), NET);
        for name in ["CapEff", "CapInh", "CapAmb"] {
            assert_eq!(set(*keeper, name), 0, "{name}");
        }
        // Root of a container may not lower it.
        if ours & SYS_RESOURCE != 0 {
            assert_eq!(oom_score_adj(*keeper), -1000);
        }
    }
    for process in [worker, runner] {
        assert_eq!(oom_score_adj(process), oom_score_adj(supervisor));
    }
    for process in keepers.iter().chain([&supervisor, &worker, &runner]) {
        assert_eq!(field(&process.to_string(), "NoNewPrivs"), "1");
    }
    let threads = |process| {
        let threads = fs::read_dir(format!("/proc/{process}/task")).expect("it runs");
        let names = threads.flatten().map(|thread| thread.file_name());
        names.map(move |name| format!("{process}/task/{}", name.to_string_lossy()))
    };
    assert!(threads(worker).count() > 1);
    for thread in threads(worker).chain(threads(runner)) {
        assert_eq!(field(&thread, "Seccomp"), "2", "a filter");
        assert_eq!(field(&thread, "NoNewPrivs"), "1");
    }
}

#[test]
fn all_processes_have_only_what_they_need_and_flows_outlive_each() {
    for path in [Path::Spoof, Path::Defer] {
        shared(|| {
            let bed = Bed::new(path, Family::V4);
            let mut pep = bed.start().expect("not direct");
            let (_echo, mut open) = talking(&bed);
            assert_confined(&pep);
            upgrade(&pep);
            echo_once(&mut open, b"after an upgrade");
            assert_confined(&pep);
            crash(&pep);
            echo_once(&mut open, b"after a crash");
            assert_confined(&pep);
            // A keeper that the confined process has started.
            let before = keepers(pep.id());
            bed.gateway.run("kill", &["-9", &before[0].to_string()]);
            wait_until("another keeper", || {
                let now = keepers(pep.id());
                now.len() == 1 && now != before && set(now[0], "CapPrm") == NET
            });
            assert_confined(&pep);
            crash(&pep);
            echo_once(&mut open, b"after a crash with that keeper");
            assert_confined(&pep);
            drop(open);
            pep.wait_idle();
            // The supervisor has logged each crash as an error.
            pep.signal(Signal::SIGTERM);
            assert_eq!(pep.wait().code(), Some(0));
        });
    }
}

/// Returns true if a process with the worker's own user and capabilities may read its memory.
fn is_open(bed: &Bed, process: u32) -> bool {
    let have = "-all,+net_admin,+net_raw,+net_bind_service";
    let more = set(process, "CapPrm") & SYS_RESOURCE != 0;
    let have = format!("{have}{}", if more { ",+sys_resource" } else { "" });
    let environment = format!("/proc/{process}/environ");
    let arguments = ["--bounding-set", &have, "cat", &environment];
    bed.gateway.output("setpriv", &arguments).status.success()
}

#[test]
fn no_other_process_of_its_user_reads_the_workers_memory_unless_root_allows_core_dumps() {
    shared(|| {
        let bed = Bed::new(Path::Spoof, Family::V4);
        let mut pep = bed.start().expect("not direct");
        let (_echo, open) = talking(&bed);
        let worker = pep.id();
        assert!(!is_open(&bed, worker));
        assert!(
            is_open(&bed, keepers(worker)[0]),
            "the next process takes its sockets"
        );
        let limit = |limit: &str| {
            let worker = worker.to_string();
            bed.gateway.run("prlimit", &[limit, "--pid", &worker]);
        };
        // Root of a container may not raise a limit.
        if set(std::process::id(), "CapEff") & SYS_RESOURCE != 0 {
            limit("--core=unlimited");
            wait_until("core dumps to be possible", || is_open(&bed, worker));
            limit("--core=0");
            wait_until("core dumps to be impossible", || !is_open(&bed, worker));
        }
        drop(open);
        pep.wait_idle();
        pep.signal(Signal::SIGTERM);
        assert_eq!(pep.wait().code(), Some(0));
    });
}

/// A runner does not hold what its worker has open, and ends with it.
#[test]
fn a_runner_ends_with_its_worker_and_a_worker_with_its_runner() {
    shared(|| {
        let bed = Bed::new(Path::Spoof, Family::V4);
        let mut pep = bed.start().expect("not direct");
        let (_echo, mut open) = talking(&bed);
        let runner = |worker| named(worker, "pepd-runner")[0];
        let first = runner(pep.id());
        // Standard input is the socket for orders. Others come with an order, and go with it.
        wait_until("no file but the standard ones", || {
            let files = fs::read_dir(format!("/proc/{first}/fd")).expect("it runs");
            files.count() == 3
        });
        crash(&pep);
        echo_once(&mut open, b"after a crash");
        wait_until("the end of its runner", || {
            !fs::exists(format!("/proc/{first}")).expect("proc")
        });
        let (worker, second) = (pep.id(), runner(pep.id()));
        bed.gateway.run("kill", &["-9", &second.to_string()]);
        wait_until("another worker with a runner", || {
            let now = pep.id();
            now != worker && named(now, "pepd-runner").len() == 1
        });
        echo_once(&mut open, b"after the end of a runner");
        pep.log().expect("pepd-runner was killed");
        drop(open);
        pep.wait_idle();
        pep.signal(Signal::SIGTERM);
        assert_eq!(pep.wait().code(), Some(0));
    });
}
