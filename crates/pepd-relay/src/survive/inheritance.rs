//! Descriptors of a predecessor, found by kind: their numbers mean nothing to another process.

use std::{
    collections::HashMap,
    fs, io,
    net::SocketAddr,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    time::Duration,
};

use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    unistd::Pid,
};
use pepd_sys::process;
use socket2::{Protocol, SockRef, Socket};

use crate::arena::Arena;

/// Name of the memory in which the paths to peers are kept.
pub const PATHS: &str = "pepd-paths";

/// Descriptors of predecessors. If dropped before it is [used](Self::into_flows), the sockets stay
/// open with the keeper: a process that fails to start resets no flow.
#[derive(Debug, Default)]
pub struct Inheritance {
    /// Memory of their flows.
    arena: Option<OwnedFd>,
    /// Known paths to peers, where they are kept in no file.
    paths: Option<OwnedFd>,
    /// TCP listeners, by cookie. Clients may wait in their queues.
    listeners: HashMap<u64, Socket>,
    /// Other TCP sockets, by cookie.
    legs: HashMap<u64, OwnedFd>,
    /// Listeners given away as copies: the originals stay open in case the start fails.
    taken: Vec<Socket>,
    /// Maps of eBPF programs.
    maps: Vec<OwnedFd>,
    /// Processes that keep the sockets of ended ones.
    keepers: Vec<OwnedFd>,
    any: bool,
}

impl Inheritance {
    /// Takes all descriptors of these keepers.
    ///
    /// # Errors
    /// Fails without permission to inspect a keeper, or with too few descriptors. Descriptors taken
    /// so far stay open in the keeper.
    pub fn take(keepers: &[u32]) -> io::Result<Self> {
        let mut inheritance = Self::default();
        for keeper in keepers {
            inheritance.take_from(*keeper)?;
        }
        Ok(inheritance)
    }

    /// Returns whether there was no predecessor.
    pub fn is_empty(&self) -> bool {
        !self.any
    }

    fn take_from(&mut self, keeper: u32) -> io::Result<()> {
        let pid = Pid::from_raw(i32::try_from(keeper).map_err(io::Error::other)?);
        let keeper_fd = process::pidfd_open(pid)?;
        for entry in fs::read_dir(format!("/proc/{keeper}/fd"))? {
            let entry = entry?;
            let Some(number) = entry
                .file_name()
                .to_str()
                .and_then(|name| name.parse().ok())
            else {
                continue;
            };
            let Ok(link) = fs::read_link(entry.path()) else {
                continue;
            };
            let link = link.to_string_lossy();
            let is_memory = |name: &str| {
                let link = link.strip_prefix("/memfd:");
                link.is_some_and(|link| link.starts_with(name))
            };
            let (is_arena, is_paths) = (is_memory(Arena::NAME), is_memory(PATHS));
            let is_map = link == "anon_inode:bpf-map";
            if !is_arena && !is_paths && !is_map && !link.starts_with("socket:") {
                continue;
            }
            let fd = process::pidfd_getfd(keeper_fd.as_fd(), number)?;
            if is_arena {
                self.arena.get_or_insert(fd);
            } else if is_paths {
                self.paths.get_or_insert(fd);
            } else if is_map {
                self.maps.push(fd);
            } else {
                self.sort(fd);
            }
        }
        self.keepers.push(keeper_fd);
        self.any = true;
        Ok(())
    }

    /// Only TCP sockets are inherited; the others close with their keeper.
    fn sort(&mut self, fd: OwnedFd) {
        let socket = Socket::from(fd);
        if !matches!(socket.protocol(), Ok(Some(Protocol::TCP))) {
            return;
        }
        // Two keepers may have the same one: a process ended between taking over and ending the
        // keeper before.
        let Ok(cookie) = socket.cookie() else {
            return;
        };
        if socket.is_listener().unwrap_or(false) {
            self.listeners.insert(cookie, socket);
        } else {
            // An error does not matter: sockets that pepd probes accept these options.
            let _ = pepd_sys::socket::end_probe(socket.as_fd());
            self.legs.insert(cookie, socket.into());
        }
    }

    /// Takes the maps of its eBPF programs, some of which may keep congestion controls registered.
    pub fn take_maps(&mut self) -> Vec<OwnedFd> {
        std::mem::take(&mut self.maps)
    }

    /// Takes the known paths to peers.
    pub fn take_paths(&mut self) -> Option<OwnedFd> {
        self.paths.take()
    }

    /// Returns copies of the listeners at an address, at most `most`. Clients that wait at the
    /// others are accepted with the [flows](Self::into_flows).
    ///
    /// # Errors
    /// Fails with too few descriptors.
    pub fn take_listeners(&mut self, address: SocketAddr, most: usize) -> io::Result<Vec<Socket>> {
        let mut left = most;
        let there = self.extract(|local| {
            let is_taken = local == address && left > 0;
            left -= usize::from(is_taken);
            is_taken
        });
        let copies = there.iter().map(Socket::try_clone).collect();
        self.taken.extend(there);
        copies
    }

    /// Closes inherited listeners at these ports that do not listen at `addresses`, since they
    /// conflict with new ones.
    pub fn close_conflicting(&mut self, ports: &[u16], addresses: &[SocketAddr], client_mark: u32) {
        let gone =
            self.extract(|local| ports.contains(&local.port()) && !addresses.contains(&local));
        self.empty(&gone, client_mark);
    }

    fn extract(&mut self, mut wanted: impl FnMut(SocketAddr) -> bool) -> Vec<Socket> {
        let mut is_wanted = |socket: &Socket| {
            let local = socket.local_addr().ok().and_then(|local| local.as_socket());
            local.is_some_and(&mut wanted)
        };
        let all = self.listeners.extract_if(|_, socket| is_wanted(socket));
        all.map(|(_, socket)| socket).collect()
    }

    /// Accepts the clients that wait in queues of the sites' listeners, which have `client_mark`.
    fn empty(&mut self, listeners: &[Socket], client_mark: u32) {
        let of_sites = listeners
            .iter()
            .filter(|socket| is_accepted(socket.as_fd(), client_mark));
        for listener in of_sites {
            while let Ok((client, _)) = pepd_sys::socket::accept(listener.as_fd()) {
                self.sort(client);
            }
        }
    }

    /// Ends the keepers; everything but legs, listeners and the memory of flows closes with them.
    pub fn end_keepers(&mut self) {
        for keeper in self.keepers.drain(..) {
            if let Err(err) = end(keeper.as_fd()) {
                tracing::warn!(error = %err, "cannot end the keeper of the previous process: it ends by itself after a minute");
            }
        }
    }

    /// Returns the memory of flows, and their sockets by cookie, to be used or closed. The
    /// remaining listeners are closed.
    pub fn into_flows(mut self, client_mark: u32) -> (Option<OwnedFd>, HashMap<u64, OwnedFd>) {
        self.taken.clear();
        let left = self.extract(|_| true);
        self.empty(&left, client_mark);
        drop(self.take_paths());
        (self.arena.take(), std::mem::take(&mut self.legs))
    }
}

impl Drop for Inheritance {
    fn drop(&mut self) {
        std::mem::forget((self.arena.take(), self.paths.take()));
        std::mem::forget((
            std::mem::take(&mut self.listeners),
            std::mem::take(&mut self.legs),
            std::mem::take(&mut self.taken),
        ));
    }
}

fn end(keeper: BorrowedFd<'_>) -> io::Result<()> {
    const PATIENCE: Duration = Duration::from_secs(1);
    process::pidfd_kill(keeper)?;
    // Once it has ended, its sockets are closed, and the port of tunnels is free.
    let mut fds = [PollFd::new(keeper, PollFlags::POLLIN)];
    poll(
        &mut fds,
        PollTimeout::try_from(PATIENCE).unwrap_or(PollTimeout::MAX),
    )?;
    Ok(())
}

/// Returns whether a socket was accepted by one of pepd's listeners, judged by the options it
/// inherited: the options of other sockets differ.
pub fn is_accepted(leg: BorrowedFd<'_>, client_mark: u32) -> bool {
    let socket = SockRef::from(&leg);
    socket.reuse_port().unwrap_or(false) && socket.mark().is_ok_and(|mark| mark == client_mark)
}
