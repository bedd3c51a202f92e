//! Traces of whole runs: they contain everything that the link carried, at both ends.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use tunnel_sim::{
    Plan, Side, World, endpoint::Sealed, plan::Scope, session::Plain, world::Summary,
};

/// Returns the records of an end, without the header.
fn events(trace: &[u8]) -> Vec<Value> {
    let text = std::str::from_utf8(trace).expect("JSON is UTF-8");
    let records = text.split('\u{1e}').skip(2);
    records
        .map(|record| serde_json::from_str(record).expect("JSON"))
        .collect()
}

fn named<'a>(events: &'a [Value], name: &str) -> impl Iterator<Item = &'a Value> {
    let name = name.to_owned();
    events.iter().filter(move |event| event["name"] == name)
}

fn numbers(events: &[Value], name: &str) -> Vec<u64> {
    let header = |event: &Value| event["data"]["header"]["packet_number"].as_u64();
    named(events, name).filter_map(header).collect()
}

/// Returns the bytes of each stream that packets of this name carried, each counted once.
fn carried(events: &[Value], name: &str) -> BTreeMap<u64, u64> {
    let mut spans: BTreeMap<u64, BTreeSet<(u64, u64)>> = BTreeMap::new();
    for frame in
        named(events, name).flat_map(|event| event["data"]["frames"].as_array().expect("frames"))
    {
        if frame["frame_type"] == "stream" {
            let [stream, offset, length] =
                ["stream_id", "offset", "length"].map(|key| frame[key].as_u64().expect("a number"));
            let spans = spans.entry(stream).or_default();
            spans.insert((offset, offset + length));
        }
    }
    let union = |spans: BTreeSet<(u64, u64)>| {
        let (mut bytes, mut end) = (0, 0);
        for (from, to) in spans {
            bytes += to.saturating_sub(end.max(from));
            end = end.max(to);
        }
        bytes
    };
    spans
        .into_iter()
        .map(|(stream, spans)| (stream, union(spans)))
        .collect()
}

fn check<S: Side>(scope: &Scope, seeds: std::ops::Range<u64>) {
    let (mut restored, mut losses, mut bytes) = (0, 0, 0);
    for seed in seeds {
        let plan = Plan::draw(seed, scope);
        let plain = World::<S>::run(plan.clone(), false);
        let (recorded, ends) = World::<S>::run_recorded(plan);
        let [recorded, plain] = [recorded, plain].map(|outcome| {
            let summary = outcome.unwrap_or_else(|failure| panic!("{failure}"));
            Summary {
                memory: 0,
                ..summary
            }
        });
        // Events take memory, and change nothing else.
        assert_eq!(recorded, plain);
        let ends = ends.map(|end| events(&end));
        for (here, there) in [(&ends[0], &ends[1]), (&ends[1], &ends[0])] {
            let sent = numbers(here, "transport:packet_sent");
            let received = numbers(there, "transport:packet_received");
            let once: BTreeSet<_> = sent.iter().collect();
            assert!(
                received.iter().all(|number| once.contains(number)),
                "seed {seed}"
            );
            let (out, came) = (
                carried(here, "transport:packet_sent"),
                carried(there, "transport:packet_received"),
            );
            for (stream, bytes) in &came {
                assert!(
                    out.get(stream) >= Some(bytes),
                    "seed {seed}, stream {stream}"
                );
            }
            bytes += came.values().sum::<u64>();
            losses += named(here, "recovery:packet_lost").count();
            restored += named(here, "pepd:segments_restored").count();
            assert_eq!(named(here, "pepd:events_missed").count(), 0, "seed {seed}");
        }
    }
    println!("{bytes} bytes, {losses} losses, {restored} times that FEC restored");
    assert!(bytes > 0 && losses > 0 && restored > 0);
}

#[test]
fn traces_of_sessions_have_all_packets_and_change_nothing() {
    check::<Plain>(&Scope::SESSION, 0..20);
}

#[test]
fn traces_of_endpoints_have_all_packets_and_change_nothing() {
    check::<Sealed>(&Scope::ENDPOINT, 0..12);
}
