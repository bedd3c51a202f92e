//! Tests of the text form of links.

use std::io;

use super::*;

fn error(text: &str) -> String {
    text.parse::<LinkOptions>().unwrap_err().to_string()
}

#[test]
fn lists_within_lists_keep_together() {
    let path: PathOptions = "rate=1mbit,wink=p=0.4,i=100ms,gilbert=0.01,0.3,aqm=codel:target=1ms,interval=9ms,jitter=2ms,exponential,loss=1%"
        .parse()
        .unwrap();
    let entries: Vec<String> = path
        .entries()
        .into_iter()
        .map(|(k, v)| format!("{k}={v}"))
        .collect();
    assert_eq!(
        entries,
        [
            "rate=1Mbit/s",
            "aqm=codel:target=1ms,interval=9ms",
            "jitter=2ms,exponential",
            "loss=1%",
            "gilbert=p=1%,q=30%,bad=100%,good=0%",
            "wink=p=40%,i=100ms",
        ]
    );
    let again: PathOptions = entries.join(",").parse().unwrap();
    assert_eq!(again, path, "options differ after a round trip");
}

#[test]
fn errors_name_the_key_and_what_it_takes() {
    assert!(error("speed=1mbit").contains("unknown link option `speed`; valid options are rate,"));
    assert!(error("rate").contains("not key=value"));
    assert!(error("delay=264").starts_with("delay: `264` is not a duration"));
    for (text, range) in [
        ("overhead=1001", "0 to 1000"),
        ("queue=20000%bdp", "1% to 10000%"),
        ("loss=101%", "between 0 and 1"),
        ("wink=p=0.9999,i=1s", "0 to 0.999"),
        ("wink=p=0.5,i=1us", "100us to 1d"),
        ("wink=p=0.5,q=1s", "p=0.4,i=100ms"),
        ("periodic=up=0s,down=1s", "above 0"),
        ("onoff=up=1s,down=1us", "1ms or more"),
        ("gilbert=0,0", "p + q above 0"),
        ("aqm=codel:target=1s,interval=1s", "target below interval"),
        ("aqm=red", "\"tail\""),
        ("outages=10s", "start + length"),
        ("queued=maybe", "\"drop\" \"hold\""),
    ] {
        let error = error(text);
        assert!(error.contains(range), "{text}: {error}");
    }
}

#[test]
fn files_hold_links_as_tables() {
    let text = r#"
        rate = "10Mbit/s"
        delay = "300ms"
        loss = 0.01
        reorder = true
        overhead = 20
        wink = { p = 0.4, i = "100ms" }
        ab = { rate = 9600 }
        ba = { loss = "@losses" }
    "#;
    let options: LinkOptions = toml::from_str(text).unwrap();
    let config = options.resolve(&mut |_| Ok("01".to_owned())).unwrap();
    assert_eq!(config.ab.rate.mean().unwrap().bits_per_second(), 9600);
    assert_eq!(config.ab.loss.packet.get(), 0.01);
    assert!(config.ba.loss.trace.is_some() && config.ba.delay.reorder);
    assert_eq!(config.ab.outages, config.ba.outages);
    assert_eq!((config.ab.outages.len(), config.ba.overhead_bytes), (1, 20));
    let json = serde_json::to_string(&options).unwrap();
    let again: LinkOptions = serde_json::from_str(&json).unwrap();
    assert_eq!(again, options);
    for wrong in [
        "rate = [1]",
        "ab = 3",
        "ab = { speed = 1 }",
        "delay = \"1 parsec\"",
    ] {
        assert!(toml::from_str::<LinkOptions>(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn what_is_said_goes_over_the_base_but_one_direction_stays_narrower() {
    let mut base: LinkOptions = "rate=10mbit,delay=1ms".parse().unwrap();
    base.ab = Some("rate=1mbit,loss=1%".parse().unwrap());
    let mut said: LinkOptions = "rate=5mbit".parse().unwrap();
    said.ba = Some("delay=2ms".parse().unwrap());
    let config = said.over(base).resolve_without_files().unwrap();
    let rate = |path: &PathConfig| path.rate.mean().unwrap().bits_per_second();
    assert_eq!((rate(&config.ab), rate(&config.ba)), (5_000_000, 5_000_000));
    assert_eq!(config.round_trip().as_millis(), 3);
    assert_eq!(
        (config.ab.loss.packet.get(), config.ba.loss.packet.get()),
        (0.01, 0.0)
    );
}

#[test]
fn unreadable_and_senseless_files_are_named() {
    let options: LinkOptions = "rate=@no/such/file".parse().unwrap();
    let missing = || io::Error::from(io::ErrorKind::NotFound);
    let error = options.resolve(&mut |_| Err(missing())).unwrap_err();
    assert!(error.to_string().contains("no/such/file"));
    for (text, line) in [
        ("0,1mbit\n0,2mbit", 2),
        ("0,fast", 1),
        ("1,1mbit", 1),
        ("5\n3", 2),
    ] {
        let error = options.resolve(&mut |_| Ok(text.to_owned())).unwrap_err();
        let cause = std::error::Error::source(&error).unwrap().to_string();
        assert!(cause.starts_with(&format!("line {line}")), "{cause}");
    }
    let error = options
        .resolve(&mut |_| Ok("# nothing\n".to_owned()))
        .unwrap_err();
    assert!(
        std::error::Error::source(&error)
            .unwrap()
            .to_string()
            .contains("empty")
    );
}

#[test]
fn traces_change_in_steps_and_start_again() {
    let rates = trace::parse_rates("time,rate\n0,8mbit\n0.5,0\n1,16mbit\n2,end\n").unwrap();
    let at = |ms: u64| rates.at(ms * MS);
    assert_eq!(at(0), (8_000_000, 500 * MS));
    assert_eq!(at(500), (0, SECOND));
    assert_eq!(at(1999), (16_000_000, 2 * SECOND));
    assert_eq!(at(4500), (0, 5 * SECOND));
    assert_eq!(rates.mean(|rate| rate as f64), 10_000_000.0);
    let last = trace::parse_rates("0,8mbit\n1,9mbit").unwrap();
    assert_eq!(
        last.at(SECOND * 100),
        (9_000_000, FOREVER),
        "last value does not stay"
    );
}

#[test]
fn mahimahi_traces_are_rates_by_the_millisecond() {
    // Two opportunities in millisecond 0 and one in 2; the trace is 3 ms long.
    let rates = trace::parse_rates("0\n0\n2\n").unwrap();
    let opportunity = 1504 * 8 * 1000;
    assert_eq!(rates.at(0), (2 * opportunity, MS));
    assert_eq!(rates.at(MS), (0, 2 * MS));
    assert_eq!(rates.at(5 * MS), (opportunity, 6 * MS));
}

#[test]
fn delays_may_change_over_time() {
    let options: LinkOptions = "delay=@delays".parse().unwrap();
    let text = "0,10ms\n1,2ms\n".to_owned();
    let config = options.resolve(&mut |_| Ok(text.clone())).unwrap();
    let mut engine = Engine::new(&config, 1);
    engine.handle_packet(Direction::AtoB, &[0; 9], 995 * MS);
    engine.handle_packet(Direction::AtoB, &[0; 9], SECOND);
    engine.handle_packet(Direction::AtoB, &[0; 9], SECOND + 10 * MS);
    let times: Vec<_> = drain(&mut engine, FOREVER)
        .iter()
        .map(|a| a.at / MS)
        .collect();
    assert_eq!(
        times,
        [1005, 1005, 1012],
        "second packet overtook the first"
    );
}
