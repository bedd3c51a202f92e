//! Tests of a hub with spokes.

use super::*;

/// Hub with two spokes, one of which has an outage.
const HUB: &str = r#"
path = ["client1", "one", "hub", "server"]
branches = [["client2", "two", "hub"]]
metrics = ["on_time", "delay_p95", "resumed", "seconds"]
late = "1s"

[links.one]
rate = "4Mbit/s"
delay = "40ms"

[links.two]
rate = "4Mbit/s"
delay = "10ms"
outages = "2s+1s"

[[workload]]
name = "messages"
group = "both"
program = "messages"
client = "client1"
size = "200B"
interval = "20ms"
duration = "2s"
within = "500ms"

[[workload]]
name = "upload"
group = "both"
program = "bulk"
client = "client2"
duration = "8s"
interval = "20ms"

[[workload]]
name = "page"
program = "page"
client = "client2"
objects = 5
size = "20kB"
connections = 2
"#;

#[test]
fn spokes_of_a_hub_have_delays_outages_and_pages_of_their_own() {
    let lab = Lab::new(HUB);
    let output = lab.run(&["--json", "all.json"]);
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{stdout}\n{stderr}");
    let json: Value = serde_json::from_slice(&fs::read(lab.path("all.json")).unwrap()).unwrap();
    let number = |value: &Value| value.as_f64().unwrap_or_else(|| panic!("{value}"));
    let [messages, upload] = [0, 1].map(|index| &json["runs"][0]["measurements"][index]);
    let detail = &messages["detail"];
    assert_eq!(
        detail["one_way_s"], 0.04,
        "one-way delay of its own spoke: {detail}"
    );
    assert_eq!(
        (&detail["sent"], &detail["arrived"]),
        (&75.into(), &75.into())
    );
    assert!(
        number(&detail["p50_s"]) > 0.0 && number(&detail["on_time"]) > 0.5,
        "{detail}"
    );
    // The outage ended at 3 s of the link's time, which is only slightly ahead of the upload's.
    let outage = &upload["link_use"]["outage"];
    assert!(
        (1.0..=3.0).contains(&number(&outage["ended_s"])),
        "{outage}"
    );
    assert!(number(&upload["resumed_s"]) > 0.0, "{upload}");
    let page = &json["runs"][1]["measurements"][0];
    assert!(
        number(&page["seconds"]) >= 0.08,
        "less than two round trips: {page}"
    );
    assert!(
        (2..=3).contains(&page["detail"]["connections"].as_u64().unwrap()),
        "{page}"
    );
}
