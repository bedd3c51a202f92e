//! Hosts for which peers may speak, and destinations that they may reach.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream},
};

use pepd_tests::{
    bed::Family,
    echo::EchoServer,
    matrix::shared,
    pep::Pep,
    tunnel::{End, TunnelBed},
};

use crate::{
    support::{assert_reset_after_connect, echo_once},
    tunnel::{LINK, PORT, SITE, STATED},
};

/// An address of metadata services of clouds.
const METADATA: Ipv4Addr = Ipv4Addr::new(169, 254, 169, 254);
/// A port that no list names.
const OTHER_PORT: u16 = PORT + 1;

/// A hub with these keys of its boat, and the boat.
struct Ends<'a> {
    bed: &'a TunnelBed,
    boat: Pep,
    hub: Pep,
}

impl<'a> Ends<'a> {
    /// Starts both. `more` is in the hub's configuration, and `site` in the boat's site.
    fn start(bed: &'a TunnelBed, peer: &str, more: &str, site: &str) -> Self {
        let hub = bed.start(End::Hub, &bed.config(End::Hub, STATED, peer, more));
        let site = format!("{SITE}{site}\n");
        let boat = bed.start(End::Boat, &bed.config(End::Boat, STATED, "", &site));
        for pep in [&boat, &hub] {
            pep.wait_counter("tunnel_peers_up", |peers| peers == 1);
        }
        Self { bed, boat, hub }
    }

    fn connect(&self, to: IpAddr, port: u16) -> io::Result<TcpStream> {
        self.bed.host("client").connect(SocketAddr::new(to, port))
    }

    fn reaches(&self, to: IpAddr, port: u16) {
        let stream = self.connect(to, port);
        echo_once(&mut stream.expect("pepd answers"), b"reached");
    }

    /// Checks that the hub refuses a flow to that place, and counts it.
    fn is_refused(&self, to: IpAddr, port: u16) {
        let before = self.hub.counter("tunnel_flows_forbidden");
        assert_reset_after_connect(self.connect(to, port));
        let after = |count| count == before + 1;
        self.hub.wait_counter("tunnel_flows_forbidden", after);
    }

    fn stop(self) {
        self.boat.stop();
        self.hub.stop();
    }
}

/// Starts echo servers of both families on all addresses of a machine.
fn serve(bed: &TunnelBed, name: &str, port: u16) -> [EchoServer; 2] {
    let any: [IpAddr; 2] = [Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()];
    any.map(|any| EchoServer::start(bed.host(name).listen(SocketAddr::new(any, port))))
}

/// Lets the client reach a metadata service behind the hub.
fn add_metadata(bed: &TunnelBed) {
    let [boat, _] = bed.addresses_toward("boat", "client");
    let [hub, _] = bed.addresses_toward("hub", "boat");
    let [server, _] = bed.addresses_toward("server", "hub");
    let server_node = bed.host("server");
    server_node.ip(&format!("address add {METADATA}/32 dev hub"));
    bed.host("hub")
        .ip(&format!("route add {METADATA} via {server}"));
    bed.host("boat")
        .ip(&format!("route add {METADATA} via {hub}"));
    bed.host("client")
        .ip(&format!("route add {METADATA} via {boat}"));
}

#[test]
fn a_boat_reaches_neither_the_hub_nor_what_is_private_beside_it_nor_another_boats_hosts() {
    for source in ["client", "self"] {
        let site = format!("source = \"{source}\"");
        shared(|| {
            let bed = TunnelBed::with_two_boats(LINK);
            add_metadata(&bed);
            let others = bed.addresses_toward("client2", "boat2");
            let [v4, v6] = others;
            let second = bed.peer(End::Hub, End::SecondBoat);
            let second = format!("{second}from = [\"{v4}\", \"{v6}\"]\n");
            let ends = Ends::start(&bed, "to = [\"default\"]", &second, &site);
            let services = ["hub", "server", "client2"].map(|name| serve(&bed, name, PORT));
            let hub = [
                bed.addresses_toward("hub", "boat"),
                bed.addresses_toward("hub", "boat2"),
                bed.addresses_toward("hub", "server"),
            ];
            let beside = [bed.addresses_toward("server", "hub"), others];
            for to in hub.into_iter().chain(beside).flatten() {
                ends.is_refused(to, PORT);
            }
            ends.is_refused(METADATA.into(), PORT);
            let accepted = services.iter().flatten().map(EchoServer::accepted);
            assert_eq!(accepted.sum::<usize>(), 0);
            let line = ends.hub.log().expect("the destination is this machine");
            assert!(line.message().contains("`to`"), "{}", line.message());
            ends.stop();
        });
    }
}

#[test]
fn a_boat_reaches_what_to_names_and_this_machine_only_by_its_address() {
    for source in ["client", "self"] {
        let site = format!("source = \"{source}\"");
        shared(|| {
            let bed = TunnelBed::new(LINK);
            add_metadata(&bed);
            let (hub, server) = (
                bed.addresses_toward("hub", "server"),
                bed.addresses_toward("server", "hub"),
            );
            let ([v4, v6], [own, _]) = (server, hub);
            let net = network(v4);
            let to = format!(
                "to = [\"{net}/24:{PORT}\", \"[{v6}]:{PORT}\", \"{own}:{PORT}\", \"{METADATA}\"]"
            );
            let ends = Ends::start(&bed, &to, "", &site);
            let _services: Vec<_> = [PORT, OTHER_PORT]
                .into_iter()
                .flat_map(|port| ["hub", "server"].map(|name| serve(&bed, name, port)))
                .collect();
            for server in server {
                ends.reaches(server, PORT);
                ends.is_refused(server, OTHER_PORT);
            }
            if source == "self" {
                ends.reaches(own, PORT);
            }
            ends.is_refused(own, OTHER_PORT);
            ends.is_refused(hub[1], PORT);
            ends.is_refused(METADATA.into(), PORT);
            ends.stop();
        });
    }
}

/// Returns the network of an IPv4 address with a prefix of 24 bits.
fn network(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(address) => {
            let [a, b, c, _] = address.octets();
            Ipv4Addr::new(a, b, c, 0).into()
        }
        IpAddr::V6(_) => address,
    }
}

#[test]
fn an_address_that_moves_to_the_hub_is_out_of_reach_at_once() {
    shared(|| {
        let bed = TunnelBed::new(LINK);
        let [server, _] = bed.addresses_toward("server", "hub");
        let moving = match server {
            IpAddr::V4(server) => IpAddr::V4((u32::from(server) + 70).into()),
            IpAddr::V6(_) => server,
        };
        let to = format!("to = [\"{}/24\"]", network(server));
        let ends = Ends::start(&bed, &to, "", "source = \"self\"");
        let _services = ["hub", "server"].map(|name| serve(&bed, name, PORT));
        bed.host("server")
            .ip(&format!("address add {moving}/24 dev hub"));
        ends.reaches(moving, PORT);
        for pep in [&ends.boat, &ends.hub] {
            pep.wait_idle();
        }
        bed.host("server")
            .ip(&format!("address del {moving}/24 dev hub"));
        bed.host("hub")
            .ip(&format!("address add {moving}/24 dev server"));
        ends.is_refused(moving, PORT);
        bed.host("hub")
            .ip(&format!("address del {moving}/24 dev server"));
        ends.stop();
    });
}

#[test]
fn a_boat_speaks_for_its_own_hosts() {
    shared(|| {
        let bed = TunnelBed::new(LINK);
        let clients = bed.addresses_toward("client", "boat");
        let servers = bed.addresses_toward("server", "hub");
        let _services = serve(&bed, "server", PORT);
        let [v4, v6] = clients;
        let own = format!("from = [\"{v4}\", \"{v6}\"]");
        let ends = Ends::start(&bed, &own, "", "");
        for server in servers {
            ends.reaches(server, PORT);
        }
        ends.stop();
        let ends = Ends::start(&bed, "from = [\"10.99.0.0/16\"]", "", "");
        for server in servers {
            ends.is_refused(server, PORT);
        }
        let line = ends.hub.log().expect("`from` of the peer");
        assert_eq!(
            line.text("client").parse::<SocketAddr>().map(|at| at.ip()),
            Ok(v4)
        );
        ends.stop();
    });
}

#[test]
fn a_compressed_flow_is_refused_where_the_peer_may_not_compress() {
    shared(|| {
        let bed = TunnelBed::new(LINK);
        let _service = serve(&bed, "server", PORT);
        let [server, _] = bed.addresses_toward("server", "hub");
        let ends = Ends::start(&bed, "compress = false", "", "compress = true");
        ends.is_refused(server, PORT);
        ends.hub.log().expect("`compress` of the peer is false");
        ends.stop();
        let ends = Ends::start(&bed, "compress = false", "", "");
        ends.reaches(server, PORT);
        ends.stop();
    });
}

#[test]
fn a_peer_that_may_open_no_flows_still_carries_those_of_this_end() {
    shared(|| {
        let bed = TunnelBed::new(LINK);
        let ends = Ends::start(&bed, "flows = 0", "", "");
        let _service = serve(&bed, "server", PORT);
        let [server, _] = bed.addresses_toward("server", "hub");
        assert_reset_after_connect(ends.connect(server, PORT));
        ends.boat
            .wait_counter("ended_peer_limit", |ended| ended == 1);
        ends.hub.log().expect("peer may open no flows");
        ends.stop();

        // The boat refuses flows of the hub, and its own go on.
        let [client, _] = bed.addresses_toward("client", "boat");
        let site = format!(
            "[[site]]\nname = \"back\"\nmode = \"tunnel\"\npeer = \"boat\"\nmatch = {{ dst = \"{client}\" }}\n"
        );
        let hub = bed.start(End::Hub, &bed.config(End::Hub, STATED, "", &site));
        let boat = bed.start(End::Boat, &bed.config(End::Boat, STATED, "flows = 0", SITE));
        for pep in [&boat, &hub] {
            pep.wait_counter("tunnel_peers_up", |peers| peers == 1);
        }
        let _there = serve(&bed, "client", PORT);
        let to = SocketAddr::new(client, PORT);
        assert_reset_after_connect(bed.host("server").connect(to));
        let ends = Ends {
            bed: &bed,
            boat,
            hub,
        };
        ends.reaches(bed.address("server", Family::V4), PORT);
        ends.stop();
    });
}
