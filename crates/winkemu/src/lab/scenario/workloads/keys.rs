//! Keys of workloads, and the programs that accept them.

use std::ops::Range;

use toml::Spanned;

use super::{super::raw::RawProgram, Reader};

/// Programs that accept a key.
type Programs<'a> = &'a [RawProgram];

impl Reader<'_, '_, '_> {
    /// Rejects keys of other programs, which would have no effect.
    pub(super) fn refuse_unknown_keys(&mut self) {
        use RawProgram::{Bulk, Command, CountingTcp, Curl, Iperf3, Messages, Page, Udp};
        let raw = self.raw;
        let timed: &[_] = &[Bulk, Iperf3, Messages, Udp];
        let transfers: &[_] = &[Bulk, CountingTcp, Curl, Iperf3, Messages, Udp];
        let served: &[_] = &[Bulk, CountingTcp, Curl, Iperf3, Messages, Page, Udp];
        let sized: &[_] = &[CountingTcp, Curl, Messages, Page, Udp];
        let keys: [(&str, Option<Range<usize>>, Programs<'_>); 20] = [
            ("size", span(&raw.size), sized),
            ("duration", span(&raw.duration), timed),
            ("warmup", span(&raw.warmup), timed),
            ("interval", span(&raw.interval), &[Bulk, Messages, Udp]),
            ("sample", span(&raw.sample), &[Bulk]),
            ("early", span(&raw.early), &[Bulk]),
            ("pacing", span(&raw.pacing), &[Bulk]),
            ("congestion", span(&raw.congestion), &[Bulk, Iperf3]),
            ("flows", span(&raw.flows), &[Iperf3]),
            ("within", span(&raw.within), &[Messages, Udp]),
            ("protocol", span(&raw.protocol), &[Udp]),
            ("rate", span(&raw.rate), &[Udp]),
            ("dscp", span(&raw.dscp), &[Udp]),
            ("partial", span(&raw.partial), &[Curl]),
            ("objects", span(&raw.objects), &[Page]),
            ("connections", span(&raw.connections), &[Page]),
            ("port", span(&raw.port), &[Bulk, CountingTcp, Messages, Udp]),
            ("command", span(&raw.command), &[Command]),
            ("direction", span(&raw.direction), transfers),
            ("server", span(&raw.server), served),
        ];
        for (key, span, programs) in keys {
            if let Some(span) = span
                && !programs.contains(&self.program())
            {
                let names: Vec<_> = programs.iter().map(|program| name_of(*program)).collect();
                let message = format!("is only for the programs {}", names.join(", "));
                self.add(span, key, message);
            }
        }
    }
}

fn span<T>(value: &Option<Spanned<T>>) -> Option<Range<usize>> {
    value.as_ref().map(Spanned::span)
}

pub(super) fn name_of(program: RawProgram) -> &'static str {
    match program {
        RawProgram::Bulk => "bulk",
        RawProgram::Curl => "curl",
        RawProgram::Iperf3 => "iperf3",
        RawProgram::Messages => "messages",
        RawProgram::Page => "page",
        RawProgram::Udp => "udp",
        RawProgram::CountingTcp => "counting_tcp",
        RawProgram::Command => "command",
    }
}
