//! Workloads and their groups.

mod keys;
mod packets;

use std::{
    ops::{Range, RangeInclusive},
    time::Duration,
};

use toml::Spanned;
use units::duration::Span;

use super::{
    Group, Network, Program, Start, Workload,
    error::Findings,
    pepd_config::PEPD_NODE,
    raw::{RawProgram, RawWorkload},
};
use crate::lab::{
    program::{Bulk, Curl, Iperf3, Messages, Page, Shell, Transfer},
    topology::Family,
};

/// First port of bulk transfers; workloads of a group count up from here.
const FIRST_PORT: u16 = 9000;
/// Maximum intervals of a time series: 10 minutes at 10 ms.
const SERIES_MAX: u128 = 60_000;
/// Default of `early`: slow start is over by then on all but the slowest links.
const EARLY: Duration = Duration::from_secs(10);
const DURATION_MAX: Duration = Duration::from_secs(86_400);
const COPIES: RangeInclusive<u32> = 2..=64;
/// Sizes of a message, which contains its number.
const MESSAGE_BYTES: RangeInclusive<u64> = 8..=1_000_000;
/// Default of `within`: delays that a person hardly notices.
const WITHIN: Duration = Duration::from_millis(60);
/// Default of `connections`, as in browsers.
const CONNECTIONS: u32 = 6;

/// Context for reading workloads.
pub(super) struct Context<'a> {
    pub network: &'a Network,
    pub timeout: Duration,
}

/// Checks all workloads and gathers those of one group.
pub(super) fn groups(
    raw: Vec<RawWorkload>,
    context: &Context<'_>,
    findings: &mut Findings<'_>,
) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    let mut names = Vec::new();
    let raw: Vec<_> = raw.into_iter().enumerate().collect();
    for (index, raw) in raw
        .into_iter()
        .flat_map(|(index, raw)| copies(index, raw, findings))
        .collect::<Vec<_>>()
    {
        let name = raw.name.get_ref().clone();
        if names.contains(&name) {
            let key = format!("workload[{}].name", index + 1);
            findings.add(raw.name.span(), key, format!("duplicate workload `{name}`"));
        }
        names.push(name.clone());
        let group_name = raw.group.clone().unwrap_or_else(|| name.clone());
        let group = groups.iter().position(|group| group.name == group_name);
        let beside = group.map_or(0, |group| groups[group].workloads.len());
        let port = FIRST_PORT + u16::try_from(beside).unwrap_or(0);
        let port = raw.port.as_ref().map_or(port, |port| *port.get_ref());
        let reader = Reader {
            raw: &raw,
            index,
            context,
            findings,
        };
        let pepd_on = raw
            .pepd_on
            .as_ref()
            .map_or(PEPD_NODE, |name| name.get_ref())
            .to_owned();
        let Some(workload) = reader.read(port) else {
            continue;
        };
        match group {
            Some(group) if groups[group].pepd_on == pepd_on => {
                groups[group].workloads.push(workload);
            }
            Some(_) => {
                let span = raw.pepd_on.as_ref().map_or(raw.name.span(), Spanned::span);
                let key = format!("workload[{}].pepd_on", index + 1);
                findings.add(span, key, "differs from the other workloads of the group");
            }
            None => groups.push(Group {
                name: group_name,
                pepd_on,
                workloads: vec![workload],
            }),
        }
    }
    groups
}

/// Repeats a workload `copies` times; numbers are appended to the names.
fn copies(
    index: usize,
    raw: RawWorkload,
    findings: &mut Findings<'_>,
) -> Vec<(usize, RawWorkload)> {
    let Some(copies) = raw.copies.clone() else {
        return vec![(index, raw)];
    };
    if !COPIES.contains(copies.get_ref()) {
        let key = format!("workload[{}].copies", index + 1);
        let message = format!("must be {} to {}", COPIES.start(), COPIES.end());
        findings.add(copies.span(), key, message);
        return Vec::new();
    }
    let copy = |number: u32| {
        let mut copy = raw.clone();
        let name = copy.name.get_mut();
        copy.group.get_or_insert_with(|| name.clone());
        *name = format!("{name} {number}");
        (index, copy)
    };
    (1..=*copies.get_ref()).map(copy).collect()
}

struct Reader<'a, 'b, 'c> {
    raw: &'a RawWorkload,
    index: usize,
    context: &'a Context<'a>,
    findings: &'b mut Findings<'c>,
}

impl Reader<'_, '_, '_> {
    fn read(mut self, port: u16) -> Option<Workload> {
        let (first, last) = self.context.network.ends()?;
        let client = self.node(self.raw.client.as_ref(), "client", first);
        let server = self.node(self.raw.server.as_ref(), "server", last);
        if client == server && self.program() != RawProgram::Command {
            let span = self.raw.name.span();
            self.add(span, "server", format!("is also the client: `{client}`"));
        }
        self.node(self.raw.pepd_on.as_ref(), "pepd_on", PEPD_NODE);
        self.refuse_unknown_keys();
        Some(Workload {
            name: self.raw.name.get_ref().clone(),
            client,
            server,
            start: self.start(),
            program: match self.program() {
                RawProgram::Bulk => Program::Bulk(self.bulk(port)?),
                RawProgram::Curl => Program::Curl(self.curl()?),
                RawProgram::Iperf3 => Program::Iperf3(self.iperf3()?),
                RawProgram::Messages => Program::Messages(self.messages(port)?),
                RawProgram::Page => Program::Page(self.page()?),
                RawProgram::Udp => Program::Datagrams(self.datagrams(port)?),
                RawProgram::CountingTcp => Program::CountingTcp(self.counting_tcp(port)?),
                RawProgram::Command => Program::Shell(self.shell()?),
            },
        })
    }

    fn start(&mut self) -> Start {
        let Some(raw) = &self.raw.link_time else {
            return Start::Ready(self.span(self.raw.start.as_ref()).unwrap_or_default());
        };
        if self.raw.start.is_some() {
            self.add(
                raw.span(),
                "link_time",
                "conflicts with `start`: use one of them",
            );
        }
        let has_link = |edge: &super::Edge| edge.link.is_some();
        if !self.context.network.edges().iter().any(has_link) {
            self.add(raw.span(), "link_time", "needs a link in the path");
        }
        Start::LinkTime(raw.get_ref().0)
    }

    fn bulk(&mut self, port: u16) -> Option<Bulk> {
        let raw = self.raw;
        let (duration, warmup) = self.duration()?;
        let second = Duration::from_secs(1);
        let interval = self.parts(raw.interval.as_ref(), "interval", duration, second)?;
        Some(Bulk {
            transfer: self.direction(),
            duration,
            warmup,
            congestion: raw.congestion.as_ref().map(|name| name.get_ref().clone()),
            quic: None,
            pacing: raw.pacing.as_ref().map(|rate| *rate.get_ref()),
            family: self.family(),
            port,
            interval,
            sample: self.parts(raw.sample.as_ref(), "sample", duration, interval)?,
            early: self.early(duration)?,
        })
    }

    /// Interval of a series, which must divide a duration.
    fn parts(
        &mut self,
        given: Option<&Spanned<Span>>,
        key: &str,
        duration: Duration,
        default: Duration,
    ) -> Option<Duration> {
        let length = self.span(given).unwrap_or(default);
        let parts = duration.as_nanos().checked_div(length.as_nanos());
        if (1..=SERIES_MAX).contains(&parts.unwrap_or(0)) {
            return Some(length);
        }
        let span = given.map_or(self.raw.name.span(), Spanned::span);
        self.add(span, key, "must divide the duration into 1 to 60,000 parts");
        None
    }

    /// Initial part of a transfer that is measured separately.
    fn early(&mut self, duration: Duration) -> Option<Duration> {
        let Some(raw) = &self.raw.early else {
            return Some(EARLY.min(duration));
        };
        if raw.get_ref().0 > duration {
            self.add(raw.span(), "early", "must be no longer than the duration");
            return None;
        }
        Some(raw.get_ref().0)
    }

    fn curl(&mut self) -> Option<Curl> {
        let Some(size) = &self.raw.size else {
            return self.missing("size", "size of the file, such as \"5MB\"");
        };
        if size.get_ref().bytes() == 0 {
            self.add(size.span(), "size", "must be 1 byte or more");
        }
        Some(Curl {
            transfer: self.direction(),
            bytes: size.get_ref().bytes(),
            family: self.family(),
            timeout: self.timeout(),
            partial: self
                .raw
                .partial
                .as_ref()
                .is_some_and(|partial| *partial.get_ref()),
        })
    }

    fn iperf3(&mut self) -> Option<Iperf3> {
        let (duration, warmup) = self.duration()?;
        let flows = self.raw.flows.as_ref().map_or(1, |flows| *flows.get_ref());
        if !(1..=128).contains(&flows) {
            let span = self.raw.flows.as_ref().map_or(0..0, Spanned::span);
            self.add(span, "flows", "must be 1 to 128");
        }
        Some(Iperf3 {
            transfer: self.direction(),
            // iperf3 adds the omitted time to the duration.
            duration: duration - warmup,
            warmup,
            flows,
            congestion: self
                .raw
                .congestion
                .as_ref()
                .map(|name| name.get_ref().clone()),
            family: self.family(),
            timeout: self.timeout().max(duration + Duration::from_secs(30)),
        })
    }

    fn messages(&mut self, port: u16) -> Option<Messages> {
        let (duration, warmup) = self.duration()?;
        let Some(raw) = &self.raw.interval else {
            return self.missing("interval", "time between messages, such as \"50ms\"");
        };
        let interval = self.parts(Some(raw), "interval", duration, duration)?;
        let Some(size) = &self.raw.size else {
            return self.missing("size", "size of a message, such as \"200B\"");
        };
        let bytes = size.get_ref().bytes();
        if !MESSAGE_BYTES.contains(&bytes) {
            let (minimum, most) = (MESSAGE_BYTES.start(), MESSAGE_BYTES.end());
            self.add(
                size.span(),
                "size",
                format!("must be {minimum} to {most} bytes"),
            );
            return None;
        }
        Some(Messages {
            transfer: self.direction(),
            bytes: usize::try_from(bytes).expect("bounded above"),
            interval,
            duration,
            warmup,
            within: self.span(self.raw.within.as_ref()).unwrap_or(WITHIN),
            family: self.family(),
            port,
        })
    }

    fn page(&mut self) -> Option<Page> {
        let Some(size) = &self.raw.size else {
            return self.missing("size", "total size of all objects, such as \"200kB\"");
        };
        let objects = self.count(self.raw.objects.as_ref(), "objects", 2..=1000);
        let Some(objects) = objects else {
            return self.missing("objects", "number of objects of the page, 2 to 1000");
        };
        let connections = self.count(self.raw.connections.as_ref(), "connections", 1..=64);
        if size.get_ref().bytes() < u64::from(objects) {
            self.add(size.span(), "size", "must be 1 byte or more per object");
        }
        Some(Page {
            bytes: size.get_ref().bytes(),
            objects,
            connections: connections.unwrap_or(CONNECTIONS),
            family: self.family(),
            timeout: self.timeout(),
        })
    }

    /// Reads an optional number; records a mistake if it is out of bounds.
    fn count(
        &mut self,
        raw: Option<&Spanned<u32>>,
        key: &str,
        range: RangeInclusive<u32>,
    ) -> Option<u32> {
        let raw = raw?;
        if !range.contains(raw.get_ref()) {
            self.add(
                raw.span(),
                key,
                format!("must be {} to {}", range.start(), range.end()),
            );
        }
        Some(*raw.get_ref())
    }

    fn shell(&mut self) -> Option<Shell> {
        let wanted = "program and arguments, such as [\"ping\", \"-c\", \"3\", \"10.77.1.2\"]";
        let Some(command) = &self.raw.command else {
            return self.missing("command", wanted);
        };
        if command.get_ref().is_empty() {
            self.add(command.span(), "command", format!("must hold {wanted}"));
            return None;
        }
        Some(Shell {
            command: command.get_ref().clone(),
            timeout: self.timeout(),
        })
    }

    /// Duration of a transfer, and its initial part that does not count.
    fn duration(&mut self) -> Option<(Duration, Duration)> {
        let Some(raw) = &self.raw.duration else {
            return self.missing("duration", "duration of sending, such as \"60s\"");
        };
        let duration = raw.get_ref().0;
        if duration < Duration::from_millis(100) || duration > DURATION_MAX {
            self.add(raw.span(), "duration", "must be 100ms to 1d");
            return None;
        }
        let warmup = self.span(self.raw.warmup.as_ref()).unwrap_or(duration / 4);
        if warmup >= duration {
            let span = self.raw.warmup.as_ref().map_or(raw.span(), Spanned::span);
            self.add(span, "warmup", "must be shorter than the duration");
            return None;
        }
        Some((duration, warmup))
    }

    fn program(&self) -> RawProgram {
        *self.raw.program.get_ref()
    }

    fn direction(&self) -> Transfer {
        self.raw
            .direction
            .as_ref()
            .map_or(Transfer::Upload, |direction| *direction.get_ref())
    }

    fn family(&self) -> Family {
        self.raw.family.unwrap_or(Family::Ipv4)
    }

    fn timeout(&self) -> Duration {
        self.span(self.raw.timeout.as_ref())
            .unwrap_or(self.context.timeout)
    }

    fn span(&self, value: Option<&Spanned<Span>>) -> Option<Duration> {
        value.map(|value| value.get_ref().0)
    }

    fn node(&mut self, given: Option<&Spanned<String>>, key: &str, default: &str) -> String {
        let Some(given) = given else {
            return default.to_owned();
        };
        let network = self.context.network;
        if !network.contains(given.get_ref()) {
            let names = network.names();
            let message = format!("unknown node `{}`; nodes are {names}", given.get_ref());
            self.add(given.span(), key, message);
        }
        given.get_ref().clone()
    }

    fn missing<T>(&mut self, key: &str, what: &str) -> Option<T> {
        let message = format!(
            "is missing for the program {}: {what}",
            keys::name_of(self.program())
        );
        self.add(self.raw.name.span(), key, message);
        None
    }

    fn add(&mut self, span: Range<usize>, key: &str, message: impl std::fmt::Display) {
        self.findings
            .add(span, format!("workload[{}].{key}", self.index + 1), message);
    }
}
