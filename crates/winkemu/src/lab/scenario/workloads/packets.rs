//! Workloads that build their packets themselves.

use std::{ops::RangeInclusive, time::Duration};

use toml::Spanned;

use super::Reader;
use crate::lab::{
    program::{Carrier, CountingTcp, DATAGRAM_BYTES_MIN, Datagrams},
    topology::Family,
};

/// Payload of a datagram, up to that of a packet of 9000 bytes.
const DATAGRAM_BYTES: RangeInclusive<u64> = DATAGRAM_BYTES_MIN as u64..=8972;
/// Maximum number of datagrams, limited by the record of their fates.
const DATAGRAMS_MAX: u128 = 1_000_000;
/// Bytes of a `counting_tcp` transfer, limited by positions compared in 32 bits.
const COUNTING_BYTES: RangeInclusive<u64> = 1..=1_000_000_000;
const DSCP_MAX: u32 = 63;

impl Reader<'_, '_, '_> {
    pub(super) fn datagrams(&mut self, port: u16) -> Option<Datagrams> {
        let (duration, warmup) = self.duration()?;
        let bytes = self.bytes(DATAGRAM_BYTES, "payload of a datagram, such as \"160B\"")?;
        let interval = self.pace(bytes, duration, warmup)?;
        let carrier = self.raw.protocol.as_ref();
        let carrier = carrier.map_or(Carrier::Udp, |carrier| *carrier.get_ref());
        if carrier == Carrier::Esp && self.family() == Family::Ipv6 {
            let span = self.raw.protocol.as_ref().map_or(0..0, Spanned::span);
            self.add(span, "protocol", "\"esp\" is for IPv4 only");
        }
        Some(Datagrams {
            transfer: self.direction(),
            carrier,
            bytes: usize::try_from(bytes).expect("bounded above"),
            interval,
            duration,
            warmup,
            within: self.span(self.raw.within.as_ref()).unwrap_or(super::WITHIN),
            dscp: self.dscp(),
            family: self.family(),
            port,
        })
    }

    pub(super) fn counting_tcp(&mut self, port: u16) -> Option<CountingTcp> {
        if self.family() == Family::Ipv6 {
            let span = self.raw.name.span();
            self.add(
                span,
                "family",
                "must be \"ipv4\" for the program counting_tcp",
            );
        }
        Some(CountingTcp {
            transfer: self.direction(),
            bytes: self.bytes(COUNTING_BYTES, "bytes to send, such as \"990kB\"")?,
            port,
            timeout: self.timeout(),
        })
    }

    fn bytes(&mut self, range: RangeInclusive<u64>, what: &str) -> Option<u64> {
        let Some(size) = &self.raw.size else {
            return self.missing("size", what);
        };
        let bytes = size.get_ref().bytes();
        if !range.contains(&bytes) {
            let message = format!("must be {} to {} bytes", range.start(), range.end());
            self.add(size.span(), "size", message);
            return None;
        }
        Some(bytes)
    }

    /// Interval between datagrams: as given, or derived from rate and size.
    fn pace(&mut self, bytes: u64, duration: Duration, warmup: Duration) -> Option<Duration> {
        let (interval, span) = match (&self.raw.interval, &self.raw.rate) {
            (Some(interval), None) => (interval.get_ref().0, interval.span()),
            (None, Some(rate)) => {
                let bits = rate.get_ref().bits_per_second();
                let nanos = u128::from(bytes) * 8_000_000_000 / u128::from(bits.max(1));
                let nanos = u64::try_from(nanos).unwrap_or(u64::MAX);
                (Duration::from_nanos(nanos), rate.span())
            }
            (Some(_), Some(rate)) => {
                let message = "conflicts with `interval`: use one of them";
                self.add(rate.span(), "rate", message);
                return None;
            }
            (None, None) => {
                let what =
                    "time between datagrams, such as \"20ms\", or `rate`, such as \"4Mbit/s\"";
                return self.missing("interval", what);
            }
        };
        // One or more datagrams must be sent after the warm-up.
        let count = duration.as_nanos().checked_div(interval.as_nanos());
        let count = count.unwrap_or(u128::MAX);
        let in_warmup = warmup.as_nanos().div_ceil(interval.as_nanos().max(1));
        if count > DATAGRAMS_MAX || count <= in_warmup {
            let message = format!(
                "makes too few or too many datagrams: 1 after the warm-up, to {DATAGRAMS_MAX} in all"
            );
            self.add(span, "interval", message);
            return None;
        }
        Some(interval)
    }

    fn dscp(&mut self) -> Option<u8> {
        let point = self.count(self.raw.dscp.as_ref(), "dscp", 0..=DSCP_MAX)?;
        u8::try_from(point).ok()
    }
}
