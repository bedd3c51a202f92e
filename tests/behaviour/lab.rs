//! The lab with a pepd at each end, and a hub with two boats.

use std::path::Path;

use pepd_tests::pep_binary::pepd;
use winkemu::lab::{
    run::{Campaign, Progress, RunOptions},
    scenario::Scenario,
};

const HUB: &str = r#"
path = ["client1", "boat1", "one", "hub", "server"]
branches = [["client2", "boat2", "two", "hub"]]
late = "1s"

[links.one]
rate = "8Mbit/s"
delay = "20ms"
queue = "100%bdp"
loss = "1%"

[links.two]
rate = "4Mbit/s"
delay = "30ms"
queue = "100%bdp"

[[variant]]
name = "tunnel"
pepd.boat1 = { site = [{ name = "all", peer = "hub" }] }
pepd.boat2 = { site = [{ name = "all", peer = "hub", class = "bulk" }] }
pepd.hub = {}

[[workload]]
name = "messages"
group = "both"
program = "messages"
client = "client1"
size = "200B"
interval = "20ms"
duration = "2s"

[[workload]]
name = "download"
group = "both"
program = "bulk"
direction = "download"
client = "client2"
duration = "3s"
"#;

#[test]
fn a_scenario_with_three_pepds_has_its_flows_in_tunnels() {
    // The lab searches there, too.
    assert!(pepd().is_file());
    let file = Path::new("hub.toml");
    let scenario = Scenario::parse(HUB, file).unwrap_or_else(|err| panic!("{err}"));
    let campaign = Campaign::new(&scenario, file, &RunOptions::default());
    let results = campaign.and_then(|campaign| campaign.run(&Progress::silent()));
    let results = results.unwrap_or_else(|err| panic!("{err}"));
    let json = results.to_json();
    let run = &json["runs"][0];
    assert_eq!(run["outcome"], "good", "{run}");
    let counter = |node: &str, name: &str| run["pepds"][node]["counters"][name].as_u64();
    assert_eq!(counter("hub", "tunnel_flows_far"), Some(2), "{run}");
    for boat in ["boat1", "boat2"] {
        assert_eq!(counter(boat, "tunnel_flows_near"), Some(1), "{run}");
        assert_eq!(run["pepds"][boat]["exit_code"], 0, "{run}");
    }
    let messages = &run["measurements"][0]["detail"];
    assert_eq!(messages["sent"], messages["arrived"], "{messages}");
    let download = run["measurements"][1]["goodput_bps"].as_f64();
    assert!(download.is_some_and(|bps| bps > 1e6), "{download:?}");
}
