//! What the two sides tell each other in the handshake.

use crate::session::SessionConfig;

/// The protocol that is described in docs/protocol.md.
pub const VERSION: u8 = 1;

/// The payload of both messages of the handshake.
///
/// ```text
///  0         1       2         10     18           20            24              32               40     48
///  | version | flags | session | next | packet_max | streams_max | stream_credit | session_credit | rate |
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Terms {
    /// Of the protocol; what follows is as here if it is [`VERSION`].
    pub version: u8,
    /// The session that goes on under new keys, or none: a session begins.
    pub continues: Option<u64>,
    /// Packets of the sender under the new keys have this number or a higher one.
    pub next: u64,
    /// The longest packet that the sender takes, in bytes.
    pub packet_max: u16,
    /// Streams that the sender lets the other side have open.
    pub streams_max: u32,
    /// Bytes of each stream that the other side may send unasked.
    pub stream_credit: u64,
    /// Bytes of all streams together that the other side may send unasked.
    pub session_credit: u64,
    /// Whether the sender takes packets beside streams.
    pub packets: bool,
    /// How fast the sender sends, in bits a second, if that is known.
    pub rate: Option<u64>,
}

pub(super) const TERMS_LEN: usize = 48;

/// In flags: a session goes on.
const CONTINUES: u8 = 1;
/// In flags: the sender takes packets beside streams.
const PACKETS: u8 = 2;

impl Terms {
    /// Those of a side with that configuration.
    pub fn from_config(config: &SessionConfig, continues: Option<u64>, next: u64) -> Self {
        Self {
            version: VERSION,
            continues,
            next,
            packet_max: config.packet_max.try_into().unwrap_or(u16::MAX),
            streams_max: config.streams_max,
            stream_credit: config.stream_credit,
            session_credit: config.session_credit,
            packets: config.packets,
            rate: config.rate.stated(),
        }
    }

    pub fn emit(&self) -> [u8; TERMS_LEN] {
        let mut out = [0; TERMS_LEN];
        out[0] = self.version;
        out[1] = flag(self.continues.is_some(), CONTINUES) | flag(self.packets, PACKETS);
        out[2..10].copy_from_slice(&self.continues.unwrap_or(0).to_be_bytes());
        out[10..18].copy_from_slice(&self.next.to_be_bytes());
        out[18..20].copy_from_slice(&self.packet_max.to_be_bytes());
        out[20..24].copy_from_slice(&self.streams_max.to_be_bytes());
        out[24..32].copy_from_slice(&self.stream_credit.to_be_bytes());
        out[32..40].copy_from_slice(&self.session_credit.to_be_bytes());
        out[40..48].copy_from_slice(&self.rate.unwrap_or(0).to_be_bytes());
        out
    }

    /// Flags and bytes without a meaning are ignored; a version that is not ours is for the caller to see.
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
            continues: (bytes[1] & CONTINUES != 0).then(|| long(2)),
            next: long(10).min(u64::MAX >> 1),
            packet_max: u16::from_be_bytes([bytes[18], bytes[19]]),
            streams_max: word(20),
            stream_credit: long(24),
            session_credit: long(32),
            packets: bytes[1] & PACKETS != 0,
            rate: Some(long(40)).filter(|rate| *rate > 0),
        }
    }

    /// How a session behaves whose other side has these terms: of each limit the lower one.
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
            ..ours.clone()
        }
    }
}

fn flag(is_set: bool, flag: u8) -> u8 {
    if is_set { flag } else { 0 }
}

/// Whatever a peer says, packets may be so long: what IPv6 carries, without 100 bytes of headers (RFC 8200, section 5).
const PACKET_MIN: u16 = 1180;

#[cfg(test)]
mod tests {
    use super::{super::tests::session_config, *};

    #[test]
    fn a_flag_says_who_takes_packets_and_other_flags_nothing() {
        for (ours, theirs) in [(false, false), (false, true), (true, false), (true, true)] {
            let [ours, theirs] = [ours, theirs].map(|packets| SessionConfig {
                packets,
                ..session_config()
            });
            let mut said = Terms::from_config(&theirs, Some(7), 9).emit();
            assert_eq!(said[1], flag(theirs.packets, 2) | 1);
            // A later version's.
            said[1] |= 0xfc;
            let terms = Terms::parse(&said);
            assert_eq!(terms, Terms::from_config(&theirs, Some(7), 9));
            let agreed = terms.agree(&ours);
            assert_eq!(agreed.packets, ours.packets);
            assert_eq!(agreed.peer_packets, theirs.packets);
        }
    }
}
