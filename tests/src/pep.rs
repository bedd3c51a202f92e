//! The daemon under the control of a test.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::{Command, ExitStatus, Stdio},
    time::Duration,
};

use nix::sys::signal::Signal;
use tempfile::TempDir;
use winkemu::netns::Process;

use crate::{
    footprint::Footprint,
    host::Host,
    pep_binary::pepd,
    pep_log::{FlowEnd, Log},
    wait::{PATIENCE, wait_for, wait_within},
};

/// A running pepd, killed on drop. If the test fails, the end of its log is printed. The whole log
/// is written to the directory `PEPD_TEST_LOGS`, if that is set.
#[derive(Debug)]
pub struct Pep {
    process: Process,
    host: Host,
    log: Log,
    before: Footprint,
    directory: TempDir,
}

/// The daemon's counters by name.
pub type Counters = BTreeMap<String, u64>;

/// Returns the fields of /proc for a process or a thread that follow its name: state, parent, group
/// and so on.
fn stat(path: &Path) -> Option<Vec<String>> {
    let stat = fs::read_to_string(path.join("stat")).ok()?;
    let (_, rest) = stat.rsplit_once(") ")?;
    Some(rest.split(' ').map(str::to_owned).collect())
}

/// Returns whether any thread of a process runs: the first may have ended long before the others.
fn is_running(id: u32) -> bool {
    let threads = fs::read_dir(format!("/proc/{id}/task"));
    let mut threads = threads.into_iter().flatten().flatten();
    threads.any(|thread| stat(&thread.path()).is_some_and(|stat| stat[0] != "Z" && stat[0] != "X"))
}

/// Returns all processes whose fields in /proc match.
fn processes(wanted: impl Fn(&[String]) -> bool) -> Vec<u32> {
    let all = fs::read_dir("/proc").into_iter().flatten().flatten();
    let ids = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let is_wanted = |id: &u32| {
        let path = PathBuf::from(format!("/proc/{id}"));
        stat(&path).is_some_and(|stat| wanted(&stat))
    };
    ids.filter(is_wanted).collect()
}

/// Returns all processes of a group.
fn members(group: u32) -> Vec<u32> {
    let group = group.to_string();
    processes(|stat| stat[2] == group)
}

/// Returns all child processes, including those inherited from an ended one. The kernel's own list
/// omits some while others end.
pub fn children(parent: u32) -> Vec<u32> {
    let parent = parent.to_string();
    processes(|stat| stat[1] == parent)
}

/// Returns the process that carries flows: the child of the pepd started first, or itself if flows
/// end with it.
pub fn carrier(first: u32) -> u32 {
    const MOMENT: Duration = Duration::from_secs(1);
    let found = wait_within(MOMENT, || {
        let workers: Vec<u32> = children(first)
            .into_iter()
            .filter(|id| is_worker(*id))
            .collect();
        if workers.is_empty() {
            return Some(first);
        }
        workers.into_iter().find(|id| takes_signals(*id))
    });
    found.unwrap_or(first)
}

/// Returns whether a process is a worker. Keepers are copies of one until they change their name.
fn is_worker(id: u32) -> bool {
    let read = |name: &str| fs::read_to_string(format!("/proc/{id}/{name}")).unwrap_or_default();
    read("comm").trim_end() == "pepd" && read("cmdline").split('\0').any(|word| word == "--worker")
}

/// Returns whether a process accepts signals: keepers never do, and a forked child does not until
/// it runs its program.
fn takes_signals(id: u32) -> bool {
    const ALARM: u64 = 1 << (Signal::SIGALRM as u32 - 1);
    let status = fs::read_to_string(format!("/proc/{id}/status")).unwrap_or_default();
    let mut lines = status.lines();
    let blocked = lines.find_map(|line| line.strip_prefix("SigBlk:"));
    let blocked = blocked.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    blocked.is_some_and(|mask| mask & ALARM == 0)
}

impl Pep {
    /// Starts pepd on a machine and waits until it is ready. The configuration should enable the
    /// JSON log.
    ///
    /// # Panics
    /// When it does not become ready, with its log.
    pub fn start(host: &Host, config: &str) -> Self {
        Self::start_by(host, config, |command| command)
    }

    /// Starts pepd like [`start`](Self::start) by a modified command, for example through another
    /// program.
    ///
    /// # Panics
    /// When it does not become ready, with its log.
    pub fn start_by(host: &Host, config: &str, wrap: impl FnOnce(Command) -> Command) -> Self {
        let pep = Self::spawn(host, config, wrap);
        let ready = pep.log.find(0, PATIENCE, |event| {
            event.message().contains("pepd is ready")
        });
        assert!(ready.is_some(), "pepd did not become ready");
        pep
    }

    /// Starts pepd without waiting: for starts that must fail.
    ///
    /// # Panics
    /// When there is no program to start.
    pub fn spawn(host: &Host, config: &str, wrap: impl FnOnce(Command) -> Command) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory can be made");
        let path = directory.path().join("pepd.toml");
        fs::write(&path, config).expect("a temporary file can be written");
        let before = Footprint::measure(host);
        let (process, log) = run(host, directory.path(), wrap);
        Self {
            process,
            host: host.clone(),
            log,
            before,
            directory,
        }
    }

    /// Makes pepd leave (SIGQUIT), and starts another with the same configuration, which takes over
    /// its flows. Counters restart.
    ///
    /// # Panics
    /// When it does not leave, or the other does not become ready.
    pub fn succeed(&mut self) {
        self.signal(Signal::SIGQUIT);
        // Its keeper must outlive it, and would not if the process were reaped.
        let stat = format!("/proc/{}/stat", self.supervisor());
        let has_left = || fs::read_to_string(&stat).is_ok_and(|stat| stat.contains(") Z "));
        wait_for("pepd to leave", || has_left().then_some(()));
        let (process, log) = run(&self.host, self.directory.path(), |command| command);
        let ready = log.find(0, PATIENCE, |event| {
            event.message().contains("pepd is ready")
        });
        assert!(ready.is_some(), "{}", log.tail(60));
        let left = self.wait_at_most(PATIENCE).and_then(|status| status.code());
        assert_eq!(left, Some(0), "{}", self.log.tail(60));
        self.keep_log();
        (self.process, self.log) = (process, log);
    }

    /// Returns the id of the process that carries flows: a child of the first one, where flows
    /// survive a crash.
    pub fn id(&self) -> u32 {
        carrier(self.supervisor())
    }

    /// Returns the id of the process that was started first, which receives signals.
    pub fn supervisor(&self) -> u32 {
        self.process.id()
    }

    /// Returns the ids of all its processes.
    pub fn processes(&self) -> Vec<u32> {
        members(self.supervisor())
    }

    /// Returns the log.
    pub fn log(&self) -> &Log {
        &self.log
    }

    /// Runs a command of the program against this pepd, whose admin socket is `admin.sock`; returns
    /// the output.
    ///
    /// # Panics
    /// When it fails, with its output.
    pub fn ask(&self, words: &[&str]) -> String {
        let socket = self.path("admin.sock");
        let mut arguments = words.to_vec();
        arguments.extend(["--socket", socket.to_str().expect("a path")]);
        self.host.run(pepd().to_str().expect("a path"), &arguments)
    }

    /// Returns the path of a file beside the configuration.
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) {
        self.process.signal(signal);
    }

    /// Returns the counters now (by SIGUSR1).
    ///
    /// # Panics
    /// On a timeout.
    pub fn counters(&self) -> Counters {
        let position = self.log.position();
        // The line is lost while earlier lines of thousands of flows are unread.
        let found = wait_within(PATIENCE, || {
            self.signal(Signal::SIGUSR1);
            self.log.find(position, PATIENCE / 10, |event| {
                event.field("flows_accepted").is_some()
            })
        });
        let event = found.expect("pepd logs its counters on SIGUSR1");
        let fields = event.fields();
        let numbers = fields.into_iter().filter_map(|(name, value)| {
            let number = value.as_u64();
            number.map(|number| (name, number))
        });
        numbers.collect()
    }

    /// Returns one counter now.
    ///
    /// # Panics
    /// When no counter has that name.
    pub fn counter(&self, name: &str) -> u64 {
        let counters = self.counters();
        let counter = counters.get(name);
        *counter.unwrap_or_else(|| panic!("no counter `{name}` in {counters:?}"))
    }

    /// Waits until a counter matches.
    ///
    /// # Panics
    /// On a timeout.
    pub fn wait_counter(&self, name: &str, wanted: impl Fn(u64) -> bool) -> u64 {
        let mut last = 0;
        let found = wait_within(PATIENCE, || {
            last = self.counter(name);
            wanted(last).then_some(last)
        });
        found.unwrap_or_else(|| panic!("counter `{name}` stays at {last}"))
    }

    /// Returns all flows that have ended so far.
    pub fn flow_ends(&self) -> Vec<FlowEnd> {
        self.log.flow_ends()
    }

    /// Waits for the end of a flow.
    ///
    /// # Panics
    /// On a timeout.
    pub fn wait_flow_end(&self, wanted: impl Fn(&FlowEnd) -> bool) -> FlowEnd {
        let found = wait_within(PATIENCE, || self.flow_ends().into_iter().find(&wanted));
        found.unwrap_or_else(|| panic!("no such flow has ended, but {:#?}", self.flow_ends()))
    }

    /// Waits for pepd's end, and for the end of its log.
    ///
    /// # Panics
    /// When it does not end within [`PATIENCE`].
    pub fn wait(&mut self) -> ExitStatus {
        let status = self.wait_at_most(PATIENCE);
        let status = status.unwrap_or_else(|| panic!("pepd does not end"));
        self.log.wait_end();
        status
    }

    /// Waits for pepd's end up to a limit.
    ///
    /// # Panics
    /// When the system cannot wait.
    pub fn wait_at_most(&mut self, limit: Duration) -> Option<ExitStatus> {
        self.process.wait(limit).expect("a child can be waited for")
    }

    /// Requests an orderly end and waits for it; returns the exit code.
    ///
    /// # Panics
    /// When pepd does not end, or is ended by a signal.
    pub fn terminate(&mut self) -> i32 {
        self.signal(Signal::SIGTERM);
        let status = self.wait();
        let code = status.code();
        code.unwrap_or_else(|| panic!("pepd was ended by a signal: {status}"))
    }

    /// Repeats the request to end, which resets its flows; returns the exit code.
    ///
    /// # Panics
    /// When pepd does not end, or is ended by a signal.
    pub fn terminate_at_once(&mut self) -> i32 {
        // The second request counts a second after the first.
        let status = wait_within(PATIENCE, || {
            self.signal(Signal::SIGTERM);
            self.wait_at_most(Duration::from_millis(200))
        });
        let status = status.unwrap_or_else(|| panic!("pepd does not end"));
        self.log.wait_end();
        let code = status.code();
        code.unwrap_or_else(|| panic!("pepd was ended by a signal: {status}"))
    }

    /// Stops pepd in the ordinary way: the exit code must be 0 and the machine unchanged.
    ///
    /// # Panics
    /// When either differs.
    pub fn stop(mut self) {
        let code = self.terminate();
        assert_eq!(code, 0, "exit code of a pepd without flows");
        self.assert_nothing_left();
    }

    /// Kills pepd by SIGKILL, with all its child processes, and waits for their end.
    ///
    /// # Panics
    /// When the system cannot wait.
    pub fn kill(&mut self) {
        let group = self.processes();
        self.process.kill().expect("a child can be waited for");
        // The others are no children of the test, and keep sockets open until they have ended.
        let gone = || group.iter().all(|id| !is_running(*id)).then_some(());
        wait_within(PATIENCE, gone).expect("all of its processes end");
    }

    /// Returns the leftovers on its machine, one line each.
    pub fn leftovers(&self) -> Vec<String> {
        Footprint::measure(&self.host).difference(&self.before)
    }

    /// Checks that the machine is as before the start.
    ///
    /// # Panics
    /// When it is not, with the differences.
    pub fn assert_nothing_left(&self) {
        // Interfaces disappear a moment after the process that held them.
        let mut left = Vec::new();
        wait_within(Duration::from_secs(5), || {
            left = self.leftovers();
            left.is_empty().then_some(())
        });
        assert!(left.is_empty(), "left behind: {left:#?}");
    }

    /// Checks that pepd is running and has not logged an error.
    ///
    /// # Panics
    /// When it has ended or logged one.
    pub fn assert_healthy(&mut self) {
        let status = self.wait_at_most(Duration::ZERO);
        assert!(status.is_none(), "pepd has ended: {status:?}");
        let errors = self.log.events_since(0);
        let errors: Vec<_> = errors
            .iter()
            .filter(|event| event.level() == "ERROR")
            .collect();
        assert!(errors.is_empty(), "pepd logged errors: {errors:#?}");
        assert!(!self.log.text().contains("panicked at"), "pepd panicked");
    }

    /// Returns the resident memory in bytes.
    ///
    /// # Panics
    /// When pepd has ended.
    pub fn resident_bytes(&self) -> u64 {
        self.status_bytes("VmRSS:")
    }

    /// Returns the maximum resident memory so far in bytes.
    ///
    /// # Panics
    /// When pepd has ended.
    pub fn peak_resident_bytes(&self) -> u64 {
        self.status_bytes("VmHWM:")
    }

    fn status_bytes(&self, name: &str) -> u64 {
        let path = format!("/proc/{}/status", self.id());
        let status = fs::read_to_string(path).expect("a running process has a status");
        let line = status.lines().find(|line| line.starts_with(name));
        let number = line.and_then(|line| line.split_whitespace().nth(1));
        let kib: Option<u64> = number.and_then(|number| number.parse().ok());
        kib.expect("the status tells the resident memory") * 1024
    }

    /// Returns the open descriptors.
    ///
    /// # Panics
    /// When pepd has ended.
    pub fn descriptors(&self) -> usize {
        let path = format!("/proc/{}/fd", self.id());
        let listed = fs::read_dir(path).expect("a running process has descriptors");
        listed.count()
    }

    /// Returns the number of threads.
    ///
    /// # Panics
    /// When pepd has ended.
    pub fn threads(&self) -> u64 {
        let path = format!("/proc/{}/task", self.id());
        let listed = fs::read_dir(path).expect("a running process has threads");
        listed.count() as u64
    }

    /// Returns the CPU time used, user and system.
    ///
    /// # Panics
    /// When pepd has ended.
    pub fn cpu_time(&self) -> Duration {
        let path = format!("/proc/{}/stat", self.id());
        let stat = fs::read_to_string(path).expect("a running process has a stat");
        // The name in parentheses may contain anything, blanks too.
        let after_name = stat.rsplit(')').next().unwrap_or("");
        let fields: Vec<_> = after_name.split_whitespace().collect();
        let ticks = |at: usize| fields[at].parse::<u64>().expect("a number of ticks");
        // Fields 14 and 15 of proc(5); the first after the name is the third. USER_HZ is 100.
        Duration::from_millis((ticks(11) + ticks(12)) * 10)
    }

    /// Sets the limit of descriptors of the running process.
    ///
    /// # Panics
    /// When prlimit (package util-linux) fails.
    pub fn set_descriptor_limit(&self, limit: u64) {
        let pid = self.id().to_string();
        let limit = format!("--nofile={limit}:20000");
        self.host.run("prlimit", &["--pid", &pid, &limit]);
    }

    /// Waits until no flow is open and pepd is idle.
    ///
    /// # Panics
    /// When flows stay open.
    pub fn wait_idle(&self) {
        wait_for("all flows to end", || {
            (self.counter("flows_open") == 0).then_some(())
        });
    }

    /// Writes the log to the directory for logs, if one is set.
    fn keep_log(&self) {
        let Some(directory) = std::env::var_os("PEPD_TEST_LOGS") else {
            return;
        };
        let path = Path::new(&directory).join(format!("pepd-{}.log", self.process.id()));
        if let Err(err) = fs::write(&path, self.log.text()) {
            eprintln!("cannot write {}: {err}", path.display());
        }
    }
}

/// Runs pepd by the configuration in a directory.
fn run(host: &Host, directory: &Path, wrap: impl FnOnce(Command) -> Command) -> (Process, Log) {
    let mut command = host.command(pepd().to_str().expect("a path that can be printed"));
    let path = directory.join("pepd.toml");
    command.arg("run").arg("--config").arg(path);
    let mut command = wrap(command);
    // Sockets of other tests, in other namespaces, have the same names.
    command.env("RUNTIME_DIRECTORY", directory);
    command.env_remove("RUST_LOG").stderr(Stdio::piped());
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let mut process = Process::spawn(&mut command).expect("pepd can be started");
    let stderr = process.pipes().stderr.take().expect("a pipe was asked for");
    (process, Log::new(stderr))
}

impl Drop for Pep {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- the end of pepd's log ---\n{}", self.log.tail(60));
        }
        self.keep_log();
    }
}
