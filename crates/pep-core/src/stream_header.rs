//! Header of a stream: identifies its flow, lists flows of the session before, or asks for a probe.
//!
//! ```text
//!   version:8 = 2 | flags:8 | DSCP:8 | length of the site's name:8
//!   token:128
//!   with flag 8: the next byte down:64 | bytes down that are taken:64 | the next byte up:64
//!   destination: address (4 or 16 bytes), port:16
//!   client: the same
//!   the site's name
//!
//!   version:8 = 2 | flags:8 = 32 | 0:16 | flows that go on:64
//!
//!   version:8 = 2 | flags:8 = 64 | 0:16 | bytes down:64
//! ```
//!
//! Flags:
//!
//! - 1: the addresses are IPv6.
//! - 2: connect from the client's address.
//! - 4: the stream's bytes are compressed in both directions.
//! - 8: the flow resumes.
//! - 16, with 8: the far end may not know the flow yet.
//! - 32, alone: a flow inventory.
//! - 64, alone: a probe of the path.
//!
//! Other flags are zero; a stream header with one of them set is refused. Numbers are in network
//! byte order.
//!
//! The far end starts the stream of a resumed flow with an [`Answer`].

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// First message of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Opening {
    /// The stream of a flow.
    Flow(StreamHeader),
    /// Number of flows that resume in this session, each with a stream of its own. The opener has
    /// dropped all other flows.
    Inventory(u64),
    /// A probe without a flow: the far end drops its bytes, and returns this many padding bytes, up
    /// to [`PROBE_MAX`].
    Probe(u64),
}

/// Maximum number of bytes that a probe may ask for.
pub const PROBE_MAX: u64 = 10_000_000_000;

/// Maximum position in a flow, as in a stream (RFC 9000, section 16). Sums of positions that a peer
/// states thus fit in 64 bits.
pub const POSITION_MAX: u64 = (1 << 62) - 1;

/// Description of a flow for the far end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamHeader {
    /// Identifier of the flow at both ends for its lifetime: random, and never 0.
    pub token: u128,
    /// Positions at which the flow resumes, if it does.
    pub resume: Option<Resume>,
    /// Destination of the client's connection.
    pub destination: SocketAddr,
    /// Client's address and port; of the same family.
    pub client: SocketAddr,
    /// True if the server should see the client's address.
    pub as_client: bool,
    /// True if the stream's bytes are compressed, in both directions.
    pub compressed: bool,
    /// The DSCP of its packets, 0 to 63.
    pub dscp: u8,
    /// The near pepd's site, for logs: up to 64 letters, digits, `-`, `_` or `.`.
    pub site: String,
}

/// Positions at which a flow resumes after its stream ended with its session. They count the bytes
/// that streams carry, from the start of the flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Resume {
    /// Bytes down below this were received and stored.
    pub down: u64,
    /// Bytes down below this may be sent.
    pub down_until: u64,
    /// Bytes up below this were confirmed, and may have been freed here.
    pub up: u64,
    /// True if the far end may not know the flow.
    pub perhaps_new: bool,
}

/// First message of the far end on the stream of a resumed flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer {
    /// Bytes up below this were received and stored. The near end's stream position 0.
    pub up: u64,
    /// Bytes up below this may be sent.
    pub up_until: u64,
}

impl Answer {
    /// Length in bytes.
    pub const LEN: usize = 16;

    /// Encodes the answer.
    pub fn emit(self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        let (up, until) = bytes.split_at_mut(8);
        up.copy_from_slice(&self.up.to_be_bytes());
        until.copy_from_slice(&self.up_until.to_be_bytes());
        bytes
    }

    /// Decodes the far end's answer.
    pub fn parse(bytes: [u8; Self::LEN]) -> Self {
        let both = u128::from_be_bytes(bytes);
        Self {
            up: (both >> 64) as u64,
            up_until: both as u64,
        }
    }
}

/// Reason why a stream header is rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum StreamHeaderError {
    /// Another version of pepd: both ends need the same.
    #[error("stream header has version {0}, this pepd supports version 2: update the older pepd")]
    Version(u8),
    /// Too short, too long, or with invalid values.
    #[error("malformed stream header")]
    Form,
}

const VERSION: u8 = 2;
const IPV6: u8 = 1;
const AS_CLIENT: u8 = 2;
const COMPRESSED: u8 = 4;
const RESUME: u8 = 8;
const PERHAPS_NEW: u8 = 16;
const INVENTORY: u8 = 32;
const PROBE: u8 = 64;
const NAME_MAX: usize = 64;

impl Opening {
    /// Encodes the header.
    ///
    /// # Panics
    /// When the addresses are of two families.
    pub fn emit(&self) -> Vec<u8> {
        match self {
            Self::Flow(stream_header) => stream_header.emit(),
            Self::Inventory(flows) => of_none(INVENTORY, *flows),
            Self::Probe(down) => of_none(PROBE, *down),
        }
    }

    /// Decodes a header of a peer.
    ///
    /// # Errors
    /// When the bytes are not exactly one header.
    pub fn parse(bytes: &[u8]) -> Result<Self, StreamHeaderError> {
        let (&version, rest) = bytes.split_first().ok_or(StreamHeaderError::Form)?;
        if version != VERSION {
            return Err(StreamHeaderError::Version(version));
        }
        let of_none = |flag| rest.strip_prefix(&[flag, 0, 0]);
        let number = |bytes: &[u8]| bytes.try_into().map(u64::from_be_bytes);
        if let Some(flows) = of_none(INVENTORY) {
            return number(flows)
                .map(Self::Inventory)
                .map_err(|_| StreamHeaderError::Form);
        }
        if let Some(down) = of_none(PROBE) {
            let down = number(down).ok().filter(|down| *down <= PROBE_MAX);
            return down.map(Self::Probe).ok_or(StreamHeaderError::Form);
        }
        let stream_header = StreamHeader::parse(rest).ok_or(StreamHeaderError::Form)?;
        Ok(Self::Flow(stream_header))
    }
}

/// Encodes an opening without a flow.
fn of_none(flag: u8, number: u64) -> Vec<u8> {
    let mut bytes = vec![VERSION, flag, 0, 0];
    bytes.extend(number.to_be_bytes());
    bytes
}

impl StreamHeader {
    /// Encodes the opening.
    ///
    /// # Panics
    /// When the addresses are of two families.
    pub fn emit(&self) -> Vec<u8> {
        assert_eq!(self.destination.is_ipv4(), self.client.is_ipv4());
        let name = &self.site.as_bytes()[..self.site.len().min(NAME_MAX)];
        let length = u8::try_from(name.len()).expect("at most NAME_MAX");
        let mut bytes = vec![VERSION, self.flags(), self.dscp, length];
        bytes.extend(self.token.to_be_bytes());
        if let Some(resume) = self.resume {
            for position in [resume.down, resume.down_until, resume.up] {
                bytes.extend(position.to_be_bytes());
            }
        }
        for address in [self.destination, self.client] {
            match address.ip() {
                IpAddr::V4(ip) => bytes.extend(ip.octets()),
                IpAddr::V6(ip) => bytes.extend(ip.octets()),
            }
            bytes.extend(address.port().to_be_bytes());
        }
        bytes.extend(name);
        bytes
    }

    fn flags(&self) -> u8 {
        let perhaps_new = self.resume.is_some_and(|resume| resume.perhaps_new);
        [
            (self.client.is_ipv6(), IPV6),
            (self.as_client, AS_CLIENT),
            (self.compressed, COMPRESSED),
            (self.resume.is_some(), RESUME),
            (perhaps_new, PERHAPS_NEW),
        ]
        .into_iter()
        .filter_map(|(is_set, flag)| is_set.then_some(flag))
        .sum()
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let (&[flags, dscp, length], rest) = bytes.split_first_chunk()?;
        let known = IPV6 | AS_CLIENT | COMPRESSED | RESUME | PERHAPS_NEW;
        let odd = flags & (RESUME | PERHAPS_NEW) == PERHAPS_NEW;
        if flags & !known != 0 || odd || dscp > 63 || usize::from(length) > NAME_MAX {
            return None;
        }
        let (token, rest) = rest.split_first_chunk()?;
        let (resume, rest) = if flags & RESUME == 0 {
            (None, rest)
        } else {
            let (resume, rest) = resume(rest, flags & PERHAPS_NEW != 0)?;
            (Some(resume), rest)
        };
        let ipv6 = flags & IPV6 != 0;
        let (destination, rest) = address(rest, ipv6)?;
        let (client, name) = address(rest, ipv6)?;
        if name.len() != usize::from(length) || !name.iter().copied().all(is_of_name) {
            return None;
        }
        Some(Self {
            token: u128::from_be_bytes(*token),
            resume,
            destination,
            client,
            as_client: flags & AS_CLIENT != 0,
            compressed: flags & COMPRESSED != 0,
            dscp,
            site: String::from_utf8(name.to_vec()).ok()?,
        })
        .filter(|stream_header| stream_header.token != 0)
    }
}

/// Decodes the resume positions; returns the remaining bytes.
fn resume(bytes: &[u8], perhaps_new: bool) -> Option<(Resume, &[u8])> {
    let (down, rest) = bytes.split_first_chunk()?;
    let (down_until, rest) = rest.split_first_chunk()?;
    let (up, rest) = rest.split_first_chunk()?;
    let resume = Resume {
        down: u64::from_be_bytes(*down),
        down_until: u64::from_be_bytes(*down_until),
        up: u64::from_be_bytes(*up),
        perhaps_new,
    };
    let is_valid = resume.down <= resume.down_until
        && resume.down_until <= POSITION_MAX
        && resume.up <= POSITION_MAX;
    is_valid.then_some((resume, rest))
}

/// Reports whether the byte is allowed in site names, so that nothing else gets into logs.
fn is_of_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-_.".contains(&byte)
}

/// Decodes an address and port; returns the remaining bytes.
fn address(bytes: &[u8], ipv6: bool) -> Option<(SocketAddr, &[u8])> {
    let (ip, rest): (IpAddr, _) = if ipv6 {
        let (octets, rest) = bytes.split_first_chunk::<16>()?;
        (Ipv6Addr::from(*octets).into(), rest)
    } else {
        let (octets, rest) = bytes.split_first_chunk::<4>()?;
        (Ipv4Addr::from(*octets).into(), rest)
    };
    let (port, rest) = rest.split_first_chunk()?;
    Some((SocketAddr::new(ip, u16::from_be_bytes(*port)), rest))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn stream_header() -> impl Strategy<Value = StreamHeader> {
        let v4 = (any::<[u8; 4]>(), any::<[u8; 4]>()).prop_map(|(a, b)| [a.into(), b.into()]);
        let v6 = (any::<[u8; 16]>(), any::<[u8; 16]>()).prop_map(|(a, b)| [a.into(), b.into()]);
        let ips = prop_oneof![v4, v6];
        (
            ips,
            any::<[u16; 2]>(),
            any::<[bool; 2]>(),
            0..64_u8,
            "[a-z0-9._-]{0,64}",
            (1..=u128::MAX, prop::option::of(resume())),
        )
            .prop_map(
                |([destination, client], ports, flags, dscp, site, (token, resume)): (
                    [IpAddr; 2],
                    _,
                    _,
                    _,
                    _,
                    _,
                )| {
                    let [as_client, compressed] = flags;
                    StreamHeader {
                        token,
                        resume,
                        destination: SocketAddr::new(destination, ports[0]),
                        client: SocketAddr::new(client, ports[1]),
                        as_client,
                        compressed,
                        dscp,
                        site,
                    }
                },
            )
    }

    fn resume() -> impl Strategy<Value = Resume> {
        let position = 0..=POSITION_MAX;
        let positions = [position.clone(), position.clone(), position];
        (positions, any::<bool>()).prop_map(|([a, b, up], perhaps_new)| Resume {
            down: a.min(b),
            down_until: a.max(b),
            up,
            perhaps_new,
        })
    }

    fn opening() -> impl Strategy<Value = Opening> {
        prop_oneof![
            8 => stream_header().prop_map(Opening::Flow),
            1 => any::<u64>().prop_map(Opening::Inventory),
            1 => (0..=PROBE_MAX).prop_map(Opening::Probe),
        ]
    }

    proptest! {
        #[test]
        fn what_is_emitted_is_parsed(opening in opening()) {
            let bytes = opening.emit();
            prop_assert!(bytes.len() <= 144, "well below what a stream may be opened with");
            prop_assert_eq!(Opening::parse(&bytes), Ok(opening));
        }

        #[test]
        fn an_answer_is_what_it_was(up in any::<u64>(), up_until in any::<u64>()) {
            let answer = Answer { up, up_until };
            prop_assert_eq!(Answer::parse(answer.emit()), answer);
        }

        #[test]
        fn positions_beyond_the_maximum_are_refused(
            header in stream_header(),
            at in 0..3_usize,
            beyond in POSITION_MAX + 1..,
        ) {
            let mut resume = Resume { down: 0, down_until: 0, up: 0, perhaps_new: false };
            match at {
                0 => (resume.down, resume.down_until) = (beyond, beyond),
                1 => resume.down_until = beyond,
                _ => resume.up = beyond,
            }
            let header = StreamHeader { resume: Some(resume), ..header };
            prop_assert!(Opening::parse(&Opening::Flow(header).emit()).is_err());
        }

        #[test]
        fn what_is_cut_short_or_goes_on_is_refused(opening in opening(), more in 1..20_usize) {
            let mut bytes = opening.emit();
            for length in 0..bytes.len() {
                prop_assert_eq!(Opening::parse(&bytes[..length]), Err(StreamHeaderError::Form));
            }
            bytes.extend(vec![b'a'; more]);
            prop_assert_eq!(Opening::parse(&bytes), Err(StreamHeaderError::Form));
        }

        #[test]
        fn whatever_is_accepted_is_what_would_be_emitted(bytes in prop::collection::vec(any::<u8>(), 0..160)) {
            if let Ok(opening) = Opening::parse(&bytes) {
                prop_assert_eq!(opening.emit(), bytes);
            }
        }
    }

    #[test]
    fn a_probe_asks_for_no_more_than_it_may() {
        let bytes = Opening::Probe(PROBE_MAX + 1).emit();
        assert_eq!(Opening::parse(&bytes), Err(StreamHeaderError::Form));
    }

    #[test]
    fn other_versions_and_strange_values_are_refused() {
        let good = StreamHeader {
            token: 7,
            resume: None,
            destination: ([192, 0, 2, 1], 80).into(),
            client: ([10, 0, 0, 1], 4000).into(),
            as_client: true,
            compressed: false,
            dscp: 46,
            site: "a".to_owned(),
        }
        .emit();
        let with = |at: usize, value| {
            let mut bytes = good.clone();
            bytes[at] = value;
            Opening::parse(&bytes)
        };
        for version in [1, 3] {
            let refused = Err(StreamHeaderError::Version(version));
            assert_eq!(with(0, version), refused);
        }
        // No addresses, a short one, combined exclusive flags, extra fields, a token of 0, an
        // invalid name.
        for (at, value) in [
            (1, 64),
            (1, 1),
            (1, 34),
            (1, 18),
            (2, 64),
            (3, 2),
            (19, 0),
            (32, b'\n'),
        ] {
            assert_eq!(
                with(at, value),
                Err(StreamHeaderError::Form),
                "{at} {value}"
            );
        }
    }
}
