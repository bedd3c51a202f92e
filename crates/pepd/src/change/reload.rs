//! Reload: a new configuration for open flows.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    ffi::OsString,
    fs,
    path::Path,
    process,
    sync::Arc,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::getppid,
};
use pep_core::{
    arena::{Kind, name_hash},
    config::{Addresses, Config},
};
use pepd_api::change::{Change, ReloadOrder, ReloadReport};
use pepd_intercept::program;
use pepd_relay::{flow::FlowContext, survive::discovery::SUPERVISOR};
use pepd_sys::{
    admin_socket,
    load::{self, Source},
};
use tokio::sync::{Mutex, MutexGuard};
use units::counted;

use super::diff;

/// Reason why the configuration was not changed.
#[derive(Debug, thiserror::Error)]
pub enum ReloadError {
    /// The new configuration is invalid, or differs in a key that only a restart can change.
    #[error("{0}")]
    Wrong(String),
    /// No configuration could be loaded now.
    #[error("{0}")]
    NotNow(String),
}

/// Handover of flows to a process with a new, checked configuration.
#[derive(Debug)]
pub struct Reload {
    source: Source,
    config: Arc<Config>,
    context: Arc<FlowContext>,
    /// True if flows outlive this process.
    survives: bool,
    /// Lock against concurrent reloads.
    busy: Mutex<()>,
}

impl Reload {
    /// Returns the reload of a process that was started with this configuration from this source.
    pub fn new(
        source: Source,
        config: &Arc<Config>,
        context: &Arc<FlowContext>,
        survives: bool,
    ) -> Arc<Self> {
        Arc::new(Self {
            source,
            config: Arc::clone(config),
            context: Arc::clone(context),
            survives,
            busy: Mutex::new(()),
        })
    }

    /// Returns the configuration with which this process was started.
    pub fn source(&self) -> &Source {
        &self.source
    }

    /// Returns true if it is in use because a newer configuration failed to start.
    pub fn is_reverted(&self) -> bool {
        self.context.counters.snapshot().reverts > 0
    }

    /// Reloads on `SIGHUP`, after any other reload in progress, and logs the result.
    pub async fn run_and_log(&self) {
        let order = ReloadOrder::default();
        let turn = self.busy.lock().await;
        let done = self.run_in_turn(&turn, order).await;
        if let Err(err) = done {
            for line in err.to_string().lines() {
                tracing::error!("reload failed: {line}");
            }
            tracing::error!("reload failed: the present configuration stays in use");
        }
    }

    /// Checks the file, lists the changes, and starts the handover to the next process unless only
    /// the check is requested. The handover begins a moment after this returns.
    ///
    /// # Errors
    /// When the file is invalid, changes a key that requires a restart, or flows cannot be handed
    /// over.
    pub async fn run(&self, order: ReloadOrder) -> Result<ReloadReport, ReloadError> {
        let turn = self.busy.try_lock();
        let turn = turn.map_err(|_| not_now("another reload is in progress; try again later"))?;
        self.run_in_turn(&turn, order).await
    }

    async fn run_in_turn(
        &self,
        _turn: &MutexGuard<'_, ()>,
        order: ReloadOrder,
    ) -> Result<ReloadReport, ReloadError> {
        if self.context.admission.is_stopping() {
            return Err(not_now("pepd is draining and will end"));
        }
        if !self.survives {
            return Err(not_now(
                "flows cannot be handed over: `custody.survive` is off or impossible here (`pepd check` gives the reason); \
                 restart pepd, which resets its flows after `timeouts.drain`",
            ));
        }
        let first = supervisor()?;
        let path = &self.source.path;
        let remarks = check(path).await?;
        let loaded = load::read(path).and_then(Source::load_fitted);
        let loaded = loaded.map_err(|err| ReloadError::Wrong(err.to_string()))?;
        self.can_follow(&loaded.config)?;
        if !order.reset_flows {
            self.keeps_peers(&loaded.config)?;
        }
        let changes = diff(&self.source.text, &loaded.source.text)
            .map_err(|err| ReloadError::Wrong(err.to_string()))?;
        if !order.dry_run {
            log_changes(&changes);
            hand_over(first);
        }
        Ok(ReloadReport {
            changes,
            remarks,
            hands_over: !order.dry_run,
            pid: process::id(),
            first,
            socket: admin_socket::path(&loaded.config),
        })
    }

    /// Checks that settings on which open flows depend are unchanged.
    fn can_follow(&self, new: &Config) -> Result<(), ReloadError> {
        // The cgroup's memory may have changed since the start, and that is no change of a key.
        let old = self.source.clone().load_fitted();
        let old = old.as_ref().map_or(&*self.config, |old| &old.config);
        let wrong = cannot_follow(old, new, {
            let layout = self.context.arena.layout();
            (layout.slots(), layout.extent_bytes())
        });
        if wrong.is_empty() {
            return Ok(());
        }
        let path = self.source.path.display();
        let lines: Vec<_> = wrong
            .iter()
            .map(|(key, why)| format!("{path}: {key}: {why}; restart pepd to apply it"))
            .collect();
        Err(ReloadError::Wrong(lines.join("\n")))
    }

    /// Checks that peers with flows remain. Without their peer these flows would be reset, although
    /// some of their bytes may have been acknowledged to hosts.
    fn keeps_peers(&self, new: &Config) -> Result<(), ReloadError> {
        let stay: HashSet<_> = new.peers.iter().map(|peer| &peer.name).collect();
        let gone = self.config.peers.iter().map(|peer| &peer.name);
        let gone: HashMap<_, _> = gone
            .filter(|name| !stay.contains(name))
            .map(|name| (name_hash(name), name))
            .collect();
        let arena = &self.context.arena;
        let flows = arena.occupied().into_iter();
        let flows = flows.filter_map(|slot| arena.record(slot));
        let in_tunnels = flows.filter(|flow| flow.identity.kind != Kind::Split);
        let mut counts = BTreeMap::new();
        for name in in_tunnels.filter_map(|flow| gone.get(&flow.identity.peer)) {
            *counts.entry(name).or_insert(0) += 1;
        }
        let lines = counts.into_iter().map(|(name, flows)| {
            format!(
                "peer.{name}: has flows ({flows}; `pepd custody`) that its removal would reset: wait until they have ended, or \
                 give them up (`pepd reload --reset-flows`)"
            )
        });
        let lines: Vec<_> = lines.collect();
        if lines.is_empty() {
            return Ok(());
        }
        Err(ReloadError::NotNow(lines.join("\n")))
    }
}

/// Returns keys that the new configuration must not change while flows have memory of this many
/// slots and bytes.
fn cannot_follow(
    old: &Config,
    new: &Config,
    (slots, bytes): (u32, u64),
) -> Vec<(&'static str, &'static str)> {
    const SAME: &str =
        "cannot change while pepd runs: rules and connections in the kernel depend on it";
    const MEMORY: &str =
        "cannot grow this much while pepd runs: the memory of flows is allocated at the start";
    let (was, is) = (&old.intercept, &new.intercept);
    let (limits, most) = (&new.limits, &old.limits);
    let more_flows = limits.flows > most.flows
        && limits.flows.saturating_add(Addresses::HERE.slack_flows) > slots;
    let by_ring = limits.ring_max > most.ring_max && limits.ring_max.bytes() > bytes;
    let all = [
        (was.table != is.table, "intercept.table", SAME),
        (
            was.marks.first() != is.marks.first(),
            "intercept.mark",
            SAME,
        ),
        (
            was.marks.mask() != is.marks.mask(),
            "intercept.mark_mask",
            SAME,
        ),
        (
            was.route_table != is.route_table,
            "intercept.route_table",
            SAME,
        ),
        (more_flows, "limits.flows", MEMORY),
        (by_ring, "limits.ring_max", MEMORY),
        (
            new.extent_min() > bytes,
            "peer",
            "the first peer cannot be added while pepd runs: the memory of flows, allocated at the start, is too small for \
             flows in tunnels",
        ),
        (
            !new.custody.survive,
            "custody.survive",
            "cannot be switched off while pepd runs: its flows must be handed over",
        ),
        (
            old.custody.directory != new.custody.directory,
            "custody.directory",
            "cannot change while pepd runs: it may hold bytes of flows",
        ),
    ];
    let wrong = all.into_iter().filter(|(wrong, ..)| *wrong);
    wrong.map(|(_, key, why)| (key, why)).collect()
}

fn not_now(why: impl Into<String>) -> ReloadError {
    ReloadError::NotNow(why.into())
}

/// Returns the process that starts the next one.
pub(super) fn supervisor() -> Result<i32, ReloadError> {
    let parent = getppid().as_raw();
    let name = fs::read(format!("/proc/{parent}/comm")).unwrap_or_default();
    if name.trim_ascii_end() == SUPERVISOR.to_bytes() {
        return Ok(parent);
    }
    Err(not_now(
        "the supervisor has ended; `pepd run` takes the flows over, with the new configuration",
    ))
}

/// Has the program at pepd's path, which may be a newer version, check the file. Returns its
/// warnings and notes.
async fn check(path: &Path) -> Result<Vec<String>, ReloadError> {
    let path_of_pepd = program::own_path();
    let path_of_pepd =
        path_of_pepd.map_err(|err| not_now(format!("cannot find the program: {err}")))?;
    let cannot = |err: &dyn std::fmt::Display| {
        not_now(format!(
            "cannot run {} to check the file: {err}",
            path_of_pepd.display()
        ))
    };
    let mut config = OsString::from("--config=");
    config.push(path);
    let args = ["check".into(), "--config-only".into(), config];
    let output = program::run::<OsString>(program::PEPD, &args, None).await;
    let output = output.map_err(|err| cannot(&err))?;
    let said = String::from_utf8_lossy(&output.stderr)
        .trim_end()
        .to_owned();
    if output.status.success() {
        return Ok(said.lines().map(ToOwned::to_owned).collect());
    }
    if said.is_empty() {
        return Err(cannot(&output.status));
    }
    Err(ReloadError::Wrong(said))
}

fn log_changes(changes: &[Change]) {
    for change in changes {
        tracing::info!("reload: {change}");
    }
    tracing::info!(
        "reload: {}; starting a new process and handing over all flows",
        counted(changes.len() as u64, "change")
    );
}

/// Signals the first process, which checks again and replaces this one. The requester gets its
/// answer before another task runs.
fn hand_over(first: i32) {
    tokio::spawn(async move {
        if supervisor().ok() != Some(first) {
            tracing::error!(
                "reload failed: the supervisor has ended; the old configuration stays in use until pepd is restarted"
            );
            return;
        }
        let first = nix::unistd::Pid::from_raw(first);
        if let Err(err) = kill(first, Signal::SIGUSR2) {
            tracing::error!(error = %err, "reload failed: cannot signal the supervisor; the old configuration stays in use until pepd is restarted");
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOM: (u32, u64) = (20_000, 4 << 20);

    fn config(text: &str) -> Config {
        pep_core::config::parse(&format!("intercept.lan = [\"lo\"]\n{text}")).expect("valid")
    }

    #[test]
    fn what_flows_depend_on_cannot_change() {
        let old = config("limits.flows = 1000\nlimits.ring_max = \"1MiB\"\n");
        for (text, key) in [
            ("intercept.table = \"other\"", "intercept.table"),
            ("intercept.route_table = 7777", "intercept.route_table"),
            (
                "limits.flows = 50000\nlimits.memory = \"100GiB\"\nlimits.ring_max = \"1MiB\"",
                "limits.flows",
            ),
            ("limits.ring_max = \"8MiB\"", "limits.ring_max"),
            ("custody.survive = false", "custody.survive"),
            ("custody.directory = \"/x\"", "custody.directory"),
        ] {
            let wrong = cannot_follow(&old, &config(text), ROOM);
            assert!(
                wrong.iter().any(|(found, _)| *found == key),
                "{text}: {wrong:?}"
            );
        }
    }

    #[test]
    fn changes_that_fit_the_memory_are_accepted() {
        let old = config("limits.flows = 1000\nlimits.ring_max = \"1MiB\"\n");
        for text in [
            "limits.flows = 10\nlimits.ring_max = \"1MiB\"",
            "limits.flows = 5000\nlimits.ring_max = \"2MiB\"",
            "limits.ring_max = \"1MiB\"\n[[site]]\nname = \"a\"\nmatch = { dport = [25] }",
            // Flows of this peer prefer 16 MiB.
            "identity = { key_file = \"a\" }\n[peer.hub]\nendpoint = \"192.0.2.1:1\"\nrate = \"1Gbit/s\"\nrtt = \"600ms\"\n\
             public_key = \"AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyA=\"",
        ] {
            assert_eq!(cannot_follow(&old, &config(text), ROOM), []);
        }
    }
}
