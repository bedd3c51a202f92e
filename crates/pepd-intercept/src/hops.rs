//! Routes with several next hops (ECMP), of which the link is one.
//!
//! A look-up by a rule (`fib`) knows the first next hop of a route only. The kernel chooses one for
//! each connection, by a hash of its addresses. So where such a route is, a rule remembers the
//! SYNs of server legs that leave by another interface than the link.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt, io,
    net::IpAddr,
    os::fd::{AsFd as _, AsRawFd as _, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Instant,
};

use ipnet::IpNet;
use nix::{
    net::if_::{if_indextoname, if_nametoindex},
    sys::socket::{AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, socket},
};
use pepd_sys::{
    leg::Family,
    netlink_bytes::{attributes, request, take_dump},
};

use super::{InterceptError, Interception, cannot};

/// `RTM_GETNEXTHOP` (Linux 5.3).
const GET_OBJECT: u16 = 106;
/// `NHA_ID`, `NHA_GROUP` and `NHA_OIF`.
const OBJECT_ID: u16 = 1;
const OBJECT_GROUP: u16 = 2;
const OBJECT_INTERFACE: u16 = 5;
/// Bytes of a `struct nexthop_grp`, of a `struct nhmsg`, a `struct rtmsg` and a `struct rtnexthop`.
const MEMBER_BYTES: usize = 8;
const OBJECT_BYTES: usize = 8;
const ROUTE_BYTES: usize = 12;
const HOP_BYTES: usize = 8;
/// `RTA_NH_ID`.
const ROUTE_OBJECT: u16 = 30;
/// `RTNH_F_DEAD`: the kernel sends nothing by this next hop.
const DEAD: u8 = 1;
/// `NETLINK_GET_STRICT_CHK`: the kernel obeys the interface in a query for routes (Linux 4.20).
const STRICT: libc::c_int = 12;

/// Bytes of one part of a dump, at most.
const ANSWER_BYTES: usize = 32 * 1024;
/// Routes that are kept for a description.
const DESCRIBED: usize = 8;
/// Rest after a look at the routes, as a multiple of its duration. A routing daemon may change a
/// table of a million routes each second.
const REST: u32 = 20;

/// A next hop: its interface and weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Hop {
    interface: u32,
    weight: u32,
}

/// A route with several next hops.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SharedRoute {
    /// The destinations.
    pub to: IpNet,
    hops: Vec<Hop>,
}

impl fmt::Display for SharedRoute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hops = self.hops.iter().map(|hop| {
            let name = name_of(hop.interface).unwrap_or_else(|| hop.interface.to_string());
            format!("{name} (weight {})", hop.weight)
        });
        let hops: Vec<_> = hops.collect();
        write!(f, "{} by {}", self.to, hops.join(", "))
    }
}

/// Routes with several next hops of which an interface is one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Shared {
    /// The interfaces of all their next hops; empty without such routes.
    pub interfaces: BTreeSet<u32>,
    /// The first of these routes.
    pub routes: Vec<SharedRoute>,
    /// The number of all.
    pub number: usize,
}

/// Reads the routes of all tables that share packets between an interface and others.
///
/// # Errors
/// When no descriptors or memory are left.
pub fn shared_with(interface: &str) -> io::Result<Shared> {
    match if_nametoindex(interface) {
        Ok(index) => shared(index),
        Err(_) => Ok(Shared::default()),
    }
}

fn shared(link: u32) -> io::Result<Shared> {
    let mut shared = Shared::default();
    let mut by_object = Vec::new();
    for family in Family::ALL {
        let of_family = dump(
            libc::RTM_GETROUTE,
            &routes_by(link, family),
            |body| match hops_of(body) {
                Hops::Several(route) => shared.add(link, route),
                Hops::Object(to, object) => by_object.push((to, object)),
                Hops::One => {}
            },
        );
        match of_family {
            // The interface has gone, or the kernel lacks IPv6.
            Err(err) if matches!(err.raw_os_error(), Some(libc::ENODEV | libc::EOPNOTSUPP)) => {}
            result => result?,
        }
    }
    if !by_object.is_empty() {
        let objects = objects()?;
        for (to, object) in by_object {
            let hops = objects.hops(object);
            shared.add(link, SharedRoute { to, hops });
        }
    }
    Ok(shared)
}

impl Shared {
    fn add(&mut self, link: u32, route: SharedRoute) {
        let interfaces: BTreeSet<_> = route.hops.iter().map(|hop| hop.interface).collect();
        if interfaces.len() < 2 || !interfaces.contains(&link) {
            return;
        }
        self.interfaces.extend(interfaces);
        self.number += 1;
        if self.routes.len() < DESCRIBED {
            self.routes.push(route);
        }
    }
}

/// Next hops of a route.
#[derive(Debug, PartialEq, Eq)]
enum Hops {
    /// Next hops in the message.
    Several(SharedRoute),
    /// Next hops of an object, which the message only names (`nexthop_compat_mode=0`).
    Object(IpNet, u32),
    /// No more than one.
    One,
}

/// Parses a route behind the header of its message.
fn hops_of(body: &[u8]) -> Hops {
    let parsed = || {
        let header = body.first_chunk::<ROUTE_BYTES>()?;
        let is_unicast = header[7] == libc::RTN_UNICAST;
        let of = |wanted| {
            let mut all = attributes(&body[ROUTE_BYTES..]);
            all.find_map(|(kind, value)| (kind == wanted).then_some(value))
        };
        let to = network(header[0], of(libc::RTA_DST), header[1])?;
        if let Some(hops) = of(libc::RTA_MULTIPATH).filter(|_| is_unicast) {
            let hops = live_hops(hops);
            return Some(Hops::Several(SharedRoute { to, hops }));
        }
        let object = of(ROUTE_OBJECT).filter(|_| is_unicast && of(libc::RTA_OIF).is_none())?;
        let object = u32::from_ne_bytes(object.try_into().ok()?);
        Some(Hops::Object(to, object))
    };
    parsed().unwrap_or(Hops::One)
}

fn network(family: u8, address: Option<&[u8]>, length: u8) -> Option<IpNet> {
    let is_v4 = i32::from(family) == libc::AF_INET;
    let address = match address {
        Some(bytes) if is_v4 => IpAddr::from(<[u8; 4]>::try_from(bytes).ok()?),
        Some(bytes) => IpAddr::from(<[u8; 16]>::try_from(bytes).ok()?),
        None if is_v4 => IpAddr::from([0; 4]),
        None => IpAddr::from([0; 16]),
    };
    IpNet::new(address, length).ok()
}

/// Parses next hops, except for those that are down.
fn live_hops(mut bytes: &[u8]) -> Vec<Hop> {
    let mut hops = Vec::new();
    while let Some(&[low, high, flags, weight, ref interface @ ..]) =
        bytes.first_chunk::<HOP_BYTES>()
    {
        let length = usize::from(u16::from_ne_bytes([low, high]));
        if flags & DEAD == 0 {
            hops.push(Hop {
                interface: u32::from_ne_bytes(*interface),
                weight: u32::from(weight) + 1,
            });
        }
        let next = length.max(HOP_BYTES).next_multiple_of(4);
        bytes = bytes.get(next..).unwrap_or_default();
    }
    hops
}

/// Next hop objects of this machine.
#[derive(Debug, Default)]
struct Objects {
    interfaces: BTreeMap<u32, u32>,
    /// Members of groups, with their weights.
    groups: BTreeMap<u32, Vec<(u32, u32)>>,
}

impl Objects {
    /// Takes an object behind the header of its message.
    fn take(&mut self, body: &[u8]) {
        let of = |wanted| {
            let mut all = attributes(body.get(OBJECT_BYTES..).unwrap_or_default());
            all.find_map(|(kind, value)| (kind == wanted).then_some(value))
        };
        let number = |wanted| Some(u32::from_ne_bytes(of(wanted)?.try_into().ok()?));
        let flags = body.get(4).copied().unwrap_or(0);
        let Some(id) = number(OBJECT_ID) else { return };
        if let Some(interface) = number(OBJECT_INTERFACE).filter(|_| flags & DEAD == 0) {
            self.interfaces.insert(id, interface);
        }
        if let Some(members) = of(OBJECT_GROUP) {
            let (members, _) = members.as_chunks::<MEMBER_BYTES>();
            let member = |&[a, b, c, d, weight, ..]: &[u8; MEMBER_BYTES]| {
                (u32::from_ne_bytes([a, b, c, d]), u32::from(weight) + 1)
            };
            self.groups.insert(id, members.iter().map(member).collect());
        }
    }

    fn hops(&self, group: u32) -> Vec<Hop> {
        let members = self.groups.get(&group).into_iter().flatten();
        let hops = members.filter_map(|&(id, weight)| {
            let interface = *self.interfaces.get(&id)?;
            Some(Hop { interface, weight })
        });
        hops.collect()
    }
}

fn objects() -> io::Result<Objects> {
    let mut objects = Objects::default();
    dump(GET_OBJECT, &[0; OBJECT_BYTES], |body| objects.take(body))?;
    Ok(objects)
}

/// Returns the body of a query for the routes of a family that use an interface.
fn routes_by(interface: u32, family: Family) -> Vec<u8> {
    let mut body = vec![0; ROUTE_BYTES];
    body[0] = match family {
        Family::V4 => libc::AF_INET as u8,
        Family::V6 => libc::AF_INET6 as u8,
    };
    body.extend(8_u16.to_ne_bytes());
    body.extend(libc::RTA_OIF.to_ne_bytes());
    body.extend(interface.to_ne_bytes());
    body
}

/// Asks the kernel for all of a kind, and passes the body of each message.
fn dump(kind: u16, body: &[u8], mut each: impl FnMut(&[u8])) -> io::Result<()> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let protocol = SockProtocol::NetlinkRoute;
    let fd: OwnedFd = socket(AddressFamily::Netlink, SockType::Raw, flags, protocol)?;
    // An older kernel answers with all routes.
    let _ = pepd_sys::socket::set_int(fd.as_fd(), libc::SOL_NETLINK, STRICT, 1);
    let flags = (libc::NLM_F_REQUEST | libc::NLM_F_DUMP) as u16;
    send(
        fd.as_raw_fd(),
        &request(kind, flags, body),
        MsgFlags::empty(),
    )?;
    // `RTM_NEW...` of `RTM_GET...`.
    let wanted = kind - 2;
    let mut answer = vec![0; ANSWER_BYTES];
    loop {
        let length = recv(fd.as_raw_fd(), &mut answer, MsgFlags::empty())?;
        if take_dump(&answer[..length], wanted, &mut each)? {
            return Ok(());
        }
    }
}

fn name_of(index: u32) -> Option<String> {
    if_indextoname(index).ok()?.into_string().ok()
}

/// Interfaces that share routes, as last read.
#[derive(Debug, Default)]
pub(super) struct Cache {
    known: BTreeMap<String, BTreeSet<String>>,
    rests: Option<Instant>,
    is_late: bool,
}

impl Cache {
    /// Begins a look. Earlier answers are forgotten, unless the last look has taken long, and has
    /// just ended.
    pub(super) fn begin(&mut self) {
        let now = Instant::now();
        self.is_late = self.rests.is_some_and(|until| now < until);
        if !self.is_late {
            self.known.clear();
        }
    }

    /// Returns the names of the interfaces that share routes with this one, itself included; empty
    /// without such routes.
    pub(super) fn with(&mut self, interface: &str) -> io::Result<BTreeSet<String>> {
        if let Some(known) = self.known.get(interface) {
            return Ok(known.clone());
        }
        let begin = Instant::now();
        let found = shared_with(interface)?;
        let names: BTreeSet<_> = found.interfaces.into_iter().filter_map(name_of).collect();
        self.known.insert(interface.to_owned(), names.clone());
        let rests = self.rests.map_or(begin, |until| until.max(begin));
        self.rests = Some(rests + begin.elapsed() * REST);
        Ok(names)
    }

    /// Returns true if the last look had earlier answers.
    pub(super) fn is_late(&self) -> bool {
        self.is_late
    }
}

/// Presence of routes with several next hops, of which the link is one: then only the SYN of a
/// server leg tells by which interface it leaves.
#[derive(Debug, Clone, Default)]
pub struct SeveralHops(Arc<AtomicBool>);

impl SeveralHops {
    /// Returns whether there are such routes.
    pub fn exist(&self) -> bool {
        self.0.load(Relaxed)
    }

    fn set(&self, exist: bool) {
        self.0.store(exist, Relaxed);
    }
}

impl Interception {
    /// Updates the table with routes of several next hops that were added or removed since the last
    /// call.
    pub(super) async fn look_at_hops(&mut self) -> Result<(), InterceptError> {
        let link = self.ruleset.judged_link.as_ref();
        let Some(link) = link.filter(|_| self.filter.is_nft()) else {
            return Ok(());
        };
        let mut interfaces = match self.hops.with(link) {
            Ok(interfaces) => interfaces,
            Err(error) => {
                tracing::debug!(%error, "cannot look at routes of several next hops");
                return Ok(());
            }
        };
        interfaces.insert(link.clone());
        let mut ruleset = self.ruleset.clone();
        let changed = ruleset.set_hops(&interfaces);
        if changed.is_empty() {
            return Ok(());
        }
        let several = interfaces.len() > 1;
        if several {
            // Before more legs come.
            self.several_hops.set(true);
        }
        let set = self.filter.set_chains(&changed).await;
        set.map_err(cannot("update the rules for routes of several next hops"))?;
        self.ruleset = ruleset;
        self.several_hops.set(several);
        let names = interfaces.into_iter().collect::<Vec<_>>().join(", ");
        match several {
            true => tracing::info!(
                interfaces = %names,
                "routes have several next hops: a connection counts for the link if its packets leave by it"
            ),
            false => tracing::info!("routes by the link have no other next hops any more"),
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "hops_tests.rs"]
mod tests;
