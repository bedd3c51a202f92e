//! Data held for hosts: bytes that pepd has acknowledged to one host and the other end has not
//! acknowledged.

use std::{collections::BTreeMap, fmt};

use serde::{Deserialize, Serialize};

use crate::text;

/// Maximum number of listed flows; sums include all flows.
pub const LISTED_MAX: usize = 10_000;

/// Held data, as JSON or text.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CustodyReport {
    /// Sums by site.
    pub sites: Vec<SiteCustody>,
    /// Number of flows with held data.
    pub count: usize,
    /// Flows with held data, the largest amounts first, at most [`LISTED_MAX`].
    pub flows: Vec<FlowCustody>,
}

/// Data held for the flows of a site.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct SiteCustody {
    /// Name of the site; none for flows that peers opened.
    pub site: Option<String>,
    /// Open flows, with or without held data.
    pub flows: u64,
    /// Bytes in pepd's memory.
    pub memory: u64,
    /// Bytes on disk.
    pub disk: u64,
    /// Bytes in the kernel: received and not yet read by pepd, to be sent, or awaiting
    /// acknowledgement.
    pub kernel: u64,
    /// Age of the oldest flow with held data.
    pub oldest_s: u64,
}

/// Data held for a flow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowCustody {
    /// Flow number, as in `pepd trace`: the number of its slot and a part that distinguishes
    /// successive flows of that slot. It stays the same for the life of the flow, in all processes.
    #[serde(default)]
    pub id: String,
    /// Site that took the flow; none if a peer opened it.
    pub site: Option<String>,
    /// Kind of the flow: split, near, far.
    pub kind: String,
    /// Client's address.
    pub client: String,
    /// Server's address.
    pub destination: String,
    /// Seconds since the flow began.
    pub age_s: u64,
    /// Bytes in memory, to the server and to the client.
    pub memory: [u64; 2],
    /// Bytes on disk, to the server and to the client.
    pub disk: [u64; 2],
    /// Bytes in the kernel, to the server and to the client.
    pub kernel: [u64; 2],
}

impl FlowCustody {
    /// Returns the sum of all held bytes.
    pub fn total(&self) -> u64 {
        let pepds = self.memory.iter().chain(&self.disk);
        pepds.chain(&self.kernel).sum()
    }
}

impl SiteCustody {
    /// Adds an open flow: its held bytes `[memory, disk, kernel]`, and its age in seconds.
    pub fn add(&mut self, held: [u64; 3], age_s: u64) {
        let [memory, disk, kernel] = held;
        self.flows += 1;
        self.memory += memory;
        self.disk += disk;
        self.kernel += kernel;
        if held != [0; 3] {
            self.oldest_s = self.oldest_s.max(age_s);
        }
    }
}

impl CustodyReport {
    /// Sums up and lists the data held for these flows.
    pub fn from_flows(mut flows: Vec<FlowCustody>) -> Self {
        let mut sites: BTreeMap<Option<String>, SiteCustody> = BTreeMap::new();
        for flow in &flows {
            let held = [flow.memory, flow.disk, flow.kernel];
            let held = held.map(|[up, down]| up + down);
            let site = sites.entry(flow.site.clone()).or_default();
            site.add(held, flow.age_s);
        }
        flows.retain(|flow| flow.total() > 0);
        flows.sort_by_key(|flow| std::cmp::Reverse(flow.total()));
        let sites = sites.into_iter();
        Self {
            sites: sites
                .map(|(name, site)| SiteCustody { site: name, ..site })
                .collect(),
            count: flows.len(),
            flows,
        }
    }
}

impl fmt::Display for CustodyReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name =
            |site: &Option<String>| site.clone().unwrap_or_else(|| "(from peers)".to_owned());
        writeln!(
            f,
            "{:<24} {:>8} {:>12} {:>12} {:>12} {:>10}",
            "site", "flows", "memory", "disk", "kernel", "oldest"
        )?;
        for site in &self.sites {
            let [memory, disk, kernel] = [site.memory, site.disk, site.kernel].map(text::bytes);
            let oldest = text::span(site.oldest_s as f64);
            writeln!(
                f,
                "{:<24} {:>8} {memory:>12} {disk:>12} {kernel:>12} {oldest:>10}",
                name(&site.site),
                site.flows
            )?;
        }
        if self.count == 0 {
            return writeln!(f, "\nno data is held");
        }
        match self.count {
            1 => writeln!(f, "\n1 flow with held data:")?,
            count => writeln!(f, "\n{count} flows with held data:")?,
        }
        for flow in &self.flows {
            let held = |d: usize| text::bytes(flow.memory[d] + flow.disk[d] + flow.kernel[d]);
            let [up, down] = [0, 1].map(held);
            let age = text::span(flow.age_s as f64);
            let (from, to, kind) = (&flow.client, &flow.destination, &flow.kind);
            writeln!(
                f,
                "  {from} -> {to}  {kind}  {age}  {up} up, {down} down, {}",
                name(&flow.site)
            )?;
        }
        Ok(())
    }
}

/// Query `?site=NAME`; all sites if absent.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CustodyQuery {
    /// Restricts the report to this site.
    pub site: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(site: &str, memory: u64, kernel: u64, age_s: u64) -> FlowCustody {
        FlowCustody {
            id: String::new(),
            site: Some(site.to_owned()),
            kind: "split".to_owned(),
            client: "192.0.2.1:1".to_owned(),
            destination: "198.51.100.1:80".to_owned(),
            age_s,
            memory: [memory, 0],
            disk: [0, 0],
            kernel: [0, kernel],
        }
    }

    #[test]
    fn sums_are_over_all_flows_and_lists_over_those_that_hold_something() {
        let mut flows = vec![
            flow("a", 10, 1, 5),
            flow("a", 0, 0, 99),
            flow("b", 0, 300, 7),
        ];
        flows[0].disk = [4, 0];
        let report = CustodyReport::from_flows(flows);
        let [a, b] = &report.sites[..] else {
            panic!("{report:?}")
        };
        assert_eq!((a.flows, a.memory, a.kernel, a.oldest_s), (2, 10, 1, 5));
        assert_eq!((a.disk, b.flows, b.kernel), (4, 1, 300));
        let ages: Vec<_> = report.flows.iter().map(|flow| flow.age_s).collect();
        assert_eq!((report.count, ages), (2, vec![7, 5]));
        let text = report.to_string();
        assert!(text.contains("2 flows with held data"), "{text}");
        assert!(text.contains("7s  0 B up, 300 B down, b"), "{text}");
    }
}
