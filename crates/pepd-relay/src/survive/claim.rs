//! Claims of several pepds in one network namespace: each publishes what it uses, for the next one
//! to check.
//!
//! A claim is an abstract Unix socket without traffic. Its name states what is claimed, and all
//! processes can read it in `/proc/net/unix`. It exists in this network namespace only. It ends
//! with the process, in whichever way that ends, and with its [keeper](crate::survive::keeper).
//! While the keeper lives, the name states whose sockets can be taken over. Resources left by a
//! pepd without a keeper are unclaimed.
//!
//! Any local user can bind such a name. A claim therefore counts only if a pepd has made it
//! (`discovery`), and ends in a random number, so that no other user can bind it first.

use std::{
    fs,
    hash::{BuildHasher as _, RandomState},
    io,
    ops::RangeInclusive,
    os::{
        linux::net::SocketAddrExt as _,
        unix::net::{SocketAddr, UnixDatagram},
    },
    process,
    time::Duration,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use pep_core::config::{Config, Marks};
use pepd_sys::unix_names::{Abstract, abstract_sockets};
use tokio::{io::Interest, time::timeout};

use crate::survive::discovery::{self, Judge};

/// Prefix of all names of pepd.
const ALL_PREFIX: &str = "pepd";
/// Prefix of the names of claims.
const PREFIX: &str = "pepd/";
/// Prefix of the names that list the interfaces on which a pepd takes connections.
const LAN_PREFIX: &str = "pepd-lan/";
/// Prefix of the names of pepds that drain.
const DRAIN_PREFIX: &str = "pepd-drain/";
/// Room for the name of an abstract socket, in bytes.
const NAME_MAX: usize = 107;
/// Digits of the random number at the end of a name, where it has room for them.
const DIGITS: usize = 12;
/// Time for which a process that was killed, or that was asked to leave its flows, may still exist.
const KILLED: Duration = Duration::from_secs(1);
const RELIEVED: Duration = Duration::from_secs(15);
/// Attempts to bind a name, each with another number.
const TRIES: u32 = 100;

/// Reason why the claim failed.
#[derive(Debug, thiserror::Error)]
pub enum ClaimError {
    /// Remedy: change the key, or stop the other pepd.
    #[error(
        "another pepd (process {process}) already uses {what}: stop it, or give this one \
         another `{key}`"
    )]
    Taken {
        /// Process id of the other.
        process: u32,
        /// Resource that both want.
        what: String,
        /// Configuration key of the resource.
        key: &'static str,
    },
    /// Remedy: wait, or restore the predecessor's settings.
    #[error(
        "flows of an ended pepd (process {process}) use {what} and cannot be taken over: other keys \
         of [intercept] differ; restore them, drop the flows (kill -9 {keeper}), or wait a minute"
    )]
    Abandoned {
        /// Process id of the other.
        process: u32,
        /// Process that keeps its sockets.
        keeper: u32,
        /// Resource that both want.
        what: String,
    },
    /// Descriptors are short, or `/proc` is missing.
    #[error("cannot detect other pepds in this network namespace")]
    System(#[from] io::Error),
}

/// Claim of a running pepd, held for as long as this lives.
#[derive(Debug)]
pub struct Claim {
    socket: UnixDatagram,
    #[expect(dead_code, reason = "open for as long as the claim lives")]
    lan: UnixDatagram,
    uses: Uses,
    draining: Option<UnixDatagram>,
}

impl Claim {
    /// Claims the resources of a configuration, and finds the keepers of flows to be taken over.
    /// Retries for a while: the claim of a pepd that was just killed may still exist. `keeper` is
    /// the process that keeps this process's sockets, if there is one.
    ///
    /// # Errors
    /// [`ClaimError::Taken`] when a running pepd of this network namespace uses some of them.
    /// [`ClaimError::Abandoned`] when a pepd that has ended left flows that use them and cannot be
    /// succeeded.
    pub async fn take(
        config: &Config,
        keeper: Option<u32>,
    ) -> Result<(Self, Vec<u32>), ClaimError> {
        let uses = Uses::new(config, process::id(), keeper.unwrap_or(0));
        let mut left = uses.left(&others()?);
        if let Err(ClaimError::Taken { process, .. }) = left {
            let is_asked = if discovery::is_unguarded(process) {
                discovery::relieve(process);
                true
            } else {
                drains(process)?
                    && uses.may_succeed(process, &others()?)
                    && discovery::relieve_of_drain(process)
            };
            // Once asked, it ends: this process must not give up before.
            let patience = if is_asked { RELIEVED } else { KILLED };
            if let Err(err) = end_of(process, patience).await {
                tracing::debug!(error = %err, process, "cannot wait for the end of another pepd");
            }
            left = uses.left(&others()?);
        }
        let keepers = left?;
        let lan = bind(&lan_name(process::id(), config))?;
        let socket = bind(&uses.to_name())?;
        let claim = Self {
            socket,
            lan,
            uses,
            draining: None,
        };
        Ok((claim, keepers))
    }

    /// Publishes that this process drains: a pepd that starts now may take over its flows.
    ///
    /// # Errors
    /// Fails without a descriptor for it: the other pepd ends in [`ClaimError::Taken`] then.
    pub fn set_draining(&mut self) -> io::Result<()> {
        self.draining = Some(bind(&drain_name(self.uses.process))?);
        Ok(())
    }

    /// Publishes that this process's flows are about to end: none can be taken over any more.
    pub fn end_drain(&mut self) {
        self.draining = None;
    }

    /// Publishes a new keeper of this process's sockets.
    ///
    /// # Errors
    /// Fails without a descriptor for it; the claim stays unchanged.
    pub fn set_keeper(&mut self, keeper: u32) -> io::Result<()> {
        let uses = Uses {
            keeper,
            ..self.uses.clone()
        };
        self.socket = bind(&uses.to_name())?;
        self.uses = uses;
        Ok(())
    }
}

/// Binds a name, followed by a random number. Without it, another user could bind the name first.
fn bind(name: &str) -> io::Result<UnixDatagram> {
    let mut tries = 0..TRIES;
    loop {
        let random = format!("{:016x}", RandomState::new().hash_one(name));
        let room = (NAME_MAX - 1).saturating_sub(name.len()).min(DIGITS);
        let name = format!("{name}/{}", &random[..room]);
        let bound = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name)?);
        let is_taken = |err: &io::Error| err.kind() == io::ErrorKind::AddrInUse;
        if !bound.as_ref().is_err_and(is_taken) || tries.next().is_none() {
            return bound;
        }
    }
}

/// Returns the name of a process that drains, but for the random number.
fn drain_name(process: u32) -> String {
    format!("{DRAIN_PREFIX}{process}")
}

/// Returns whether a pepd has published that it drains.
fn drains(process: u32) -> io::Result<bool> {
    let name = drain_name(process) + "/";
    let Names { sockets, mut judge } = Names::list()?;
    let mut named = sockets
        .iter()
        .filter(|socket| socket.name.starts_with(&name));
    Ok(named.any(|socket| judge.is_of_pepd(socket, process, 0)))
}

/// Returns the name that holds the process and its LAN interfaces, or as many as fit: four of the
/// longest names.
fn lan_name(process: u32, config: &Config) -> String {
    let mut name = format!("{LAN_PREFIX}{process}");
    for interface in &config.intercept.lan {
        let interface = interface.as_str();
        if name.len() + 1 + interface.len() + 1 + DIGITS > NAME_MAX {
            break;
        }
        name = name + "/" + interface;
    }
    name
}

/// Returns the process and the interfaces in such a name; `None` for other names.
fn parse_lan(name: &str) -> Option<(u32, Vec<&str>)> {
    let (process, interfaces) = name.strip_prefix(LAN_PREFIX)?.split_once('/')?;
    let (interfaces, _random) = interfaces.rsplit_once('/')?;
    Some((process.parse().ok()?, interfaces.split('/').collect()))
}

/// Finds a running pepd with another configuration that takes connections of an interface of this
/// one. Returns its process and the interface.
///
/// # Errors
/// Fails when descriptors are short, or `/proc` is missing.
pub fn rival(config: &Config) -> io::Result<Option<(u32, String)>> {
    let uses = Uses::new(config, process::id(), 0);
    let mut names = Names::list()?;
    let conflicts = |other: &Uses| uses.conflict(other).is_some();
    let others = names.claims().into_iter().filter(conflicts);
    let own: Vec<_> = others.map(|other| other.process).collect();
    let is_ours = |name: &&str| config.intercept.lan.iter().any(|lan| lan.as_str() == *name);
    // The name of an ended process lives as long as its keeper.
    let runs = |process: u32| fs::exists(format!("/proc/{process}")).unwrap_or(false);
    let Names { sockets, judge } = &mut names;
    Ok(sockets.iter().find_map(|socket| {
        let (process, lan) = parse_lan(&socket.name)?;
        let shared = *lan.iter().find(|name| is_ours(name))?;
        let is_other = process != uses.process && !own.contains(&process);
        (is_other && judge.is_of_pepd(socket, process, 0) && runs(process))
            .then(|| (process, shared.to_owned()))
    }))
}

/// Returns a process that uses resources of a configuration, or keeps its flows for the next
/// process.
///
/// # Errors
/// Fails when descriptors are short, or `/proc` is missing.
pub fn user_of(config: &Config) -> io::Result<Option<u32>> {
    let uses = Uses::new(config, process::id(), 0);
    let user = others()?
        .into_iter()
        .find(|other| uses.conflict(other).is_some());
    Ok(user.map(|other| other.process))
}

/// Ends the keepers of ended processes that used resources of a configuration.
pub fn end_keepers_of(config: &Config) {
    let uses = Uses::new(config, process::id(), 0);
    let found = others().map(|others| uses.left(&others));
    let Ok(Ok(keepers)) = found else {
        return;
    };
    for keeper in keepers {
        let killed =
            i32::try_from(keeper).map(|keeper| kill(Pid::from_raw(keeper), Signal::SIGKILL));
        tracing::debug!(
            keeper,
            ?killed,
            "keeper of an ended pepd killed: its sockets close"
        );
    }
}

/// Waits until a process, and with it its claim, has ended.
async fn end_of(process: u32, patience: Duration) -> io::Result<()> {
    let process = i32::try_from(process).map_err(io::Error::other)?;
    let process = pepd_sys::process::pidfd_open(Pid::from_raw(process))?;
    let process = pepd_sys::reactor::register(process, Interest::READABLE)?;
    let ended = timeout(patience, process.readable()).await?;
    ended.map(drop)
}

/// Returns the claims in this network namespace, without those of strangers.
fn others() -> io::Result<Vec<Uses>> {
    Ok(Names::list()?.claims())
}

/// Names of pepd's sockets in this network namespace at one moment.
#[derive(Debug)]
struct Names {
    sockets: Vec<Abstract>,
    judge: Judge,
}

impl Names {
    fn list() -> io::Result<Self> {
        Ok(Self {
            sockets: abstract_sockets(ALL_PREFIX)?,
            judge: Judge::default(),
        })
    }

    /// Returns the claims, without those of strangers, and logs how many these are.
    fn claims(&mut self) -> Vec<Uses> {
        let (mut found, mut ignored) = (Vec::new(), 0_u64);
        for socket in &self.sockets {
            let Some((process, keeper)) = Uses::processes(&socket.name) else {
                continue;
            };
            // Before a closer look: what a stranger's name states may be large.
            if self.judge.is_of_pepd(socket, process, keeper) {
                found.extend(Uses::parse(&socket.name));
                continue;
            }
            ignored += 1;
            if ignored == 1 {
                let Abstract { name, owner, .. } = socket;
                tracing::debug!(
                    name,
                    owner,
                    "claim ignored: it is of a user other than pepd's"
                );
            }
        }
        if ignored > 1 {
            tracing::debug!(ignored, "claims of users other than pepd's ignored");
        }
        found
    }
}

/// Resources of a pepd that another in the same network namespace cannot use.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Uses {
    process: u32,
    /// Process that keeps its sockets; 0 where none does.
    keeper: u32,
    table: String,
    ports: RangeInclusive<u32>,
    marks: Vec<u32>,
    mask: u32,
    route_tables: RangeInclusive<u32>,
}

impl Uses {
    fn new(config: &Config, process: u32, keeper: u32) -> Self {
        let intercept = &config.intercept;
        let (first, last) = config.listen_ports().into_inner();
        let tuns = (intercept.lan.len() + config.packet_tuns()) as u32;
        let table = intercept.route_table;
        Self {
            process,
            keeper,
            table: intercept.table.to_string(),
            ports: first.into()..=last.into(),
            marks: marks(intercept.marks, Marks::FIXED + tuns),
            mask: intercept.marks.mask(),
            route_tables: table..=table + tuns,
        }
    }

    /// Encodes the claim, but for the random number. At most 106 bytes; the name of an abstract
    /// socket has room for 107.
    fn to_name(&self) -> String {
        let Self { process, table, .. } = self;
        let range = |range: &RangeInclusive<u32>| {
            format!("{}+{}", range.start(), range.end() - range.start())
        };
        let (ports, tables) = (range(&self.ports), range(&self.route_tables));
        let first = self.marks.first().copied().unwrap_or_default();
        let (keeper, count, mask) = (self.keeper, self.marks.len(), self.mask);
        format!("{PREFIX}{process}+{keeper}/{table}/{ports}/{first:x}+{count}/{mask:x}/{tables}")
    }

    /// Returns the process and the keeper in the name of a claim; `None` for most other names.
    fn processes(name: &str) -> Option<(u32, u32)> {
        let (processes, _) = name.strip_prefix(PREFIX)?.split_once('/')?;
        pair(processes)
    }

    /// Decodes a claim; `None` for other names. A claim has a list of its marks, so that a few
    /// digits may take gigabytes: decode no claim of a stranger.
    fn parse(name: &str) -> Option<Self> {
        let fields: Vec<_> = name.strip_prefix(PREFIX)?.split('/').collect();
        let [processes, table, ports, first_marks, mask, tables, _random] = fields.as_slice()
        else {
            return None;
        };
        let range = |text: &str| -> Option<RangeInclusive<u32>> {
            let (first, more) = pair(text)?;
            Some(first..=first.checked_add(more)?)
        };
        let hex = |text: &str| u32::from_str_radix(text, 16).ok();
        let (first, count) = first_marks.split_once('+')?;
        let all = Marks::new(hex(first)?, hex(mask)?)?;
        let (process, keeper) = pair(processes)?;
        Some(Self {
            process,
            keeper,
            table: (*table).to_owned(),
            ports: range(ports)?,
            marks: marks(all, count.parse().ok()?),
            mask: hex(mask)?,
            route_tables: range(tables)?,
        })
    }

    /// Returns keepers of ended processes whose flows this process takes over, if no other pepd
    /// conflicts.
    fn left(&self, others: &[Self]) -> Result<Vec<u32>, ClaimError> {
        let mut found = Vec::new();
        for other in others {
            let Some((key, what)) = self.conflict(other) else {
                continue;
            };
            let (process, keeper) = (other.process, other.keeper);
            if !discovery::has_left(process, keeper) {
                return Err(ClaimError::Taken { process, what, key });
            }
            if !self.succeeds(other) {
                return Err(ClaimError::Abandoned {
                    process,
                    keeper,
                    what,
                });
            }
            found.push(keeper);
        }
        Ok(found)
    }

    /// Returns whether this process could take over the flows of another one that still runs.
    fn may_succeed(&self, process: u32, others: &[Self]) -> bool {
        let other = others.iter().find(|other| other.process == process);
        other.is_some_and(|other| other.keeper != 0 && self.succeeds(other))
    }

    /// Returns whether packets of the other's flows reach this process as they reached the other.
    /// Sites and interfaces may have been added.
    fn succeeds(&self, other: &Self) -> bool {
        self.table == other.table
            && self.mask == other.mask
            && self.marks.first() == other.marks.first()
            && self.route_tables.start() == other.route_tables.start()
    }

    /// Returns the key whose values collide, and the resource used by both.
    fn conflict(&self, other: &Self) -> Option<(&'static str, String)> {
        if self.table == other.table {
            return Some(("intercept.table", format!("the nft table {}", self.table)));
        }
        if let Some(port) = overlap(&self.ports, &other.ports) {
            return Some(("intercept.listen_port", format!("port {port}")));
        }
        if let Some(table) = overlap(&self.route_tables, &other.route_tables) {
            return Some((
                "intercept.route_table",
                format!("the routing table {table}"),
            ));
        }
        let mark = self.mark_mistaken_by(other);
        let mark = mark.or_else(|| other.mark_mistaken_by(self))?;
        Some(("intercept.mark", format!("the mark {mark:#x}")))
    }

    /// Returns a mark of this process that the other would take for one of its own.
    fn mark_mistaken_by(&self, other: &Self) -> Option<u32> {
        let theirs = |mark: &&u32| other.marks.contains(&(*mark & other.mask));
        self.marks.iter().find(theirs).copied()
    }
}

/// Returns two numbers, written with a plus between them.
fn pair(text: &str) -> Option<(u32, u32)> {
    let (first, second) = text.split_once('+')?;
    Some((first.parse().ok()?, second.parse().ok()?))
}

/// Returns the first `count` marks.
fn marks(all: Marks, count: u32) -> Vec<u32> {
    (0..count).map_while(|index| all.get(index)).collect()
}

/// Returns the first number in both ranges.
fn overlap(a: &RangeInclusive<u32>, b: &RangeInclusive<u32>) -> Option<u32> {
    let first = *a.start().max(b.start());
    (a.contains(&first) && b.contains(&first)).then_some(first)
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use futures_util::FutureExt as _;
    use nix::unistd::{geteuid, setfsuid};
    use tokio::runtime;

    use super::*;

    fn uses(keys: &str) -> Uses {
        let text = format!("[intercept]\nlan = [\"lan0\", \"lan1\"]\n{keys}\n");
        Uses::new(&pep_core::config::parse(&text).expect("valid"), 1, 0)
    }

    const APART: &str =
        "table = \"b\"\nlisten_port = 5001\nmark = 0x60000000\nroute_table = 5003\n";

    #[test]
    fn a_claim_is_read_back_from_its_name_which_fits() {
        let longest = format!(
            "table = \"{}\"\nlisten_port = 65535\nmark = 0x80000000\nmark_mask = 0xfffffff0\n\
             route_table = 2000000000\n",
            "a".repeat(32)
        );
        for keys in ["", APART, &longest] {
            let uses = Uses {
                process: 4_194_304, // as high as process ids get
                keeper: 4_194_303,
                ..uses(keys)
            };
            // Enough digits that no user can bind all names.
            let name = uses.to_name() + "/12345678";
            assert!(name.len() <= NAME_MAX, "{name}");
            assert_eq!(Uses::processes(&name), Some((uses.process, uses.keeper)));
            assert_eq!(Uses::parse(&name), Some(uses));
        }
        for name in [
            "",
            "pepd/",
            "pepd/1+2/a/5+1/50+2/ff/1/x",
            "pepd/1+2/a/5+1/0+2/ff/1+1/x",
            "pepd/1/a/5+1/50+2/ff/1+1/x",
            "pepd/1+2/a/5+1/50+2/ff/1+1",
        ] {
            assert_eq!(Uses::parse(name), None, "{name}");
        }
    }

    fn config(lan: &[String]) -> Config {
        let text = format!("[intercept]\nlan = {lan:?}\n");
        pep_core::config::parse(&text).expect("valid")
    }

    #[test]
    fn interfaces_are_read_back_from_a_name_as_far_as_they_fit() {
        let names: Vec<_> = (10..20)
            .map(|number| format!("wlx00c0ca9a7{number}"))
            .collect();
        let name = lan_name(4_194_304, &config(&names)) + "/123456789abc";
        assert!(name.len() <= NAME_MAX, "{name}");
        let (process, read) = parse_lan(&name).expect("a name");
        assert_eq!(process, 4_194_304);
        assert_eq!(read, names[..read.len()]);
        assert!(read.len() >= 4, "{read:?}");
        for name in [
            "pepd-lan/1",
            "pepd-lan/1/eth0",
            "pepd-lan/x/eth0/f",
            "pepd/1/eth0/f",
            "",
        ] {
            assert_eq!(parse_lan(name), None, "{name}");
        }
    }

    #[test]
    fn another_pepd_on_the_same_interface_is_found() {
        let mut child = Command::new("cat")
            .stdin(Stdio::piped())
            .spawn()
            .expect("cat");
        let lan = [format!("test{}", process::id())];
        let config = config(&lan);
        assert_eq!(rival(&config).expect("a /proc"), None);
        let socket = bind(&lan_name(child.id(), &config)).expect("a free name");
        let found = rival(&config).expect("a /proc");
        assert_eq!(found, Some((child.id(), lan[0].clone())));
        drop(child.stdin.take());
        child.wait().expect("a child process");
        assert_eq!(rival(&config).expect("a /proc"), None, "it has ended");
        drop(socket);
    }

    #[test]
    fn a_claim_of_another_user_does_not_count() {
        let sockets = abstract_sockets("").expect("an answer");
        let has_owners = sockets.iter().all(|socket| socket.owner.is_some());
        if !geteuid().is_root() || !has_owners {
            eprintln!("not tried: a socket of another user");
            return;
        }
        // Unlike any claim of a test that runs beside this one.
        let text = format!(
            "[intercept]\nlan = [\"lan0\"]\ntable = \"t{}\"\n",
            process::id()
        );
        let config = pep_core::config::parse(&text).expect("valid");
        // Names of living processes of root, as a stranger may choose any.
        let uses = Uses::new(&config, 1, process::id());
        let is_claimed = || {
            let others = others().expect("an answer");
            others.iter().any(|other| other.table == uses.table)
        };
        assert!(!is_claimed());
        // Of this thread only.
        setfsuid(65534.into());
        let _claim = bind(&uses.to_name()).expect("a free name");
        let _lan = bind(&lan_name(1, &config)).expect("a free name");
        setfsuid(0.into());
        assert!(!is_claimed());
        assert_eq!(rival(&config).expect("an answer"), None);
        let _own = bind(&uses.to_name()).expect("a free name");
        assert!(is_claimed());
    }

    #[test]
    fn no_name_is_bound_twice() {
        let name = format!("pepd-test/{}", process::id());
        let _all: Vec<_> = (0..50).map(|_| bind(&name).expect("a free name")).collect();
        let sockets = abstract_sockets(&name).expect("an answer");
        let length = name.len() + 1 + DIGITS;
        assert!(sockets.len() == 50 && sockets.iter().all(|socket| socket.name.len() == length));
    }

    #[test]
    fn the_end_of_a_process_is_waited_for() {
        let mut child = Command::new("cat")
            .stdin(Stdio::piped())
            .spawn()
            .expect("cat");
        let runtime = runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("an event loop").block_on(async {
            assert!(
                end_of(child.id(), KILLED).now_or_never().is_none(),
                "it runs"
            );
            drop(child.stdin.take());
            end_of(child.id(), KILLED)
                .await
                .expect("end of the process");
        });
        let status = child.try_wait().expect("a child process");
        assert!(status.is_some_and(|status| status.success()), "{status:?}");
    }

    #[test]
    fn two_that_differ_in_four_keys_do_not_collide() {
        assert_eq!(uses("").conflict(&uses(APART)), None);
    }

    #[test]
    fn who_has_added_a_site_still_succeeds_and_who_has_another_mark_does_not() {
        let before = uses("");
        assert!(uses("[[site]]\nname = \"new\"\n").succeeds(&before));
        assert!(!uses("mark = 0x60000000\n").succeeds(&before));
        assert!(!uses("route_table = 5003\n").succeeds(&before));
    }

    #[test]
    fn each_key_left_alike_is_a_conflict_of_its_own() {
        for (key, value) in [
            ("intercept.table", "table = \"b\"\n"),
            ("intercept.listen_port", "listen_port = 5001\n"),
            ("intercept.mark", "mark = 0x60000000\n"),
            ("intercept.route_table", "route_table = 5003\n"),
        ] {
            let other = uses(&APART.replace(value, ""));
            let found = uses("").conflict(&other);
            assert_eq!(found.map(|(key, _)| key), Some(key));
        }
    }

    #[test]
    fn marks_collide_across_masks() {
        let narrow = uses(
            "table = \"b\"\nlisten_port = 5001\nroute_table = 5003\nmark = 0x1000000\n\
             mark_mask = 0xf000000\n",
        );
        // 0x51 of this process, seen through the other's mask, is its 0x1.
        let found = uses("").conflict(&narrow);
        assert_eq!(
            found,
            Some(("intercept.mark", "the mark 0x51000000".to_owned()))
        );
    }
}
