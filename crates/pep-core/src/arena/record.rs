//! Records of flows.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use crate::{
    arena::{Part, Words},
    relay::{Direction, DirectionRecord, Side},
};

const STATE: usize = 0;
const COOKIES: usize = 8;
const KIND: usize = 24;
const SITE: usize = 32;
const BORN: usize = 40;
const TOKEN: usize = 48;
const DIRECTIONS: usize = 64;
const DIRECTION_BYTES: usize = 64;
const HEAD: usize = 0;
const TAIL: usize = 8;
const BASE: usize = 16;
const SIZE: usize = 24;
const FIN_IN: usize = 32;
const FIN_OUT: usize = 40;
const CLIENT: usize = 192;
const DESTINATION: usize = 224;
const PEER: usize = 256;
const FLAGS: usize = 264;
const CLASS: usize = 272;

/// Progress of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SlotState {
    /// No flow.
    Free = 0,
    /// Accepted; its server leg is not connected and no byte was received.
    Accepted = 1,
    /// Both legs are connected.
    Relaying = 2,
    /// Being closed; no byte moves any more.
    Closed = 3,
}

/// Kind of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Kind {
    /// Both legs are here.
    #[default]
    Split = 0,
    /// Near end: the client leg is here, and the server leg at the far end of a tunnel.
    Near = 1,
    /// Far end: the server leg is here.
    Far = 2,
}

/// Flags of a flow; all but the last of one in a tunnel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Flags {
    /// The stream is compressed.
    pub compressed: bool,
    /// The stream was announced to the peer once.
    pub opened: bool,
    /// The server leg has the client's address.
    pub as_client: bool,
    /// pepd answered the client's FIN before the server did (`close = "early"`), and drops data for
    /// the client.
    pub answered: bool,
    /// The server leg leaves by another interface than the link.
    pub off_link: bool,
}

impl Flags {
    fn to_word(self) -> u64 {
        u64::from(self.compressed)
            | u64::from(self.opened) << 1
            | u64::from(self.as_client) << 2
            | u64::from(self.answered) << 3
            | u64::from(self.off_link) << 4
    }

    fn from_word(word: u64) -> Self {
        Self {
            compressed: word & 1 != 0,
            opened: word & 2 != 0,
            as_client: word & 4 != 0,
            answered: word & 8 != 0,
            off_link: word & 16 != 0,
        }
    }
}

/// Hash of a name that is the same in every process (FNV-1a of 64 bits); never 0.
pub fn name_hash(name: &str) -> u64 {
    let fold = |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    name.bytes().fold(0xcbf2_9ce4_8422_2325, fold).max(1)
}

/// Identity of a flow, fixed from its start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    /// Kind of the flow.
    pub kind: Kind,
    /// [`name_hash`] of its site's name; 0 where it has none.
    pub site: u64,
    /// [`name_hash`] of its peer's name; 0 where it has none.
    pub peer: u64,
    /// Start of the flow, in milliseconds since 1970.
    pub born: u64,
    /// Token by which the peer knows the flow in any session; 0 where it has none.
    pub token: u128,
    /// The client's address.
    pub client: SocketAddr,
    /// Destination of the client's connection.
    pub destination: SocketAddr,
    /// Flags of the flow.
    pub flags: Flags,
    /// Class of the flow in the tunnel, or its DSCP.
    pub class: u64,
}

/// Full record of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record {
    /// Progress of the flow.
    pub state: SlotState,
    /// SO_COOKIE of the client's and the server's leg; 0 where it has none.
    pub cookies: [u64; 2],
    /// Identity of the flow.
    pub identity: Identity,
    /// Directions up and down.
    pub directions: [DirectionRecord; 2],
}

/// Header of a slot in shared memory, 512 bytes:
///
/// ```text
///   0  state | 8 cookie of the client leg | 16 of the server leg | 24 kind | 32 site | 40 born
///  48  token (16 bytes)
///  64  up:   head | tail | base | size | fin in | fin out
/// 128  down: the same
/// 192  client: family and port | address (16 bytes) | scope
/// 224  destination: the same
/// 256  peer | 264 flags | 272 class or DSCP | reserved, 0
/// ```
///
/// A single task writes it, in an order that keeps it valid after every single store. A flow's
/// identity, its cookies and its directions come before its state; tails before heads; the base of
/// a ring before its size.
#[derive(Debug, Clone, Copy)]
pub struct Header<'a, W> {
    words: Part<'a, W>,
}

impl<'a, W: Words> Header<'a, W> {
    /// Returns the header that starts at this offset.
    pub fn new(words: &'a W, start: usize) -> Self {
        let words = Part { words, start };
        Self { words }
    }

    /// Writes the state, after all fields that it covers.
    pub fn write_state(&self, state: SlotState) {
        self.words.store(STATE, state as u64);
    }

    /// Writes the socket of a leg (SO_COOKIE). The server's is written before connect(): the
    /// successor resets a leg that no record names.
    pub fn write_cookie(&self, side: Side, cookie: u64) {
        self.words.store(COOKIES + 8 * side as usize, cookie);
    }

    /// Writes the identity of a flow. Not to be called while the slot has a flow.
    pub fn write_identity(&self, identity: &Identity) {
        self.words.store(KIND, identity.kind as u64);
        self.words.store(SITE, identity.site);
        self.words.store(BORN, identity.born);
        self.words.store(TOKEN, identity.token as u64);
        self.words.store(TOKEN + 8, (identity.token >> 64) as u64);
        self.write_address(CLIENT, identity.client);
        self.write_address(DESTINATION, identity.destination);
        self.words.store(PEER, identity.peer);
        self.write_flags(identity.flags);
        self.words.store(CLASS, identity.class);
    }

    /// Writes the flags, which may change during the flow.
    pub fn write_flags(&self, flags: Flags) {
        self.words.store(FLAGS, flags.to_word());
    }

    /// Writes the positions of a direction. Tail before head: `head <= tail` at every instant. Base
    /// before size: the new base with the old size still gives the old map.
    pub fn write_direction(&self, direction: Direction, record: &DirectionRecord) {
        let start = DIRECTIONS + direction as usize * DIRECTION_BYTES;
        self.words.store(start + TAIL, record.tail);
        self.words.store(start + HEAD, record.head);
        self.words.store(start + BASE, record.base);
        self.words.store(start + SIZE, record.size);
        self.words.store(start + FIN_IN, record.fin_in.into());
        self.words.store(start + FIN_OUT, record.fin_out.into());
    }

    fn write_address(&self, start: usize, address: SocketAddr) {
        let (family, scope) = match address {
            SocketAddr::V4(_) => (4, 0),
            SocketAddr::V6(address) => (6, address.scope_id()),
        };
        let bits = match address.ip() {
            IpAddr::V4(ip) => ip.to_bits().into(),
            IpAddr::V6(ip) => ip.to_bits(),
        };
        self.words
            .store(start, family << 16 | u64::from(address.port()));
        self.words.store(start + 8, (bits >> 64) as u64);
        self.words.store(start + 16, bits as u64);
        self.words.store(start + 24, scope.into());
    }

    /// Reports whether there is a flow, readable or not.
    pub fn has_flow(&self) -> bool {
        self.words.load(STATE) != SlotState::Free as u64
    }

    /// Returns the record, where there is a flow and all fields are valid.
    pub fn read(&self) -> Option<Record> {
        let state = match self.words.load(STATE) {
            1 => SlotState::Accepted,
            2 => SlotState::Relaying,
            3 => SlotState::Closed,
            _ => return None,
        };
        let kind = match self.words.load(KIND) {
            0 => Kind::Split,
            1 => Kind::Near,
            2 => Kind::Far,
            _ => return None,
        };
        let token =
            u128::from(self.words.load(TOKEN)) | u128::from(self.words.load(TOKEN + 8)) << 64;
        Some(Record {
            state,
            cookies: [self.words.load(COOKIES), self.words.load(COOKIES + 8)],
            identity: Identity {
                kind,
                site: self.words.load(SITE),
                peer: self.words.load(PEER),
                born: self.words.load(BORN),
                token,
                client: self.read_address(CLIENT)?,
                destination: self.read_address(DESTINATION)?,
                flags: Flags::from_word(self.words.load(FLAGS)),
                class: self.words.load(CLASS),
            },
            directions: Direction::ALL.map(|direction| self.read_direction(direction)),
        })
    }

    fn read_direction(&self, direction: Direction) -> DirectionRecord {
        let start = DIRECTIONS + direction as usize * DIRECTION_BYTES;
        DirectionRecord {
            head: self.words.load(start + HEAD),
            tail: self.words.load(start + TAIL),
            base: self.words.load(start + BASE),
            size: self.words.load(start + SIZE),
            fin_in: self.words.load(start + FIN_IN) != 0,
            fin_out: self.words.load(start + FIN_OUT) != 0,
        }
    }

    fn read_address(&self, start: usize) -> Option<SocketAddr> {
        let first = self.words.load(start);
        let port = first as u16;
        let bits =
            u128::from(self.words.load(start + 8)) << 64 | u128::from(self.words.load(start + 16));
        match first >> 16 {
            4 => Some((Ipv4Addr::from_bits(bits as u32), port).into()),
            6 => {
                let scope = self.words.load(start + 24) as u32;
                let ip = Ipv6Addr::from_bits(bits);
                Some(SocketAddrV6::new(ip, port, 0, scope).into())
            }
            _ => None,
        }
    }
}
