//! Source ports that the kernel chooses.
//!
//! In connect(2) the kernel looks for a free port among all of the machine's. Ports to one server
//! stay taken for a minute after a connection (TIME_WAIT). Once most are, each search takes
//! milliseconds, in which the thread serves no flow. So each search is limited to a part of the
//! ports (IP_LOCAL_PORT_RANGE, Linux 6.3), chosen at random.
//!
//! If all are taken, one of them at random is tried in spite of that. The kernel takes a port in
//! TIME_WAIT again that is bound explicitly, if the connection had timestamps, which tell its
//! segments from new ones (RFC 6191). Otherwise a peer that opens and closes some 500 flows a
//! second would leave no port to a server for anyone.

use std::{
    fs,
    hash::{BuildHasher as _, Hasher as _, RandomState},
    io,
    ops::RangeInclusive,
    os::fd::BorrowedFd,
    sync::OnceLock,
};

/// Not in libc's constants of all targets.
const IP_LOCAL_PORT_RANGE: libc::c_int = 51;
/// Ports of a search: some 0.1 ms, if all are taken.
const PART: u16 = 512;
/// Searches before the ports count as used up. With 99 % of all ports taken, one search of a
/// hundred finds none.
const SEARCHES: usize = 4;
/// The kernel's default.
const DEFAULT: RangeInclusive<u16> = 32_768..=60_999;

/// Calls `connect` for an unbound socket, or one bound to an address alone, with one part of the
/// ports after the other until it finds a free one.
///
/// # Errors
/// EADDRNOTAVAIL if no searched port is free. Those of `connect`.
pub(super) fn connect_in_parts(
    fd: BorrowedFd<'_>,
    mut connect: impl FnMut() -> io::Result<()>,
) -> io::Result<()> {
    let all = range();
    for _ in 1..SEARCHES {
        let part = part(&all, RandomState::new().build_hasher().finish());
        let [low, high] = [part.start(), part.end()].map(|port| u32::from(*port));
        let value = (high << 16 | low).cast_signed();
        let set = crate::socket::set_int(fd, libc::IPPROTO_IP, IP_LOCAL_PORT_RANGE, value);
        // An older kernel searches all ports.
        if set.is_err() {
            break;
        }
        match connect() {
            Err(err) if err.raw_os_error() == Some(libc::EADDRNOTAVAIL) => {}
            result => return result,
        }
    }
    connect()
}

/// Binds a socket, which is unbound or bound to an address alone, to a port that another connection
/// may have had, and calls `connect`.
///
/// # Errors
/// EADDRINUSE or EADDRNOTAVAIL if the port is still in use. Those of `connect`.
pub(super) fn connect_from_used(
    bind: impl FnOnce(u16) -> io::Result<()>,
    connect: impl FnOnce() -> io::Result<()>,
) -> io::Result<()> {
    let (all, reserved) = (range(), reserved());
    let random = || RandomState::new().build_hasher().finish();
    let places = u64::from(all.end().saturating_sub(*all.start())) + 1;
    // The remainder fits.
    let ports = (0..SEARCHES).map(|_| all.start() + (random() % places) as u16);
    let free = |port: &u16| !reserved.iter().any(|kept| kept.contains(port));
    let port = ports.into_iter().find(free);
    bind(port.ok_or(io::ErrorKind::AddrNotAvailable)?)?;
    connect()
}

/// Returns the ports that are kept for services (ip_local_reserved_ports).
fn reserved() -> Vec<RangeInclusive<u16>> {
    let text = fs::read_to_string("/proc/sys/net/ipv4/ip_local_reserved_ports");
    ports_in(&text.unwrap_or_default())
}

/// Parses a list such as `7000,8000-8010`.
fn ports_in(list: &str) -> Vec<RangeInclusive<u16>> {
    let one = |text: &str| {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        Some(first.parse().ok()?..=last.parse().ok()?)
    };
    list.trim().split(',').filter_map(one).collect()
}

/// Returns the machine's range of ports (ip_local_port_range), as of the first call.
fn range() -> RangeInclusive<u16> {
    static RANGE: OnceLock<RangeInclusive<u16>> = OnceLock::new();
    let read = || {
        let text = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").ok()?;
        let mut ports = text.split_whitespace().map(|port| port.parse().ok());
        Some(ports.next()??..=ports.next()??)
    };
    RANGE.get_or_init(|| read().unwrap_or(DEFAULT)).clone()
}

/// Returns the part of all ports that a random number chooses.
fn part(all: &RangeInclusive<u16>, random: u64) -> RangeInclusive<u16> {
    let beyond = all.end().saturating_sub(*all.start());
    let Some(places) = beyond.checked_sub(PART - 1) else {
        return all.clone();
    };
    // In 0..=places, so it fits.
    let first = all.start() + (random % (u64::from(places) + 1)) as u16;
    first..=first + (PART - 1)
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, os::fd::AsFd as _};

    use socket2::{Domain, Socket, Type};

    use super::*;

    #[test]
    fn parts_lie_within_the_range_and_cover_it() {
        let all = 40_000..=41_999;
        let mut seen = BTreeSet::new();
        for random in 0..3000 {
            let part = part(&all, random);
            assert_eq!(part.end() - part.start() + 1, PART);
            assert!(all.contains(part.start()) && all.contains(part.end()));
            seen.extend(part);
        }
        assert_eq!(seen.len(), 2000);
        assert_eq!(part(&(5000..=5100), 7), 5000..=5100);
        assert_eq!(part(&(1..=u16::MAX), u64::MAX).count(), usize::from(PART));
    }

    #[test]
    fn a_port_that_is_kept_for_a_service_is_left_alone() {
        assert_eq!(ports_in("7000,8000-8010\n"), [7000..=7000, 8000..=8010]);
        assert_eq!(ports_in("\n"), []);
        let mut bound = None;
        let bind = |port| {
            bound = Some(port);
            Ok(())
        };
        connect_from_used(bind, || Ok(())).expect("connected");
        assert!(range().contains(&bound.expect("a port")));
    }

    #[test]
    fn only_taken_ports_lead_to_another_search() {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        for (error, expected) in [(libc::EADDRNOTAVAIL, SEARCHES), (libc::ENETUNREACH, 1)] {
            let mut calls = 0;
            let result = connect_in_parts(socket.as_fd(), || {
                calls += 1;
                Err(io::Error::from_raw_os_error(error))
            });
            assert_eq!(result.expect_err("none").raw_os_error(), Some(error));
            let knows =
                crate::socket::set_int(socket.as_fd(), libc::IPPROTO_IP, IP_LOCAL_PORT_RANGE, 0);
            assert_eq!(calls, if knows.is_ok() { expected } else { 1 });
        }
    }
}
