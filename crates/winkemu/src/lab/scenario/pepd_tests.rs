//! Tests of pepd configurations, on one node and on several.

use super::{
    tests::{GOOD, mistakes, parse},
    *,
};

/// Pepds of a run by node, with the peers they call.
fn pepds_of(scenario: &Scenario, run: &RunSpec) -> Vec<(String, toml::Table, Vec<String>)> {
    let link = |(name, _): &(String, LinkOptions)| {
        let options = scenario.link_options(run, name);
        (name.clone(), options.resolve_without_files().unwrap())
    };
    let links: Vec<_> = scenario.links.iter().map(link).collect();
    let ground = Ground {
        links: &links,
        address: &|node, neighbour| match (node, neighbour) {
            ("far", "near") => "10.77.1.2".parse().unwrap(),
            ("hub", _) => "10.77.9.9".parse().unwrap(),
            other => panic!("{other:?}"),
        },
        key: &|node| (format!("/keys/{node}"), format!("public of {node}")),
        shared_key: Path::new("/keys/psk"),
    };
    let table = |spec: PepdSpec| (spec.node, spec.config.parse().unwrap(), spec.calls);
    pepds(scenario, run, &ground)
        .into_iter()
        .map(table)
        .collect()
}

fn table(text: &str) -> toml::Table {
    text.parse().unwrap()
}

#[test]
fn pepd_gets_its_interfaces_and_link() {
    let scenario = parse(GOOD);
    let runs = scenario.runs();
    assert_eq!(pepds_of(&scenario, &runs[0]), []);
    let expected = table(
        r#"
        intercept = { lan = ["client"] }
        timeouts = { drain = "2s" }
        link = { interface = "server", rate = "10Mbit/s", rate_down = "10Mbit/s", rtt = "600ms" }
        site = [{ name = "all", congestion = ["bbr"] }]
    "#,
    );
    assert_eq!(
        pepds_of(&scenario, &runs[1]),
        [("pepd".to_owned(), expected, Vec::new())]
    );
}

#[test]
fn pepd_on_the_far_side_knows_that_connections_come_over_the_link() {
    let text = GOOD.replacen("\"server\"]", "\"hub\", \"server\"]", 1);
    let scenario = parse(&text.replacen("name = \"get\"", "name = \"get\"\npepd_on = \"hub\"", 1));
    let run = scenario
        .runs()
        .into_iter()
        .find(|run| run.variant == 1 && run.group == 1)
        .unwrap();
    let (node, config, _) = &pepds_of(&scenario, &run)[0];
    assert_eq!(node, "hub");
    assert_eq!(config["intercept"]["lan"][0].as_str(), Some("pepd"));
    assert_eq!(config["link"]["interface"].as_str(), Some("pepd"));
    assert_eq!(config["site"][0]["link_leg"].as_str(), Some("client"));
}

/// Scenario with a pepd on each side of an asymmetric link.
const TUNNEL: &str = r#"
path = ["client", "near", "link", "far", "server"]

[link]
rate = "10mbit"
delay = "300ms"
ba = { rate = "2mbit", delay = "200ms" }

[[variant]]
name = "tunnel"
pepd.near = { site = [{ name = "all", peer = "far" }] }
pepd.far = { peer.near = { dedicated = true } }

[[workload]]
name = "up"
program = "bulk"
duration = "20s"
"#;

#[test]
fn peers_have_keys_endpoints_and_the_rate_of_their_direction() {
    let scenario = parse(TUNNEL);
    let near = table(
        r#"
        intercept = { lan = ["client"] }
        timeouts = { drain = "2s" }
        link = { interface = "far", rate = "10Mbit/s", rate_down = "2Mbit/s", rtt = "500ms" }
        identity = { key_file = "/keys/near" }
        site = [{ name = "all", mode = "tunnel", peer = "far" }]
        [peer.far]
        endpoint = "10.77.1.2:5001"
        public_key = "public of far"
        psk_file = "/keys/psk"
        to = ["0.0.0.0/0", "::/0"]
        rate = "10Mbit/s"
        rtt = "500ms"
    "#,
    );
    let far = table(
        r#"
        intercept = { lan = ["server"] }
        timeouts = { drain = "2s" }
        link = { interface = "near", rate = "2Mbit/s", rate_down = "10Mbit/s", rtt = "500ms" }
        identity = { key_file = "/keys/far", listen = "0.0.0.0:5001" }
        [peer.near]
        dedicated = true
        public_key = "public of near"
        psk_file = "/keys/psk"
        to = ["0.0.0.0/0", "::/0"]
        rate = "2Mbit/s"
        rtt = "500ms"
    "#,
    );
    let calls = vec!["far".to_owned()];
    assert_eq!(
        pepds_of(&scenario, &scenario.runs()[0]),
        [
            ("far".to_owned(), far, Vec::new()),
            ("near".to_owned(), near, calls)
        ]
    );
}

#[test]
fn what_a_variant_says_of_a_peer_and_its_link_stays() {
    let text = TUNNEL
        .replacen("dedicated = true", "rate = \"1Mbit/s\"", 1)
        .replacen("near = {", "near = { link = { rate = \"auto\" },", 1)
        .replacen("peer = \"far\"", "mode = \"split\", peer = \"far\"", 1);
    let scenario = parse(&text);
    let pepds = pepds_of(&scenario, &scenario.runs()[0]);
    let [(_, far, _), (_, near, _)] = &pepds[..] else {
        panic!("{pepds:?}")
    };
    assert_eq!(far["peer"]["near"]["rate"].as_str(), Some("1Mbit/s"));
    assert_eq!(near["link"]["rate"].as_str(), Some("auto"));
    assert_eq!(near["site"][0]["mode"].as_str(), Some("split"));
    // The rate of the link applies to the peer behind it, too.
    let peer = near["peer"]["far"].as_table().unwrap();
    assert!(
        !peer.contains_key("rate") && peer.contains_key("rtt"),
        "{peer}"
    );
}

#[test]
fn a_hub_serves_several_branches() {
    let text = r#"
path = ["client1", "boat1", "one", "hub", "server"]
branches = [["client2", "boat2", "two", "hub"]]

[links.one]
rate = "10mbit"
delay = "300ms"

[links.two]
rate = "1mbit"
delay = "10ms"

[[variant]]
name = "tunnel"
pepd.boat1 = { site = [{ name = "all", peer = "hub" }] }
pepd.boat2 = { site = [{ name = "all", peer = "hub" }] }
pepd.hub = {}

[[workload]]
name = "up"
program = "bulk"
client = "client2"
duration = "20s"
"#;
    let scenario = parse(text);
    let pepds = pepds_of(&scenario, &scenario.runs()[0]);
    let names: Vec<_> = pepds.iter().map(|(node, _, _)| node.as_str()).collect();
    assert_eq!(
        names,
        ["hub", "boat1", "boat2"],
        "called pepds do not come first"
    );
    let hub = &pepds[0].1;
    assert_eq!(hub["intercept"]["lan"].as_array().unwrap().len(), 1);
    assert_eq!(hub["peer"]["boat1"]["rate"].as_str(), Some("10Mbit/s"));
    assert_eq!(hub["peer"]["boat2"]["rate"].as_str(), Some("1Mbit/s"));
    assert_eq!(pepds[2].1["intercept"]["lan"][0].as_str(), Some("client2"));
    assert_eq!(
        pepds[2].1["peer"]["hub"]["endpoint"].as_str(),
        Some("10.77.9.9:5001")
    );
    let broken = |from: &str, to: &str, expected: &str| {
        let said = mistakes(&text.replacen(from, to, 1));
        assert!(said.contains(expected), "{to}: {said}");
    };
    let branch = "branches = [[\"client2\", \"boat2\", \"two\", \"hub\"]]";
    broken(
        branch,
        "branches = [[\"client2\", \"two\", \"boat2\"]]",
        "x.toml:3: branches[1]: must hold exactly one node",
    );
    broken(
        branch,
        "branches = [[\"client1\", \"two\", \"hub\"]]",
        "exactly one node",
    );
    broken(
        branch,
        "branches = [[\"client2\", \"one\", \"hub\"]]",
        "link `one` is already between other nodes",
    );
    broken(
        "pepd.hub = {}",
        "pepd.hup = {}",
        "mixes keys that are nodes with others",
    );
    broken(
        "pepd.hub = {}",
        "",
        "variant[1].pepd.boat1: peer `hub` is not another node with a pepd",
    );
}

#[test]
fn copies_have_names_and_ports_of_their_own() {
    let text = TUNNEL.replacen("program = \"bulk\"", "program = \"bulk\"\ncopies = 3", 1);
    let scenario = parse(&text);
    let ports: Vec<_> = scenario.groups[0]
        .workloads
        .iter()
        .map(|workload| match &workload.program {
            Program::Bulk(bulk) => (workload.name.as_str(), bulk.port),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(ports, [("up 1", 9000), ("up 2", 9001), ("up 3", 9002)]);
    let said = mistakes(&text.replacen("copies = 3", "copies = 1", 1));
    assert!(
        said.contains("workload[1].copies: must be 2 to 64"),
        "{said}"
    );
}

#[test]
fn messages_and_pages_say_what_they_need() {
    let with = |keys: &str| TUNNEL.replacen("program = \"bulk\"\nduration = \"20s\"", keys, 1);
    let messages =
        "program = \"messages\"\nduration = \"20s\"\ninterval = \"50ms\"\nsize = \"200B\"";
    let Program::Messages(read) = &parse(&with(messages)).groups[0].workloads[0]
        .program
        .clone()
    else {
        panic!()
    };
    assert_eq!(
        (read.bytes, read.within.as_millis(), read.port),
        (200, 60, 9000)
    );
    let page = "program = \"page\"\nobjects = 35\nsize = \"200kB\"";
    let Program::Page(read) = &parse(&with(page)).groups[0].workloads[0].program.clone() else {
        panic!()
    };
    assert_eq!((read.objects, read.connections), (35, 6));
    for (keys, expected) in [
        (
            messages.replace("\"200B\"", "\"4B\""),
            "size: must be 8 to 1000000 bytes",
        ),
        (
            messages.replace("interval = \"50ms\"", ""),
            "interval: is missing for the program messages",
        ),
        (
            messages.replace("\"50ms\"", "\"1us\""),
            "interval: must divide the duration",
        ),
        (
            page.replace("objects = 35", ""),
            "objects: is missing for the program page",
        ),
        (page.replace("35", "1"), "objects: must be 2 to 1000"),
        (
            format!("{page}\nduration = \"4s\""),
            "duration: is only for the programs bulk, iperf3, messages",
        ),
    ] {
        let said = mistakes(&with(&keys));
        assert!(said.contains(expected), "{keys}: {said}");
    }
}
