//! Asking the kernel without running `nft`.

use std::{io, os::fd::AsRawFd as _};

use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, socket,
};

/// Of messages about nf_tables (`NFNL_SUBSYS_NFTABLES << 8`).
const SUBSYSTEM: u16 = 10 << 8;
/// `NFT_MSG_NEWTABLE`: there it is.
const NEW_TABLE: u16 = SUBSYSTEM;
/// `NFT_MSG_GETTABLE`: is there one?
const GET_TABLE: u16 = SUBSYSTEM + 1;
/// `NFTA_TABLE_NAME`.
const TABLE_NAME: u16 = 1;
/// `NFPROTO_INET`: tables for IPv4 and IPv6.
const INET: u8 = 1;

/// `struct nlmsghdr` and, behind it, `struct nfgenmsg`.
const HEADERS_BYTES: usize = 16 + 4;

/// Whether there is an `inet` table of that name.
///
/// # Errors
/// When descriptors or memory are short, or the kernel's answer makes no sense.
pub fn table_exists(name: &str) -> io::Result<bool> {
    let protocol = SockProtocol::NetlinkNetFilter;
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let fd = socket(AddressFamily::Netlink, SockType::Raw, flags, protocol)?;
    send(fd.as_raw_fd(), &query(name), MsgFlags::empty())?;
    let mut answer = [0; 1024];
    // The kernel has answered before send() returns.
    let length = recv(fd.as_raw_fd(), &mut answer, MsgFlags::empty())?;
    exists(&answer[..length])
}

fn query(name: &str) -> Vec<u8> {
    let attribute = 4 + name.len() + 1;
    let length = HEADERS_BYTES + attribute.next_multiple_of(4);
    let mut query = Vec::with_capacity(length);
    query.extend((length as u32).to_ne_bytes());
    query.extend(GET_TABLE.to_ne_bytes());
    query.extend((libc::NLM_F_REQUEST as u16).to_ne_bytes());
    // Sequence number and port, of which the kernel needs none.
    query.extend([0; 8]);
    query.extend([INET, libc::NFNETLINK_V0 as u8, 0, 0]);
    query.extend((attribute as u16).to_ne_bytes());
    query.extend(TABLE_NAME.to_ne_bytes());
    query.extend(name.as_bytes());
    query.resize(length, 0);
    query
}

fn exists(answer: &[u8]) -> io::Result<bool> {
    let kind = answer.get(4..6).and_then(|kind| kind.try_into().ok());
    match kind.map(u16::from_ne_bytes) {
        Some(NEW_TABLE) => Ok(true),
        Some(kind) if i32::from(kind) == libc::NLMSG_ERROR => match error(answer) {
            Some(libc::ENOENT) => Ok(false),
            Some(code) => Err(io::Error::from_raw_os_error(code)),
            None => Err(io::ErrorKind::InvalidData.into()),
        },
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// The code behind the header of an error message, there negative.
fn error(answer: &[u8]) -> Option<i32> {
    let code = answer.get(16..20)?.try_into().ok()?;
    i32::from_ne_bytes(code).checked_neg()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(kind: u16, code: i32) -> Vec<u8> {
        let mut answer = vec![0; 36];
        answer[4..6].copy_from_slice(&kind.to_ne_bytes());
        answer[16..20].copy_from_slice(&code.to_ne_bytes());
        answer
    }

    #[test]
    fn what_the_kernel_says_is_understood() {
        let error = libc::NLMSG_ERROR as u16;
        assert!(exists(&answer(NEW_TABLE, 0)).expect("an answer"));
        assert!(!exists(&answer(error, -libc::ENOENT)).expect("an answer"));
        let refused = exists(&answer(error, -libc::EPERM)).expect_err("no answer");
        assert_eq!(refused.raw_os_error(), Some(libc::EPERM));
        for length in [0, 5, 18] {
            assert!(exists(&answer(error, -libc::ENOENT)[..length]).is_err());
        }
    }

    #[test]
    fn a_query_is_as_long_as_it_says() {
        for name in ["a", "pepd", "pepd_roof"] {
            let query = query(name);
            assert_eq!(query[..4], (query.len() as u32).to_ne_bytes());
            assert_eq!(query.len() % 4, 0);
        }
    }
}
