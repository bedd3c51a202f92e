//! Names of abstract Unix sockets, and their owners.
//!
//! Every local user may bind any abstract name. Only its owner tells who has written it.

use std::{
    fs, io,
    os::fd::{AsRawFd as _, OwnedFd},
};

use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, socket,
};

use crate::netlink_bytes::{attributes, request, take_dump};

/// `SOCK_DIAG_BY_FAMILY` of `include/uapi/linux/sock_diag.h`.
const BY_FAMILY: u16 = 20;
/// `UDIAG_SHOW_NAME | UDIAG_SHOW_UID` of `include/uapi/linux/unix_diag.h`.
const SHOW: u32 = 0x1 | 0x40;
/// `UNIX_DIAG_NAME`.
const NAME: u16 = 0;
/// `UNIX_DIAG_UID`.
const OWNER: u16 = 7;
/// Bytes of a `struct unix_diag_msg`.
const MESSAGE_BYTES: usize = 16;
/// Offset of `udiag_ino` in it.
const INODE: usize = 4;
/// Bytes of one part of the kernel's answer at most (`NLMSG_GOODSIZE`).
const ANSWER_BYTES: usize = 32 * 1024;

/// An abstract Unix socket of this network namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Abstract {
    /// Name, without the leading zero byte.
    pub name: String,
    /// Inode of the socket, as in `/proc/PID/fd`.
    pub inode: u32,
    /// User that has created it, as seen from this user namespace; `None` where the kernel cannot
    /// tell (`CONFIG_UNIX_DIAG` is off).
    pub owner: Option<u32>,
}

/// Returns the abstract sockets whose names are text and begin with `prefix`.
///
/// # Errors
/// When descriptors or memory are short, or `/proc` is missing.
pub fn abstract_sockets(prefix: &str) -> io::Result<Vec<Abstract>> {
    match ask(prefix) {
        Ok(found) => Ok(found),
        Err(err) if is_short(&err) => Err(err),
        Err(err) => {
            tracing::debug!(error = %err, "the kernel does not tell the owners of Unix sockets");
            let listing = fs::read_to_string("/proc/thread-self/net/unix")?;
            Ok(listed(&listing, prefix))
        }
    }
}

fn is_short(err: &io::Error) -> bool {
    const SHORT: [i32; 4] = [libc::EMFILE, libc::ENFILE, libc::ENOMEM, libc::ENOBUFS];
    err.raw_os_error().is_some_and(|code| SHORT.contains(&code))
}

fn ask(prefix: &str) -> io::Result<Vec<Abstract>> {
    let (family, kind) = (AddressFamily::Netlink, SockType::Raw);
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let fd: OwnedFd = socket(family, kind, flags, SockProtocol::NetlinkSockDiag)?;
    send(fd.as_raw_fd(), &query(), MsgFlags::empty())?;
    let (mut found, mut answer) = (Vec::new(), vec![0; ANSWER_BYTES]);
    loop {
        // The kernel has answered before send() returns, and goes on in each recv().
        let length = recv(fd.as_raw_fd(), &mut answer, MsgFlags::empty())?;
        if take(&answer[..length], prefix, &mut found)? {
            return Ok(found);
        }
    }
}

/// Returns the request for all Unix sockets: a `struct unix_diag_req`.
fn query() -> Vec<u8> {
    let flags = (libc::NLM_F_REQUEST | libc::NLM_F_DUMP) as u16;
    let [all, inode, cookie]: [u32; 3] = [u32::MAX, 0, u32::MAX];
    let words = [all, inode, SHOW, cookie, cookie].map(u32::to_ne_bytes);
    let body = [&[libc::AF_UNIX as u8, 0, 0, 0][..], words.as_flattened()].concat();
    request(BY_FAMILY, flags, &body)
}

/// Takes the sockets in one part of the answer. Returns true for the last part.
fn take(answer: &[u8], prefix: &str, found: &mut Vec<Abstract>) -> io::Result<bool> {
    take_dump(answer, BY_FAMILY, |body| {
        let socket = parse(body);
        found.extend(socket.filter(|socket| socket.name.starts_with(prefix)));
    })
}

/// Returns an abstract socket whose name is text, from a `struct unix_diag_msg` and its attributes.
fn parse(body: &[u8]) -> Option<Abstract> {
    let number = |bytes: &[u8]| bytes.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes));
    let inode = number(body.get(INODE..)?)?;
    let (mut name, mut owner) = (None, None);
    for (kind, value) in attributes(body.get(MESSAGE_BYTES..)?) {
        match kind {
            NAME => name = value.strip_prefix(&[0]),
            OWNER => owner = number(value),
            _ => {}
        }
    }
    let name = std::str::from_utf8(name?).ok()?.to_owned();
    Some(Abstract { name, inode, owner })
}

/// Returns the sockets in a listing (`/proc/net/unix`), which does not state their owners. A name
/// may contain a line break, so that its owner forges other lines.
fn listed(listing: &str, prefix: &str) -> Vec<Abstract> {
    let lines = listing.lines().filter_map(|line| {
        let (fields, name) = line.split_once(" @")?;
        let inode = fields.split_whitespace().next_back()?.parse().ok()?;
        let name = name.to_owned();
        Some(Abstract {
            name,
            inode,
            owner: None,
        })
    });
    lines
        .filter(|socket| socket.name.starts_with(prefix))
        .collect()
}

#[cfg(test)]
mod tests {
    use std::{
        os::{
            fd::AsFd as _,
            linux::{fs::MetadataExt as _, net::SocketAddrExt as _},
            unix::net::{SocketAddr, UnixDatagram},
        },
        process,
    };

    use nix::unistd::{geteuid, setfsuid};

    use super::*;

    fn bind(name: &str) -> UnixDatagram {
        let address = SocketAddr::from_abstract_name(name).expect("a name");
        UnixDatagram::bind_addr(&address).expect("a free name")
    }

    fn inode(socket: &UnixDatagram) -> u32 {
        let copy = socket.as_fd().try_clone_to_owned().expect("a descriptor");
        fs::File::from(copy).metadata().expect("a socket").st_ino() as u32
    }

    #[test]
    fn sockets_are_found_with_their_owners() {
        let prefix = format!("pepd-test-{}/", process::id());
        let own = bind(&format!("{prefix}own"));
        let found = abstract_sockets(&prefix).expect("an answer");
        let [one] = &found[..] else {
            panic!("{found:?}")
        };
        assert_eq!(one.name, format!("{prefix}own"));
        assert_eq!(one.inode, inode(&own));
        // A kernel without that answer has no owners.
        assert!(one.owner.is_none_or(|owner| owner == geteuid().as_raw()));
        let listing = fs::read_to_string("/proc/thread-self/net/unix").expect("a listing");
        let without = Abstract {
            owner: None,
            ..one.clone()
        };
        assert_eq!(listed(&listing, &prefix), [without]);
        if !geteuid().is_root() || one.owner.is_none() {
            eprintln!("not tried: a socket of another user");
            return;
        }
        // Of this thread only. A line break forges no other name.
        setfsuid(65534.into());
        let _theirs = bind(&format!("{prefix}x\n0: 2 0 0 2 1 5 @{prefix}y"));
        setfsuid(0.into());
        let mut found = abstract_sockets(&prefix).expect("an answer");
        found.sort_by_key(|one| one.owner);
        let owners: Vec<_> = found.iter().map(|one| one.owner).collect();
        assert_eq!(owners, [Some(0), Some(65534)], "{found:?}");
    }

    #[test]
    fn truncated_answers_are_errors_or_end_early() {
        let mut body = vec![1, 2, 7, 0];
        body.extend(42_u32.to_ne_bytes());
        body.extend([0; 8]);
        for (kind, value) in [(NAME, &b"\0pepd/1"[..]), (OWNER, &7_u32.to_ne_bytes())] {
            body.extend(((4 + value.len()) as u16).to_ne_bytes());
            body.extend(kind.to_ne_bytes());
            body.extend(value);
            body.resize(body.len().next_multiple_of(4), 0);
        }
        let socket = Abstract {
            name: "pepd/1".to_owned(),
            inode: 42,
            owner: Some(7),
        };
        assert_eq!(parse(&body), Some(socket));
        for length in 0..body.len() {
            let parsed = parse(&body[..length]);
            assert!(parsed.is_none_or(|one| one.owner.is_none()), "{length}");
        }
        assert!(take(&[], "", &mut Vec::new()).is_err());
    }
}
