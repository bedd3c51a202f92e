//! Discovery of flows to be taken over.
//!
//! A [claim](crate::survive::claim) names the process that carries flows and the keeper of its
//! sockets. The former is the keeper's parent for as long as it lives. The parent changes at the
//! moment at which the process has completed its last system call. Process ids alone may already
//! belong to another process by then.

use std::{
    collections::{HashMap, HashSet},
    ffi::CStr,
    fs,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::{Pid, geteuid},
};
use pepd_sys::unix_names::Abstract;

/// Process name of the supervisor, which restarts the process that carries flows.
pub const SUPERVISOR: &CStr = c"pepd-supervisor";

/// CAP_NET_ADMIN, CAP_NET_RAW and CAP_NET_BIND_SERVICE, which each process of pepd has.
const CAPABILITIES: u64 = 1 << 12 | 1 << 13 | 1 << 10;

/// Processes of which one user's sockets may state other ones before the rest do not count. No pepd
/// has that many claims: it has two, and leaves one with each crash until its keeper ends.
const STATED_MAX: u32 = 256;

/// Judge of the sockets of one listing.
///
/// Any local user can bind thousands of names. The kernel states the owners of their sockets, so
/// that those of root and of this process's user need no look at `/proc`. Other sockets cost one
/// look per process that their names state, and [`STATED_MAX`] looks per owner.
#[derive(Debug, Default)]
pub(super) struct Judge {
    rights: HashMap<u32, Option<Rights>>,
    /// Inodes of the sockets that processes hold; `None` if they cannot be read.
    held: HashMap<u32, Option<HashSet<u32>>>,
    /// Looks at processes for sockets of each owner.
    looks: HashMap<u32, u32>,
}

impl Judge {
    /// Returns whether a pepd has made the socket with a name that states this process and keeper
    /// (0 for none). Any local user could have: the socket must be of root, of this process's user,
    /// or of the user of a process with pepd's capabilities (the service's dynamic user).
    pub(super) fn is_of_pepd(&mut self, socket: &Abstract, process: u32, keeper: u32) -> bool {
        let mut stated = [keeper, process]
            .into_iter()
            .filter(|process| *process != 0);
        match socket.owner {
            Some(owner) if is_trusted(owner) => true,
            Some(owner) => stated.any(|process| {
                let rights = self.rights_for(owner, process);
                rights.is_some_and(|rights| rights.are_of_pepd_as(owner))
            }),
            None => stated.any(|process| {
                let is_trusted = self.rights(process).is_some_and(|rights| {
                    is_trusted(rights.user) || rights.are_of_pepd_as(rights.user)
                });
                is_trusted && self.holds(process, socket.inode)
            }),
        }
    }

    /// Returns the rights of a process that a socket of this owner states; `None` if there is no
    /// such process, or the owner's sockets have stated too many others.
    fn rights_for(&mut self, owner: u32, process: u32) -> Option<Rights> {
        if !self.rights.contains_key(&process) {
            let looks = self.looks.entry(owner).or_default();
            if *looks == STATED_MAX {
                return None;
            }
            *looks += 1;
        }
        self.rights(process)
    }

    fn rights(&mut self, process: u32) -> Option<Rights> {
        let rights = self.rights.entry(process);
        *rights.or_insert_with(|| Rights::of(process))
    }

    /// Returns whether a process has a descriptor of a socket. The descriptors of a process that is
    /// not dumpable cannot be read, and count as any.
    fn holds(&mut self, process: u32, inode: u32) -> bool {
        let held = self.held.entry(process).or_insert_with(|| held(process));
        held.as_ref().is_none_or(|held| held.contains(&inode))
    }
}

fn is_trusted(user: u32) -> bool {
    user == 0 || user == geteuid().as_raw()
}

/// Returns the inodes of the sockets that a process holds; `None` if they cannot be read.
fn held(process: u32) -> Option<HashSet<u32>> {
    let descriptors = fs::read_dir(format!("/proc/{process}/fd")).ok()?.flatten();
    let sockets = descriptors.filter_map(|entry| {
        let link = fs::read_link(entry.path()).ok()?;
        let inode = link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?;
        inode.parse().ok()
    });
    Some(sockets.collect())
}

/// User and capabilities of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Rights {
    user: u32,
    /// Permitted capabilities; none of another user namespace.
    capabilities: u64,
}

impl Rights {
    /// Returns those of a process that runs as one user.
    fn of(process: u32) -> Option<Self> {
        let map = |process: &str| fs::read(format!("/proc/{process}/uid_map")).ok();
        let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
        let mut rights = Self::parse(&status)?;
        // Anyone has all capabilities in a user namespace of their own.
        if map(&process.to_string())? != map("self")? {
            rights.capabilities = 0;
        }
        Some(rights)
    }

    fn parse(status: &str) -> Option<Self> {
        let field = |name| status.lines().find_map(|line| line.strip_prefix(name));
        let users = field("Uid:")?.split_whitespace();
        let users: Vec<u32> = users.map(str::parse).collect::<Result<_, _>>().ok()?;
        let user = *users.first()?;
        let capabilities = u64::from_str_radix(field("CapPrm:")?.trim(), 16).ok()?;
        let is_one = users.iter().all(|other| *other == user);
        is_one.then_some(Self { user, capabilities })
    }

    fn are_of_pepd_as(self, user: u32) -> bool {
        self.user == user && self.capabilities & CAPABILITIES == CAPABILITIES
    }
}

/// Returns whether a process has ended and left its sockets to that keeper, as far as visible from
/// this process.
pub(super) fn has_left(process: u32, keeper: u32) -> bool {
    is_keeper(keeper) && parent(keeper).is_some_and(|parent| parent != process)
}

/// Returns whether a process carries flows without a supervisor, because that was killed.
pub(super) fn is_unguarded(process: u32) -> bool {
    let carries = || children(process).into_iter().any(is_keeper);
    parent(process).is_some_and(|guard| !has_name(guard, SUPERVISOR) && carries())
}

/// Asks an unsupervised process to leave its flows to a successor.
pub(super) fn relieve(process: u32) {
    tracing::warn!(
        process,
        "taking over the flows of a pepd without a supervisor"
    );
    ask(process, Signal::SIGUSR2);
}

/// Asks a process that drains to leave its flows to a successor, by its supervisor. Returns false
/// if it has none.
pub(super) fn relieve_of_drain(process: u32) -> bool {
    let guard = parent(process).filter(|guard| has_name(*guard, SUPERVISOR));
    let Some(guard) = guard else {
        return false;
    };
    tracing::warn!(process, "taking over the flows of a pepd that drains");
    ask(guard, Signal::SIGQUIT);
    true
}

fn ask(process: u32, signal: Signal) {
    let Ok(process) = i32::try_from(process) else {
        return;
    };
    // ESRCH: the process has just ended, as wanted.
    if let Err(err) = kill(Pid::from_raw(process), signal) {
        tracing::debug!(error = %err, "cannot signal the pepd to hand over its flows");
    }
}

fn is_keeper(process: u32) -> bool {
    has_name(process, pepd_sys::keeper::NAME)
}

fn has_name(process: u32, name: &CStr) -> bool {
    fs::read(format!("/proc/{process}/comm"))
        .is_ok_and(|comm| comm.trim_ascii_end() == name.to_bytes())
}

fn parent(process: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("PPid:"))?;
    line.trim().parse().ok()
}

fn children(process: u32) -> Vec<u32> {
    let threads = fs::read_dir(format!("/proc/{process}/task"));
    let lists = threads.into_iter().flatten().flatten().map(|thread| {
        let children = fs::read_to_string(thread.path().join("children"));
        children.unwrap_or_default()
    });
    let numbers: Vec<_> = lists
        .flat_map(|list| {
            let numbers = list.split_whitespace().map(str::parse);
            numbers.collect::<Vec<_>>()
        })
        .collect();
    numbers.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use std::process;

    use super::*;
    use crate::survive::keeper::{Keeper, PATIENCE};

    #[test]
    fn a_socket_is_of_pepd_by_its_owner_or_the_rights_of_its_process() {
        let rights = |users: &str, capabilities: &str| {
            Rights::parse(&format!(
                "Name:\tx\nUid:\t{users}\nCapPrm:\t{capabilities}\n"
            ))
        };
        let some = rights("7\t7\t7\t7", "0000000000003400").expect("rights");
        assert!(some.are_of_pepd_as(7) && !some.are_of_pepd_as(8));
        let fewer = rights("7\t7\t7\t7", "0000000000003000").expect("rights");
        assert!(!fewer.are_of_pepd_as(7));
        assert_eq!(rights("7\t0\t0\t0", "0000000000003400"), None, "two users");
        let own = geteuid().as_raw();
        let socket = |owner| Abstract {
            name: String::new(),
            inode: 0,
            owner,
        };
        let is_of_pepd = |socket: &Abstract, process, keeper| {
            Judge::default().is_of_pepd(socket, process, keeper)
        };
        assert!(is_of_pepd(&socket(Some(0)), 0, 0));
        assert!(is_of_pepd(&socket(Some(own)), 0, 0));
        // Process 1 is root's, and no stranger's socket is in it.
        let stranger = own + 12_345;
        assert!(!is_of_pepd(&socket(Some(stranger)), 1, process::id()));
        assert!(!is_of_pepd(&socket(None), process::id(), 0));
        assert!(!is_of_pepd(&socket(None), 0, 0));
    }

    #[test]
    fn a_socket_without_a_known_owner_is_of_the_process_that_holds_it() {
        let held = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let number = std::os::fd::AsRawFd::as_raw_fd(&held);
        let link = fs::read_link(format!("/proc/self/fd/{number}")).unwrap();
        let link = link.to_string_lossy().into_owned();
        let inode = link.trim_start_matches("socket:[").trim_end_matches(']');
        let socket = Abstract {
            name: String::new(),
            inode: inode.parse().unwrap(),
            owner: None,
        };
        let mut judge = Judge::default();
        assert!(judge.is_of_pepd(&socket, process::id(), 0));
        assert!(judge.is_of_pepd(&socket, 0, process::id()));
        let other = Abstract { inode: 0, ..socket };
        assert!(!judge.is_of_pepd(&other, process::id(), 0));
        assert_eq!((judge.rights.len(), judge.held.len()), (1, 1), "one look");
    }

    #[test]
    fn many_names_of_a_stranger_cost_few_looks_at_processes_and_hide_no_claim() {
        let socket = |owner| Abstract {
            name: String::new(),
            inode: 0,
            owner: Some(owner),
        };
        let own = geteuid().as_raw();
        let mut judge = Judge::default();
        for process in 1..20_000 {
            assert!(judge.is_of_pepd(&socket(0), process, process + 1));
            assert!(judge.is_of_pepd(&socket(own), process, process + 1));
        }
        assert_eq!(judge.rights.len(), 0, "the kernel has stated the owners");
        let stranger = own + 12_345;
        for _ in 0..20_000 {
            assert!(!judge.is_of_pepd(&socket(stranger), 1, process::id()));
        }
        assert_eq!(judge.rights.len(), 2, "one look at each process");
        for process in 1..20_000 {
            assert!(!judge.is_of_pepd(&socket(stranger), process, process + 1));
        }
        assert!(judge.rights.len() <= STATED_MAX as usize);
        // A service with a user of its own.
        let (user, running) = (stranger + 1, 1 << 23);
        let rights = Rights {
            user,
            capabilities: CAPABILITIES,
        };
        judge.rights.insert(running, Some(rights));
        assert!(judge.is_of_pepd(&socket(user), running, 0));
        assert!(judge.is_of_pepd(&socket(user), 0, running));
        assert!(!judge.is_of_pepd(&socket(stranger), running, 0));
        assert!(judge.held.is_empty());
    }

    #[test]
    fn who_lives_has_no_successor_and_is_left_alone_unless_it_has_a_keeper() {
        assert!(!is_unguarded(process::id()));
        let keeper = Keeper::new(PATIENCE).unwrap();
        assert!(is_keeper(keeper.id()));
        assert!(!has_left(process::id(), keeper.id()));
        assert!(is_unguarded(process::id()));
        // Its parent is another process than the one passed.
        assert!(has_left(1, keeper.id()));
        assert!(!has_left(1, process::id()), "not a keeper");
        assert!(!has_left(1, 0));
    }
}
