//! Checks that turn the raw scenario into a valid one.

use std::{collections::BTreeMap, ops::Range, path::Path, time::Duration};

use toml::Spanned;

use super::{
    Axis, Metric, Mistake, Network, NodeSettings, Pepds, Scenario, Setting, Variant, WantedControl,
    checks,
    error::Findings,
    links,
    network::{self, LINK},
    paper, pepd_config,
    raw::{RawNode, RawScenario, RawVariant},
    references, workloads,
};
use crate::{link::LinkOptions, shell::MTU};

const TIMEOUT: Duration = Duration::from_secs(300);
/// Default lateness limit: small beside the round trips of links worth emulating, large beside the
/// lateness of an idle machine.
const LATE: Duration = Duration::from_millis(10);
const RUNS_MAX: usize = 100_000;

pub(super) fn check(
    mut raw: RawScenario,
    text: &str,
    file: &Path,
) -> Result<Scenario, Vec<Mistake>> {
    let mut findings = Findings::new(text);
    let links = read_links(&raw, file, &mut findings);
    let network = network::read(&raw, &links, &mut findings);
    let timeout = raw
        .timeout
        .as_ref()
        .map_or(TIMEOUT, |timeout| timeout.get_ref().0);
    let context = workloads::Context {
        network: &network,
        timeout,
    };
    let matrix = read_matrix(&raw, &links, &network, file, &mut findings);
    if raw.workload.is_empty() {
        let message = "is missing: add a [[workload]] with `name` and `program` (bulk, curl, iperf3, messages, page, udp, \
                       counting_tcp, command)";
        findings.add(0..0, "workload", message);
    }
    let groups = workloads::groups(std::mem::take(&mut raw.workload), &context, &mut findings);
    let labels = read_labels(&raw, &matrix, &mut findings);
    let scenario = Scenario {
        name: name(&raw, file),
        title: raw.title.clone().unwrap_or_else(|| name(&raw, file)),
        description: raw.description.clone().unwrap_or_default(),
        source: paper::read(&raw, &mut findings),
        text: text.to_owned(),
        nodes: read_nodes(&raw.node, "node", &network, &mut findings),
        variants: read_variants(&raw.variant, &network, &mut findings),
        groups,
        seeds: read_seeds(&raw, &mut findings),
        parallel: bounded(
            raw.parallel.as_ref(),
            "parallel",
            1..=256,
            cpus(),
            &mut findings,
        ),
        retries: bounded(raw.retries.as_ref(), "retries", 0..=10, 2, &mut findings),
        late: raw.late.as_ref().map_or(LATE, |late| late.get_ref().0),
        offloads: raw.offloads.unwrap_or(false),
        mtu: bounded(raw.mtu.as_ref(), "mtu", 1280..=9216, MTU, &mut findings),
        metrics: read_metrics(&raw, &mut findings),
        baseline: raw.baseline.as_ref().map(|name| name.get_ref().clone()),
        controls: read_controls(&raw, &mut findings),
        checks: raw
            .check
            .iter()
            .filter_map(|check| checks::read(check, &matrix, &mut findings))
            .collect(),
        references: raw
            .reference
            .iter()
            .filter_map(|reference| references::read(reference, &matrix, &mut findings))
            .collect(),
        matrix,
        labels,
        network,
        links,
    };
    check_names(&scenario, &raw, &mut findings);
    check_pepd_nodes(&scenario, &raw, &mut findings);
    let list = findings.into_list();
    if list.is_empty() {
        Ok(scenario)
    } else {
        Err(list)
    }
}

fn name(raw: &RawScenario, file: &Path) -> String {
    let stem = || {
        file.file_stem()
            .map_or("scenario".into(), |stem| stem.to_string_lossy().into())
    };
    raw.name.clone().unwrap_or_else(stem)
}

fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn read_links(
    raw: &RawScenario,
    file: &Path,
    findings: &mut Findings<'_>,
) -> Vec<(String, LinkOptions)> {
    let mut links = Vec::new();
    let mut add = |name: &str, dotted: &str, table, span: Range<usize>| {
        let options = links::options(table, dotted, findings);
        findings.take(span, dotted, links::check_files(&options, file));
        links.push((name.to_owned(), options));
    };
    if let Some(table) = &raw.link {
        let span = table.keys().next().map_or(0..0, Spanned::span);
        add(LINK, LINK, table, span);
    }
    for (name, table) in &raw.links {
        add(
            name.get_ref(),
            &format!("links.{}", name.get_ref()),
            table,
            name.span(),
        );
    }
    links
}

fn read_nodes(
    raw: &BTreeMap<Spanned<String>, RawNode>,
    prefix: &str,
    network: &Network,
    findings: &mut Findings<'_>,
) -> Vec<NodeSettings> {
    let mut nodes = Vec::new();
    for (name, node) in raw {
        check_node(
            name,
            &format!("{prefix}.{}", name.get_ref()),
            network,
            findings,
        );
        let sysctls = node.sysctl.iter();
        nodes.push(NodeSettings {
            node: name.get_ref().clone(),
            congestion: node.congestion.as_ref().map(|name| name.get_ref().clone()),
            pacing: node.pacing.as_ref().map(|rate| *rate.get_ref()),
            quic: node.quic,
            sysctls: sysctls
                .map(|(key, value)| (key.get_ref().clone(), links::text(value.get_ref())))
                .collect(),
        });
    }
    nodes
}

fn check_node(name: &Spanned<String>, key: &str, network: &Network, findings: &mut Findings<'_>) {
    if !network.contains(name.get_ref()) {
        let message = format!(
            "unknown node `{}`; nodes are {}",
            name.get_ref(),
            network.names()
        );
        findings.add(name.span(), key, message);
    }
}

fn read_matrix(
    raw: &RawScenario,
    links: &[(String, LinkOptions)],
    network: &Network,
    file: &Path,
    findings: &mut Findings<'_>,
) -> Vec<Axis> {
    let mut axes = Vec::new();
    // The TOML reader sorts tables by key; sort by position to restore the author's order.
    let mut raw: Vec<_> = raw.matrix.iter().collect();
    raw.sort_by_key(|(key, _)| key.span().start);
    for (key, list) in raw {
        let dotted = format!("matrix.\"{}\"", key.get_ref());
        let mut values = Vec::new();
        for value in list.get_ref() {
            let setting = read_setting(key.get_ref(), value.get_ref(), links, network, file);
            values.extend(findings.take(value.span(), &dotted, setting));
        }
        if list.get_ref().is_empty() {
            findings.add(list.span(), &dotted, "must hold one or more values");
        }
        axes.push(Axis {
            key: key.get_ref().clone(),
            values,
        });
    }
    axes
}

fn read_setting(
    key: &str,
    value: &toml::Value,
    links: &[(String, LinkOptions)],
    network: &Network,
    file: &Path,
) -> Result<Setting, String> {
    let unknown = || {
        "is not a matrix key: \"link.OPTION\", \"links.NAME.OPTION\" or \"congestion.NODE\""
            .to_owned()
    };
    if let Some(node) = key.strip_prefix("congestion.") {
        let known = network.contains(node);
        let (node, value) = (node.to_owned(), links::text(value));
        return known
            .then_some(Setting::Congestion { node, value })
            .ok_or_else(|| "names a node that is not in the path".to_owned());
    }
    let (link, option) = match key.strip_prefix("links.") {
        Some(rest) => rest.split_once('.').ok_or_else(unknown)?,
        None => (LINK, key.strip_prefix("link.").ok_or_else(unknown)?),
    };
    let found = links.iter().find(|(name, _)| name == link);
    let (_, options) = found.ok_or_else(|| format!("names the undefined link `{link}`"))?;
    let mut options = options.clone();
    links::set(&mut options, option, value)?;
    links::check_files(&options, file).map_err(|err| err.to_string())?;
    Ok(Setting::Link {
        link: link.to_owned(),
        option: option.to_owned(),
        value: links::text(value),
    })
}

/// Labels of values, each of which must be in the matrix.
fn read_labels(
    raw: &RawScenario,
    matrix: &[Axis],
    findings: &mut Findings<'_>,
) -> Vec<(String, String)> {
    let mut labels = Vec::new();
    for (value, label) in &raw.labels {
        let mut values = matrix.iter().flat_map(|axis| &axis.values);
        if !values.any(|known| known.value() == value.get_ref()) {
            let dotted = format!("labels.\"{}\"", value.get_ref());
            findings.add(value.span(), dotted, "is not a value in [matrix]");
        }
        labels.push((value.get_ref().clone(), label.get_ref().clone()));
    }
    labels
}

fn read_variants(
    raw: &[RawVariant],
    network: &Network,
    findings: &mut Findings<'_>,
) -> Vec<Variant> {
    let mut variants: Vec<Variant> = Vec::new();
    for (index, variant) in raw.iter().enumerate() {
        let key = |key: &str| format!("variant[{}].{key}", index + 1);
        let name = variant.name.get_ref();
        if variants.iter().any(|other| other.name == *name) {
            findings.add(
                variant.name.span(),
                key("name"),
                format!("duplicate variant `{name}`"),
            );
        }
        variants.push(Variant {
            name: name.clone(),
            pepds: pepd_config::read(variant.pepd.as_ref(), &key("pepd"), network, findings),
            nodes: read_nodes(&variant.node, &key("node"), network, findings),
        });
    }
    if variants.is_empty() {
        variants.push(Variant {
            name: "direct".to_owned(),
            pepds: Pepds::None,
            nodes: Vec::new(),
        });
    }
    variants
}

fn read_seeds(raw: &RawScenario, findings: &mut Findings<'_>) -> Vec<u64> {
    let repetitions = bounded(
        raw.repetitions.as_ref(),
        "repetitions",
        1..=10_000,
        1,
        findings,
    );
    match &raw.seeds {
        Some(seeds) if raw.repetitions.is_some() => {
            findings.add(
                seeds.span(),
                "seeds",
                "conflicts with `repetitions`: use one of them",
            );
            Vec::new()
        }
        Some(seeds) if seeds.get_ref().is_empty() => {
            findings.add(
                seeds.span(),
                "seeds",
                "must hold one or more numbers, such as [1, 2, 3]",
            );
            Vec::new()
        }
        Some(seeds) => seeds.get_ref().clone(),
        None => (1..=repetitions).collect(),
    }
}

fn read_controls(raw: &RawScenario, findings: &mut Findings<'_>) -> Vec<WantedControl> {
    let names = raw.controls.iter().flatten();
    names
        .filter_map(|name| findings.take(name.span(), "controls", name.get_ref().parse()))
        .collect()
}

fn read_metrics(raw: &RawScenario, findings: &mut Findings<'_>) -> Vec<Metric> {
    let Some(list) = &raw.metrics else {
        return vec![Metric::Goodput];
    };
    let list = list.get_ref().iter();
    list.filter_map(|name| checks::read_metric(name, "metrics", findings))
        .collect()
}

/// Checks references to variants and workloads, and the number of runs.
fn check_names(scenario: &Scenario, raw: &RawScenario, findings: &mut Findings<'_>) {
    let variants: Vec<_> = scenario
        .variants
        .iter()
        .map(|variant| &*variant.name)
        .collect();
    let workloads = scenario.groups.iter().flat_map(|group| &group.workloads);
    let workloads: Vec<_> = workloads.map(|workload| &*workload.name).collect();
    let mut known = |name: Option<&Spanned<String>>, key: &str, names: &[&str]| {
        let Some(name) = name else { return };
        if !names.contains(&name.get_ref().as_str()) {
            let message = format!(
                "unknown name `{}`; names are {}",
                name.get_ref(),
                names.join(", ")
            );
            findings.add(name.span(), key, message);
        }
    };
    known(raw.baseline.as_ref(), "baseline", &variants);
    for check in &raw.check {
        known(Some(&check.variant), "check.variant", &variants);
        known(check.baseline.as_ref(), "check.baseline", &variants);
        known(check.workload.as_ref(), "check.workload", &workloads);
    }
    for reference in &raw.reference {
        known(
            reference.workload.as_ref(),
            "reference.workload",
            &workloads,
        );
    }
    let points: usize = scenario
        .matrix
        .iter()
        .map(|axis| axis.values.len())
        .product();
    let runs = points * scenario.variants.len() * scenario.seeds.len() * scenario.groups.len();
    if runs > RUNS_MAX {
        findings.add(
            0..0,
            "matrix",
            format!("makes {runs} runs; the maximum is {RUNS_MAX}"),
        );
    }
}

/// Checks that a variant with one pepd has a node for it, with neighbours on both sides, in every
/// workload.
fn check_pepd_nodes(scenario: &Scenario, raw: &RawScenario, findings: &mut Findings<'_>) {
    for group in &scenario.groups {
        if scenario.network.edges_of(&group.pepd_on).count() > 1 {
            continue;
        }
        for (index, variant) in scenario.variants.iter().enumerate() {
            let raw = raw.variant.get(index).and_then(|raw| raw.pepd.as_ref());
            if let (Pepds::One(_), Some(pepd)) = (&variant.pepds, raw) {
                let message = format!(
                    "needs a node `{}` between others in the path (see `pepd_on` of workloads)",
                    group.pepd_on
                );
                findings.add(pepd.span(), format!("variant[{}].pepd", index + 1), message);
            }
        }
    }
}

fn bounded<T: Copy + PartialOrd + std::fmt::Display>(
    value: Option<&Spanned<T>>,
    key: &str,
    range: std::ops::RangeInclusive<T>,
    default: T,
    findings: &mut Findings<'_>,
) -> T {
    let Some(value) = value else { return default };
    if !range.contains(value.get_ref()) {
        let (low, high) = (range.start(), range.end());
        findings.add(
            value.span(),
            key,
            format!("must be {low} to {high}, not {}", value.get_ref()),
        );
    }
    *value.get_ref()
}
