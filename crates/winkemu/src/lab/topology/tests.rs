use std::{
    io::Read as _,
    net::{SocketAddr, TcpListener, TcpStream},
    time::Duration,
};

use super::*;

fn reaches(lab: &Topology, from: &str, to: &str) {
    for family in [Family::Ipv4, Family::Ipv6] {
        let address = SocketAddr::new(lab.node(to).ip(family), 80);
        let listener = lab
            .node(to)
            .netns()
            .enter(|| TcpListener::bind(address))
            .unwrap()
            .unwrap();
        let connect = || TcpStream::connect_timeout(&address, Duration::from_secs(10));
        drop(
            lab.node(from)
                .netns()
                .enter(connect)
                .unwrap()
                .expect("connects"),
        );
        let (mut stream, _) = listener.accept().unwrap();
        assert_eq!(stream.read(&mut [0]).unwrap(), 0);
    }
}

#[test]
fn the_ends_of_a_chain_reach_each_other() {
    let lab = Topology::chain(&["client", "pepd", "router", "server"]).unwrap();
    reaches(&lab, "client", "server");
    reaches(&lab, "server", "client");
    reaches(&lab, "client", "router");
}

#[test]
fn a_ring_takes_the_shorter_way() {
    let builder = Topology::builder()
        .veth("a", "b")
        .veth("b", "c")
        .veth("c", "a");
    let lab = builder.without_offloads().build().unwrap();
    for (from, to) in [("a", "b"), ("b", "c"), ("c", "a"), ("a", "c")] {
        reaches(&lab, from, to);
    }
}

#[test]
fn interfaces_are_named_after_the_neighbour() {
    let lab = Topology::chain(&["client", "pepd", "server"]).unwrap();
    let pepd = lab.node("pepd");
    assert_eq!(pepd.interface("client").ipv4.to_string(), "10.77.0.2/24");
    assert_eq!(
        pepd.interface("server").ipv6.to_string(),
        "fd77:0:0:1::1/64"
    );
    let names = pepd.netns().interfaces().unwrap();
    assert!(names.contains(&"client".to_owned()) && names.contains(&"server".to_owned()));
}

#[test]
fn a_node_has_its_own_congestion_control_and_settings() {
    let builder = Topology::builder()
        .veth("a", "b")
        .sysctl("a", "net.ipv4.tcp_sack", "0");
    let lab = builder.build().unwrap();
    lab.node("b").set_congestion("reno").unwrap();
    let of = |node: &str, key: &str| lab.node(node).netns().sysctl(key).unwrap();
    assert_eq!(of("b", "net.ipv4.tcp_congestion_control"), "reno");
    assert_eq!(of("a", "net.ipv4.tcp_sack"), "0");
    assert_eq!(of("b", "net.ipv4.tcp_sack"), "1");
    let err = lab.node("b").set_congestion("no-such").unwrap_err();
    assert!(err.to_string().contains("no-such"), "{err}");
}

#[test]
fn a_default_route_leads_to_the_neighbour() {
    let lab = Topology::chain(&["client", "router", "server"]).unwrap();
    let server = lab.node("server").netns();
    server
        .add_address("lo", "203.0.113.1/32".parse().unwrap())
        .unwrap();
    lab.node("client").add_default_route("router").unwrap();
    lab.node("router").add_default_route("server").unwrap();
    let address: SocketAddr = "203.0.113.1:80".parse().unwrap();
    let _listener = server
        .enter(|| TcpListener::bind(address))
        .unwrap()
        .unwrap();
    let connect = || TcpStream::connect_timeout(&address, Duration::from_secs(10));
    lab.node("client")
        .netns()
        .enter(connect)
        .unwrap()
        .expect("connects");
}

#[test]
fn mistakes_are_named() {
    let name = |builder: TopologyBuilder| builder.build().unwrap_err().to_string();
    assert!(name(Topology::builder().veth("a", "a b")).contains("`a b` is not a node name"));
    assert!(name(Topology::builder().veth("a", "a")).contains("`a` and `a`"));
    assert!(name(Topology::builder().veth("a", "b").veth("b", "a")).contains("second edge"));
}

#[test]
fn a_link_in_the_middle_delays_and_is_reported() {
    let options: crate::link::LinkOptions = "delay=40ms,rate=10mbit".parse().unwrap();
    let link = LinkEdge::new("sat", options.resolve_without_files().unwrap());
    let builder = Topology::builder()
        .veth("client", "pepd")
        .link("pepd", "server", link);
    let mut lab = builder.build().unwrap();
    let start = Instant::now();
    reaches(&lab, "client", "server");
    // Two connections, each with one round trip of waiting.
    assert!(
        start.elapsed() >= Duration::from_millis(160),
        "{:?}",
        start.elapsed()
    );
    let reports = lab.stop_links();
    assert_eq!(reports[0].0, "sat");
    assert!(
        reports[0].1.ab.packets.delivered >= 4,
        "{}",
        reports[0].1.summary()
    );
}
