//! Terms that both ends exchange in the handshake.

use crate::session::{SessionConfig, Unreached};

/// Version of the protocol in docs/protocol.md.
pub const VERSION: u8 = 2;

/// Payload of both messages of the handshake.
///
/// ```text
///  0         1       2         10     18           20            24
///  | version | flags | session | next | packet_max | streams_max |
///  24              32               40     48        56      64       96
///  | stream_credit | session_credit | rate | counter | owner | zeros |
/// ```
///
/// `owner` and the zeros are reserved: sent as 0 and ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Terms {
    /// Protocol version; the other fields apply only if it is [`VERSION`].
    pub version: u8,
    /// Counter of the initiation, or the highest one accepted from its sender.
    pub counter: u64,
    /// Session that continues under new keys; `None` if a session begins.
    pub continues: Option<u64>,
    /// Lowest number of the sender's packets under the new keys.
    pub next: u64,
    /// Maximum packet that the sender accepts, in bytes.
    pub packet_max: u16,
    /// Streams that the other side may have open.
    pub streams_max: u32,
    /// Initial credit of each stream for the other side, in bytes.
    pub stream_credit: u64,
    /// Initial credit of all streams together for the other side, in bytes.
    pub session_credit: u64,
    /// True if the sender accepts datagrams (RFC 9221).
    pub packets: bool,
    /// True if the sender expects the rare beacons of a session at rest.
    pub rests: bool,
    /// Hosts that the receiver's flows do not reach by the sender.
    pub unreached: Unreached,
    /// Sending rate of the sender in bits per second, if known.
    pub rate: Option<u64>,
}

pub(super) const TERMS_LEN: usize = 96;

/// Flag: a session continues.
const CONTINUES: u8 = 1;
/// Flag: the sender accepts datagrams.
const PACKETS: u8 = 2;
/// Flag: the sender expects the rare beacons of a session at rest.
const RESTS: u8 = 4;
/// Flags: the sender does not reach hosts of IPv4, or of IPv6.
const NOT_V4: u8 = 0x20;
const NOT_V6: u8 = 0x40;

impl Terms {
    /// Creates the terms of an end with that configuration.
    pub fn from_config(
        config: &SessionConfig,
        counter: u64,
        continues: Option<u64>,
        next: u64,
    ) -> Self {
        Self {
            version: VERSION,
            counter,
            continues,
            next,
            packet_max: config.packet_max.try_into().unwrap_or(u16::MAX),
            streams_max: config.streams_max,
            stream_credit: config.stream_credit,
            session_credit: config.session_credit,
            packets: config.packets,
            rests: true,
            unreached: config.unreached,
            rate: config.rate.stated(),
        }
    }

    /// Creates the terms of a response that offers nothing.
    pub fn refusal(counter: u64) -> Self {
        Self {
            version: VERSION,
            counter,
            continues: None,
            next: 0,
            packet_max: 0,
            streams_max: 0,
            stream_credit: 0,
            session_credit: 0,
            packets: false,
            rests: false,
            unreached: Unreached::default(),
            rate: None,
        }
    }

    pub fn emit(&self) -> [u8; TERMS_LEN] {
        let mut out = [0; TERMS_LEN];
        out[0] = self.version;
        out[1] = flag(self.continues.is_some(), CONTINUES)
            | flag(self.packets, PACKETS)
            | flag(self.rests, RESTS)
            | flag(self.unreached.v4, NOT_V4)
            | flag(self.unreached.v6, NOT_V6);
        out[2..10].copy_from_slice(&self.continues.unwrap_or(0).to_be_bytes());
        out[10..18].copy_from_slice(&self.next.to_be_bytes());
        out[18..20].copy_from_slice(&self.packet_max.to_be_bytes());
        out[20..24].copy_from_slice(&self.streams_max.to_be_bytes());
        out[24..32].copy_from_slice(&self.stream_credit.to_be_bytes());
        out[32..40].copy_from_slice(&self.session_credit.to_be_bytes());
        out[40..48].copy_from_slice(&self.rate.unwrap_or(0).to_be_bytes());
        out[48..56].copy_from_slice(&self.counter.to_be_bytes());
        out
    }

    /// Parses terms. Ignores unknown flags and bytes; the caller checks the version.
    pub fn parse(bytes: &[u8; TERMS_LEN]) -> Self {
        let long = |at: usize| {
            bytes[at..]
                .first_chunk()
                .copied()
                .map_or(0, u64::from_be_bytes)
        };
        let word = |at: usize| {
            bytes[at..]
                .first_chunk()
                .copied()
                .map_or(0, u32::from_be_bytes)
        };
        Self {
            version: bytes[0],
            counter: long(48),
            continues: (bytes[1] & CONTINUES != 0).then(|| long(2)),
            next: long(10).min(u64::MAX >> 1),
            packet_max: u16::from_be_bytes([bytes[18], bytes[19]]),
            streams_max: word(20),
            stream_credit: long(24),
            session_credit: long(32),
            packets: bytes[1] & PACKETS != 0,
            rests: bytes[1] & RESTS != 0,
            unreached: Unreached {
                v4: bytes[1] & NOT_V4 != 0,
                v6: bytes[1] & NOT_V6 != 0,
            },
            rate: Some(long(40)).filter(|rate| *rate > 0),
        }
    }

    /// Returns the session parameters agreed with these terms of the other side: the lower value of
    /// each limit.
    pub fn agree(&self, ours: &SessionConfig) -> SessionConfig {
        let packet_max = ours.packet_max.min(self.packet_max.max(PACKET_MIN).into());
        SessionConfig {
            packet_max,
            packet_start: ours.packet_start.min(packet_max),
            streams_max: ours.streams_max.min(self.streams_max),
            stream_credit: ours.stream_credit.min(self.stream_credit),
            session_credit: ours.session_credit.min(self.session_credit),
            return_rate: ours.return_rate.or(self.rate),
            peer_packets: self.packets,
            peer_rests: self.rests,
            ..ours.clone()
        }
    }
}

fn flag(is_set: bool, flag: u8) -> u8 {
    if is_set { flag } else { 0 }
}

/// Minimum of the agreed maximum packet, whatever the peer offers: the IPv6 minimum MTU less 100
/// bytes of headers (RFC 8200, section 5).
const PACKET_MIN: u16 = 1180;

#[cfg(test)]
mod tests {
    use super::{super::tests::session_config, *};

    #[test]
    fn flags_say_who_takes_packets_and_rests_and_what_is_reserved_nothing() {
        for (ours, theirs) in [(false, false), (false, true), (true, false), (true, true)] {
            let [ours, theirs] = [ours, theirs].map(|packets| SessionConfig {
                packets,
                ..session_config()
            });
            let mut bytes = Terms::from_config(&theirs, 5, Some(7), 9).emit();
            assert_eq!(bytes[1], flag(theirs.packets, 2) | 0b101);
            // Flags of a later version.
            bytes[1] |= 0x98;
            bytes[56..].fill(0xff);
            let terms = Terms::parse(&bytes);
            assert_eq!(terms, Terms::from_config(&theirs, 5, Some(7), 9));
            let agreed = terms.agree(&ours);
            assert_eq!(agreed.packets, ours.packets);
            assert_eq!(agreed.peer_packets, theirs.packets);
            assert!(agreed.peer_rests);
            // An earlier version.
            bytes[1] &= 0b11;
            assert!(!Terms::parse(&bytes).agree(&ours).peer_rests);
        }
    }

    #[test]
    fn each_family_without_hosts_has_its_flag() {
        for (v4, v6, flags) in [(true, false, 0x20), (false, true, 0x40), (true, true, 0x60)] {
            let config = SessionConfig {
                unreached: Unreached { v4, v6 },
                ..session_config()
            };
            let bytes = Terms::from_config(&config, 5, None, 0).emit();
            assert_eq!(bytes[1] & 0x60, flags);
            assert_eq!(Terms::parse(&bytes).unreached, config.unreached);
        }
    }
}
