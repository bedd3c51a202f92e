//! The configuration of pepd in a run: the author's part, and what the topology knows better.

use toml::{Table, Value};
use units::duration;

use super::{Hop, RunSpec, Scenario};
use crate::link::{DelayModel, LinkConfig, RateModel};

/// The node on which pepd runs unless a workload says otherwise.
pub(super) const PEPD_NODE: &str = "pepd";

/// The workloads are over when pepd is told to end: what is still open then is of no interest.
const DRAIN: &str = "2s";

/// The text of pepd's configuration; `None` where the variant has no pepd.
///
/// `timeouts.drain` becomes 2 s, `intercept.lan` the interface toward the client, `link` the interface, rate and
/// round-trip time of the neighbouring link, and sites know on which side of pepd that link is,
/// unless the variant says otherwise.
pub fn pepd_config(
    scenario: &Scenario,
    run: &RunSpec,
    links: &[(String, LinkConfig)],
) -> Option<String> {
    let mut config = scenario.variant(run).pepd.clone()?;
    let node = &scenario.groups[run.group].pepd_on;
    let at = scenario.path.iter().position(|hop| hop.node == *node)?;
    let before = &scenario.path[at.checked_sub(1)?];
    let lan = Value::Array(vec![Value::String(before.node.clone())]);
    if let Some(timeouts) = table(&mut config, "timeouts") {
        timeouts.entry("drain").or_insert_with(|| DRAIN.into());
    }
    if let Some(intercept) = table(&mut config, "intercept") {
        intercept.entry("lan").or_insert(lan);
    }
    if scenario.path[at].link.is_some() && scenario.path.get(at + 1)?.link.is_none() {
        face_the_clients(&mut config);
    }
    if let Some((interface, link)) = neighbouring_link(&scenario.path, at) {
        let link = links
            .iter()
            .find(|(name, _)| name == link)
            .map(|(_, config)| config);
        if let (Some(link), Some(table)) = (link, table(&mut config, "link")) {
            describe_link(table, interface, link);
        }
    }
    Some(toml::to_string(&config).expect("a TOML table can be written as TOML"))
}

/// A table of the configuration, made if absent; `None` when the author put something else
/// there, which pepd will complain about.
fn table<'a>(config: &'a mut Table, key: &str) -> Option<&'a mut Table> {
    config
        .entry(key)
        .or_insert_with(|| Value::Table(Table::new()))
        .as_table_mut()
}

/// Tells all sites that connections arrive over the link.
fn face_the_clients(config: &mut Table) {
    let all = || {
        Value::Array(vec![Value::Table(Table::from_iter([(
            "name".to_owned(),
            "all".into(),
        )]))])
    };
    let sites = config.entry("site").or_insert_with(all).as_array_mut();
    for site in sites.into_iter().flatten().filter_map(Value::as_table_mut) {
        site.entry("link_leg").or_insert_with(|| "client".into());
    }
}

/// The interface of the node at `at` that leads into a link, and the link's name.
fn neighbouring_link(path: &[Hop], at: usize) -> Option<(&str, &str)> {
    let after = path
        .get(at + 1)
        .and_then(|hop| Some((&*hop.node, hop.link.as_deref()?)));
    after.or_else(|| Some((&*path[at - 1].node, path[at].link.as_deref()?)))
}

fn describe_link(table: &mut Table, interface: &str, link: &LinkConfig) {
    table
        .entry("interface")
        .or_insert_with(|| Value::String(interface.to_owned()));
    if let RateModel::Fixed(rate) = &link.ab.rate {
        table
            .entry("rate")
            .or_insert_with(|| Value::String(rate.to_string()));
    }
    if let (DelayModel::Fixed(out), DelayModel::Fixed(back)) =
        (&link.ab.delay.base, &link.ba.delay.base)
    {
        let rtt = duration::format(*out + *back);
        table.entry("rtt").or_insert_with(|| Value::String(rtt));
    }
}
