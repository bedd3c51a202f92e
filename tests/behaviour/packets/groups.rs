//! Multicast groups, which sites must name to be carried.

use std::{
    io,
    net::{IpAddr, SocketAddr, UdpSocket},
    thread,
    time::Duration,
};

use nix::net::if_::if_nameindex;
use pepd_tests::{
    bed::Family,
    host::Host,
    tunnel::{End, TunnelBed},
    wait::{wait_for, wait_until},
};
use socket2::{InterfaceIndexOrAddress, SockRef};

use super::{ADMIN, BothEnds};
use crate::tunnel::{LINK, STATED};

const PORT: u16 = 7100;
const NAMED: &str = "dst = [\"239.1.0.0/16\", \"ff1e::/16\"], dport = 7100";

fn site(peer: &str) -> String {
    format!(
        "{ADMIN}[[site]]\nname = \"groups\"\nmode = \"packet\"\npeer = \"{peer}\"\n\
         match = {{ protocol = \"udp\", {NAMED} }}\n"
    )
}

/// Returns a member of both groups on the host's only interface.
fn member(host: &Host, groups: [IpAddr; 2]) -> UdpSocket {
    let any: IpAddr = match groups[0] {
        IpAddr::V4(_) => [0; 4].into(),
        IpAddr::V6(_) => [0_u16; 8].into(),
    };
    let join = || -> io::Result<UdpSocket> {
        let socket = UdpSocket::bind((any, PORT))?;
        let by = InterfaceIndexOrAddress::Index(interface());
        for group in groups {
            match group {
                IpAddr::V4(group) => {
                    SockRef::from(&socket).join_multicast_v4_n(&group, &by)?;
                }
                IpAddr::V6(group) => socket.join_multicast_v6(&group, interface())?,
            }
        }
        socket.set_nonblocking(true)?;
        Ok(socket)
    };
    // An earlier socket may still be open for a moment, inherited by a process that another test is
    // starting.
    wait_for("a member", || host.enter(join).ok())
}

/// Returns the only interface but loopback in the calling thread's namespace.
fn interface() -> u32 {
    let all = if_nameindex().expect("interfaces");
    let mut others = all.iter().filter(|one| one.name().to_bytes() != b"lo");
    others.next().expect("an interface").index()
}

/// Sends to a group with a hop limit.
fn speak(host: &Host, from: IpAddr, group: IpAddr, hops: u32) {
    let send = || -> io::Result<()> {
        let socket = UdpSocket::bind((from, 0))?;
        match group {
            IpAddr::V4(_) => SockRef::from(&socket).set_multicast_ttl_v4(hops)?,
            IpAddr::V6(_) => {
                let socket = SockRef::from(&socket);
                socket.set_multicast_hops_v6(hops)?;
                socket.set_multicast_if_v6(interface())?;
            }
        }
        let said = format!("to {group}, {hops} hops");
        socket
            .send_to(said.as_bytes(), SocketAddr::new(group, PORT))
            .map(drop)
    };
    host.enter(send).expect("a host may speak");
}

/// Returns the datagrams that a member has received.
fn heard(member: &UdpSocket) -> Vec<(String, IpAddr)> {
    let mut buffer = [0; 100];
    let heard = std::iter::from_fn(|| {
        member.recv_from(&mut buffer).ok().map(|(len, from)| {
            (
                String::from_utf8_lossy(&buffer[..len]).into_owned(),
                from.ip(),
            )
        })
    });
    heard.collect()
}

#[test]
fn groups_that_are_named_are_carried_and_no_others() {
    let bed = TunnelBed::new(LINK);
    let hub = bed.start(End::Hub, &bed.config(End::Hub, STATED, "", &site("boat")));
    let boat = bed.start(End::Boat, &bed.config(End::Boat, STATED, "", &site("hub")));
    for pep in [&boat, &hub] {
        pep.wait_counter("tunnel_peers_up", |peers| peers == 1);
    }
    let ends = BothEnds { boat, hub };
    for (speaker, listener) in [("server", "client"), ("client", "server")] {
        for (family, group, other) in [
            (Family::V4, "239.1.2.3", "239.2.2.3"),
            (Family::V6, "ff1e::7:7", "ff1f::7:7"),
        ] {
            let [group, other] = [group, other].map(|text| text.parse().expect("a group"));
            let from = bed.address(speaker, family);
            let member = member(&bed.host(listener), [group, other]);
            let host = bed.host(speaker);
            let mut said = Vec::new();
            wait_until("the datagrams to the group", || {
                for hops in [1, 2, 9] {
                    speak(&host, from, other, 9);
                    speak(&host, from, group, hops);
                }
                thread::sleep(Duration::from_millis(20));
                said.extend(heard(&member));
                !said.is_empty()
            });
            // One hop reaches only the sender's own LAN, two the first router.
            let expected = (format!("to {group}, 9 hops"), from);
            assert!(said.iter().all(|one| *one == expected), "{said:?}");
        }
    }
    for pep in [&ends.boat, &ends.hub] {
        let counters = pep.counters();
        assert!(counters["packets_taken"] > 0 && counters["packets_delivered"] > 0);
    }
    // The far machine itself receives no group.
    let from = bed.address("client", Family::V4);
    bed.host("hub").ip(&format!("address add {from}/32 dev lo"));
    let group = "239.1.2.3".parse().expect("a group");
    wait_until("the refused datagrams", || {
        speak(&bed.host("client"), from, group, 9);
        ends.hub.counter("packets_undeliverable") > 0
    });
    bed.host("hub").ip(&format!("address del {from}/32 dev lo"));
    ends.stop();
}
