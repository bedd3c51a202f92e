use super::*;
use crate::{
    lab::program::Transfer,
    link::{
        Wink,
        predict::{Model, Prediction},
    },
};

pub(super) const GOOD: &str = r#"
path = ["client", "pepd", "link", "server"]
seeds = [7, 8]
timeout = "90s"

[link]
rate = "10mbit"
delay = "300ms"
queue = "100%bdp"
ba = { loss = "2%" }

[matrix]
"link.loss" = ["0", "0.1%"]
"congestion.client" = ["reno", "cubic"]

[[variant]]
name = "direct"

[[variant]]
name = "pepd bbr"
pepd = { site = [{ name = "all", congestion = ["bbr"] }] }
node.client.congestion = "reno"

[[workload]]
name = "up"
program = "bulk"
duration = "20s"

[[workload]]
name = "get"
program = "curl"
direction = "download"
size = "5MB"

[[check]]
variant = "pepd bbr"
baseline = "direct"
mean_ratio_min = 0.97
"#;

pub(super) fn parse(text: &str) -> Scenario {
    Scenario::parse(text, Path::new("x/test.toml")).unwrap_or_else(|err| panic!("{err}"))
}

pub(super) fn mistakes(text: &str) -> String {
    match Scenario::parse(text, Path::new("x.toml")) {
        Err(err) => err.to_string(),
        Ok(_) => panic!("accepted: {text}"),
    }
}

/// Mistakes of the scenario with a text replaced.
fn broken(from: &str, to: &str) -> String {
    assert!(GOOD.contains(from), "{from}");
    mistakes(&GOOD.replacen(from, to, 1))
}

#[test]
fn a_good_scenario_is_understood() {
    let scenario = parse(GOOD);
    assert_eq!(scenario.name, "test");
    let links: Vec<_> = scenario
        .network
        .edges()
        .iter()
        .map(|edge| edge.link.as_deref())
        .collect();
    assert_eq!(links, [None, Some("link")]);
    let Program::Bulk(bulk) = &scenario.groups[0].workloads[0].program else {
        panic!()
    };
    assert_eq!((bulk.duration.as_secs(), bulk.warmup.as_secs()), (20, 5));
    let Program::Curl(curl) = &scenario.groups[1].workloads[0].program else {
        panic!()
    };
    assert_eq!((curl.bytes, curl.transfer), (5_000_000, Transfer::Download));
    assert_eq!(curl.timeout.as_secs(), 90);
}

#[test]
fn runs_cover_the_matrix_with_what_is_compared_side_by_side() {
    let scenario = parse(GOOD);
    let runs = scenario.runs();
    assert_eq!(runs.len(), 2 * 2 * 2 * 2 * 2);
    let words: Vec<_> = runs[..3].iter().map(|run| scenario.describe(run)).collect();
    let point = "link.loss 0, congestion.client reno, seed 7";
    let expected = ["direct, up", "pepd bbr, up", "direct, get"];
    assert_eq!(words, expected.map(|start| format!("{start}, {point}")));
}

#[test]
fn the_matrix_goes_before_the_variant_and_the_scenario() {
    let scenario = parse(GOOD);
    let run = scenario
        .runs()
        .into_iter()
        .find(|run| run.variant == 1 && run.point == [1, 1]);
    let run = run.unwrap();
    assert_eq!(
        scenario.node_settings(&run, "client").congestion.unwrap(),
        "cubic"
    );
    let link = scenario
        .link_options(&run, "link")
        .resolve_without_files()
        .unwrap();
    assert_eq!(link.ab.loss.packet.to_string(), "0.1%");
    assert_eq!(link.ba.loss.packet.to_string(), "2%");
}

#[test]
fn a_value_of_the_matrix_may_differ_by_direction() {
    let text = GOOD.replacen(
        "[matrix]",
        "[matrix]\n\"link.rate\" = [\"2Mbit/s | 20Mbit/s\"]",
        1,
    );
    let scenario = parse(&text);
    let link = scenario.link_options(&scenario.runs()[0], "link");
    let link = link.resolve_without_files().unwrap();
    let rates = [&link.ab.rate, &link.ba.rate].map(|rate| format!("{rate:?}"));
    assert!(
        rates[0].contains("2000000") && rates[1].contains("20000000"),
        "{rates:?}"
    );
}

#[test]
fn the_pacing_of_a_variant_goes_before_that_of_the_scenario() {
    let node = "node.client.congestion = \"reno\"";
    let text = GOOD
        .replacen(
            node,
            &format!("{node}\nnode.client.pacing = \"9.65Mbit/s\""),
            1,
        )
        .replacen(
            "[matrix]",
            "[node.client]\npacing = \"1Mbit/s\"\n[matrix]",
            1,
        );
    let scenario = parse(&text);
    let pacing = |variant| {
        let run = scenario
            .runs()
            .into_iter()
            .find(|run| run.variant == variant);
        let rate = scenario.node_settings(&run.unwrap(), "client").pacing;
        rate.unwrap().bits_per_second()
    };
    assert_eq!([pacing(0), pacing(1)], [1_000_000, 9_650_000]);
}

#[test]
fn a_variant_can_send_by_quic() {
    let node = "node.client.congestion = \"reno\"";
    let with = |control: &str| {
        let quic = format!("{node}\nnode.client.quic = \"{control}\"");
        GOOD.replacen(node, &quic, 1)
    };
    let scenario = parse(&with("bbr"));
    let quic = |variant| {
        let mut runs = scenario.runs().into_iter();
        let run = runs.find(|run| run.variant == variant).unwrap();
        scenario.node_settings(&run, "client").quic
    };
    assert_eq!([quic(0), quic(1)], [None, Some(QuicControl::Bbr)]);
    let said = Scenario::parse(&with("vegas"), Path::new("test.toml")).unwrap_err();
    assert!(
        said.to_string().contains("`bbr`, `cubic`, `reno`"),
        "{said}"
    );
}

#[test]
fn references_have_a_value_for_each_place_or_one_for_all() {
    let with = |values: &str| {
        let reference = "[[reference]]\nname = \"a model\"\nmetric = \"efficiency\"";
        format!("{GOOD}\n{reference}\nvalues = {values}\n")
    };
    let values = |text: &str| parse(&with(text)).references[0].values.clone();
    assert_eq!(values("[\"50%\"]"), [Some(0.5), Some(0.5)]);
    assert_eq!(values("[\"none\", \"0.4\"]"), [None, Some(0.4)]);
    for (wrong, expected) in [
        ("[\"1\", \"1\", \"1\"]", "one value, or 2"),
        ("[\"fast\"]", "between 0 and 1"),
    ] {
        let said = Scenario::parse(&with(wrong), Path::new("test.toml")).unwrap_err();
        assert!(said.to_string().contains(expected), "{said}");
    }
}

#[test]
fn references_name_known_workloads_and_places() {
    let with = |rest: &str| {
        let reference = "[[reference]]\nname = \"x\"\nmetric = \"seconds\"\nvalues = [\"1s\"]";
        format!("{GOOD}\n{reference}\n{rest}\n")
    };
    let good = "workload = \"get\"\nat = { \"congestion.client\" = [\"reno\"] }";
    let reference = &parse(&with(good)).references[0];
    assert_eq!(reference.workload.as_deref(), Some("get"));
    let at = [("congestion.client".to_owned(), vec!["reno".to_owned()])];
    assert_eq!(reference.at, at);
    for (wrong, expected) in [
        (
            "workload = \"put\"",
            "reference.workload: unknown name `put`; names are up, get",
        ),
        (
            "at = { \"link.loss\" = \"9%\" }",
            "reference.at.\"link.loss\": `9%` is not in [matrix]; values are 0, 0.1%",
        ),
    ] {
        let said = mistakes(&with(wrong));
        assert!(said.contains(expected), "{said}");
    }
}

/// Scenario whose first key is `wink`, with this reference in it.
fn winking(reference: &str) -> String {
    let winks = r#""link.wink" = ["p=0.4,i=40ms", "p=0.4,i=500ms"]"#;
    let text = GOOD.replacen(r#""link.loss" = ["0", "0.1%"]"#, winks, 1);
    assert_ne!(text, GOOD);
    format!("{text}\n[[reference]]\nname = \"a model\"\n{reference}\n")
}

#[test]
fn references_are_predicted_for_each_wink() {
    let of = |model: &str| {
        let predict = format!("predict = {{ model = \"{model}\", perfect = \"1.86s\" }}");
        let scenario = parse(&winking(&format!("metric = \"seconds\"\n{predict}")));
        scenario.references[0].values.clone()
    };
    let bound = of("bound");
    assert!(
        bound
            .iter()
            .all(|value| (value.unwrap() - 3.1).abs() < 1e-9)
    );
    assert_eq!(bound.len(), 2);
    let expected = |interval_ms| {
        let wink = Wink {
            probability: "0.4".parse().unwrap(),
            interval: Duration::from_millis(interval_ms),
        };
        let prediction = Prediction::new(Duration::from_millis(1860), wink).unwrap();
        Some(prediction.seconds(Model::TcpCharged))
    };
    assert_eq!(of("tcp-charged"), [expected(40), expected(500)]);
}

#[test]
fn references_that_cannot_be_predicted_say_why() {
    let good = "predict = { model = \"tcp\", perfect = \"1.86s\" }";
    for (text, expected) in [
        (
            winking(&format!("metric = \"goodput\"\n{good}")),
            "must be \"seconds\"",
        ),
        (
            winking("metric = \"seconds\"\npredict = { model = \"tcp\", perfect = \"0\" }"),
            "longer than 0",
        ),
        (
            winking("metric = \"seconds\"\npredict = { model = \"udp\", perfect = \"1s\" }"),
            "tcp-scaled",
        ),
        (
            winking(&format!("metric = \"seconds\"\n{good}\nvalues = [\"1s\"]")),
            "either `values` or `predict`",
        ),
        (
            winking("metric = \"seconds\""),
            "either `values` or `predict`",
        ),
        (
            format!("{GOOD}\n[[reference]]\nname = \"x\"\nmetric = \"seconds\"\n{good}"),
            "first key must be `wink`",
        ),
        (
            winking(&format!("metric = \"seconds\"\n{good}")).replace("p=0.4,i=40ms", "p=1,i=40ms"),
            "below 1",
        ),
    ] {
        let said = Scenario::parse(&text, Path::new("test.toml")).unwrap_err();
        assert!(said.to_string().contains(expected), "{said}");
    }
}

#[test]
fn a_transfer_is_sampled_with_its_series_and_early_is_ten_seconds() {
    let bulk = |text: &str| {
        let scenario = parse(&GOOD.replacen("duration = \"20s\"", text, 1));
        match &scenario.groups[0].workloads[0].program {
            Program::Bulk(bulk) => (bulk.sample.as_millis(), bulk.early.as_millis()),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(bulk("duration = \"20s\""), (1000, 10_000));
    assert_eq!(
        bulk("duration = \"6s\"\ninterval = \"500ms\""),
        (500, 6_000)
    );
    let all = "duration = \"20s\"\nsample = \"100ms\"\nearly = \"5s\"";
    assert_eq!(bulk(all), (100, 5_000));
}

#[test]
fn a_check_may_be_absolute_and_only_for_some_points() {
    let text = GOOD.replacen(
        "baseline = \"direct\"\nmean_ratio_min = 0.97",
        "workload = \"up\"\nmetric = \"queue\"\nmax = \"30%bdp\"\nat = { \"link.loss\" = \"0\" }",
        1,
    );
    let check = &parse(&text).checks[0];
    assert_eq!(
        (check.baseline.as_deref(), check.min, check.max),
        (None, None, Some(0.3))
    );
    assert_eq!(check.at, [("link.loss".to_owned(), vec!["0".to_owned()])]);
}

#[test]
fn mistakes_name_file_line_key_and_what_is_accepted() {
    let said = broken("seeds = [7, 8]", "sedes = [7, 8]");
    assert!(
        said.starts_with("x.toml:3: sedes: unknown field `sedes`, expected one of"),
        "{said}"
    );
    let said = broken("rate = \"10mbit\"", "rate = \"fast\"");
    assert!(
        said.starts_with("x.toml:7: link.rate:") && said.contains("10Mbit/s"),
        "{said}"
    );
    let said = broken("\"0.1%\"", "\"120%\"");
    assert!(
        said.starts_with("x.toml:13: matrix.\"link.loss\":"),
        "{said}"
    );
    assert!(said.contains("between 0 and 1"), "{said}");
    let said = broken("ba = { loss", "ba = { lost");
    assert!(
        said.starts_with("x.toml:10: link.ba: unknown link option `lost`"),
        "{said}"
    );
    let said = broken("duration = \"20s\"", "duration = \"20\"");
    assert!(
        said.starts_with("x.toml:27: duration:") && said.contains("1.5s"),
        "{said}"
    );
    let said = broken("\"link.loss\" =", "\"lonk.loss\" =");
    assert!(said.contains("links.NAME.OPTION"), "{said}");
    let said = broken("seeds = [7, 8]", "seeds = 7");
    assert!(
        said.contains(":3: seeds:") && said.contains("a list in brackets"),
        "{said}"
    );
    let said = broken("program = \"bulk\"\n", "");
    assert_eq!(said, "x.toml:24: workload.program: is missing");
    // An invalid workload is not reported as missing.
    let (before, _) = GOOD.split_once("[[workload]]").unwrap();
    let said = mistakes(&format!(
        "{before}[[workload]]\nname = \"get\"\nprogram = \"curl\"\n"
    ));
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(said.contains("workload[1].size: is missing"), "{said}");
}

#[test]
fn names_that_lead_nowhere_are_mistakes() {
    for (from, to, expected) in [
        (
            "\"link\", \"server\"]",
            "\"server\", \"link\"]",
            "a node must follow",
        ),
        (
            "\"pepd\", \"link\"",
            "\"link\", \"link\"",
            "needs a node on either side",
        ),
        (
            "\"pepd\", \"link\"",
            "\"pepd\"",
            "does not hold the link `link`",
        ),
        (
            "\"client\", \"pepd\"",
            "\"client\", \"client\"",
            "appears twice",
        ),
        (
            "\"client\", \"pepd\"",
            "\"client\", \"router\"",
            "needs a node `pepd`",
        ),
        (
            "node.client",
            "node.klient",
            "unknown node `klient`; nodes are client, pepd, server",
        ),
        (
            "baseline = \"direct\"",
            "baseline = \"dircet\"",
            "names are direct, pepd bbr",
        ),
        ("name = \"get\"", "name = \"up\"", "duplicate workload `up`"),
        (
            "size = \"5MB\"",
            "",
            "size: is missing for the program curl",
        ),
        (
            "size = \"5MB\"",
            "size = \"5MB\"\nflows = 2",
            "only for the programs iperf3",
        ),
        (
            "duration = \"20s\"",
            "duration = \"20s\"\nwarmup = \"20s\"",
            "shorter than the duration",
        ),
        (
            "mean_ratio_min = 0.97",
            "",
            "check.baseline: needs `mean_ratio_min` or `mean_ratio_max`",
        ),
        (
            "baseline = \"direct\"",
            "",
            "check.baseline: is missing: name the variant whose mean",
        ),
        (
            "baseline = \"direct\"\nmean_ratio_min = 0.97",
            "",
            "check: needs a bound: `min`, `max`",
        ),
        (
            "mean_ratio_min = 0.97",
            "mean_ratio_min = 0.97\nmin = \"85%\"",
            "x.toml:39: check.min: `85%` is not a rate",
        ),
        (
            "mean_ratio_min = 0.97",
            "mean_ratio_min = 0.97\nat = { \"link.delay\" = \"1ms\" }",
            "x.toml:39: check.at.\"link.delay\": is not a key of [matrix]; keys are link.loss, congestion.client",
        ),
        (
            "mean_ratio_min = 0.97",
            "mean_ratio_min = 0.97\nat = { \"link.loss\" = [\"0\", \"1%\"] }",
            "check.at.\"link.loss\": `1%` is not in [matrix]; values are 0, 0.1%",
        ),
        (
            "mean_ratio_min = 0.97",
            "mean_ratio_min = 0.97\nmetric = \"badput\"",
            "metrics are goodput, seconds, first_byte, share, utilisation, efficiency",
        ),
        (
            "duration = \"20s\"",
            "duration = \"20s\"\nearly = \"21s\"",
            "early: must be no longer than the duration",
        ),
        (
            "duration = \"20s\"",
            "duration = \"20s\"\nsample = \"0s\"",
            "sample: must divide the duration into",
        ),
        (
            "size = \"5MB\"",
            "size = \"5MB\"\npacing = \"1Mbit/s\"",
            "pacing: is only for the programs bulk",
        ),
        (
            "size = \"5MB\"",
            "size = \"5MB\"\npacing = \"fast\"",
            "10Mbit/s",
        ),
        ("seeds = [7, 8]", "seeds = []", "one or more numbers"),
        (
            "seeds = [7, 8]",
            "controls = [\"hybla\", \"hylba\"]",
            "x.toml:3: controls: unknown congestion control `hylba`; available are hybla, hybla_sat",
        ),
    ] {
        let said = broken(from, to);
        assert!(said.contains(expected), "{to}: {said}");
    }
}

#[test]
fn all_mistakes_are_reported_at_once_in_the_order_of_lines() {
    let text = GOOD
        .replace("seeds = [7, 8]", "seeds = []")
        .replace("\"5MB\"", "\"0\"");
    let said = mistakes(&text);
    let lines: Vec<_> = said.lines().collect();
    assert_eq!(lines.len(), 2, "{said}");
    assert!(
        lines[0].contains(":3: seeds") && lines[1].contains("size"),
        "{said}"
    );
}

#[test]
fn the_scenarios_of_the_project_are_understood() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios");
    let files = fs::read_dir(directory).unwrap();
    // The directory also holds directories of traces.
    let scenarios = files.map(|file| file.unwrap().path());
    let scenarios = scenarios.filter(|path| path.is_file());
    let loaded: Vec<_> = scenarios
        .map(|path| Scenario::load(&path).unwrap_or_else(|err| panic!("{err}")))
        .collect();
    assert!(loaded.len() >= 5, "{}", loaded.len());
    for scenario in loaded {
        assert!(!scenario.runs().is_empty(), "{}", scenario.name);
        assert!(
            !scenario.checks.is_empty(),
            "{} has no check",
            scenario.name
        );
    }
}

#[test]
fn an_empty_file_says_what_is_missing() {
    let said = mistakes("");
    assert_eq!(said, "x.toml:1: path: is missing");
    let said = mistakes("path = [\"a\", \"b\"]");
    assert!(said.contains("add a [[workload]]"), "{said}");
}

#[test]
fn values_of_the_matrix_may_have_labels() {
    let scenario = parse(&format!("{GOOD}\n[labels]\n\"0.1%\" = \"a little loss\""));
    let words: Vec<_> = scenario
        .settings(&[1, 0])
        .map(|(key, value)| scenario.words(key, value))
        .collect();
    assert_eq!(words, ["a little loss", "client reno"]);
    let said = mistakes(&format!("{GOOD}\n[labels]\n\"3%\" = \"loss\""));
    assert!(
        said.contains("labels.\"3%\": is not a value in [matrix]"),
        "{said}"
    );
}

#[test]
fn only_a_transfer_of_a_file_may_be_partial() {
    let scenario = parse(&GOOD.replace("size = \"5MB\"", "size = \"5MB\"\npartial = true"));
    let Program::Curl(curl) = &scenario.groups[1].workloads[0].program else {
        panic!("curl");
    };
    assert!(curl.partial);
    let said = mistakes(&GOOD.replace("duration = \"20s\"", "duration = \"20s\"\npartial = true"));
    assert!(
        said.contains("partial: is only for the programs curl"),
        "{said}"
    );
}
