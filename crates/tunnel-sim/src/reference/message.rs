//! Messages of the reference session.

use tunnel::{
    class::Class,
    wire::{ResetCode, StreamId},
};

/// Message of the reference session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Message {
    Open {
        id: StreamId,
        class: Class,
        stream_header: Vec<u8>,
    },
    /// The bytes follow.
    Data {
        id: StreamId,
        from: u64,
        length: u64,
        fin: bool,
    },
    Reset {
        id: StreamId,
        code: ResetCode,
    },
    Credit {
        id: StreamId,
        until: u64,
    },
}

impl Message {
    pub(super) fn id(&self) -> StreamId {
        match self {
            Self::Open { id, .. }
            | Self::Data { id, .. }
            | Self::Reset { id, .. }
            | Self::Credit { id, .. } => *id,
        }
    }

    pub(super) fn emit(&self, out: &mut Vec<u8>) {
        let (kind, detail, number) = match self {
            Self::Open { class, .. } => (0, *class as u8, 0),
            Self::Data { from, fin, .. } => (1, u8::from(*fin), *from),
            Self::Reset { code, .. } => (2, *code as u8, 0),
            Self::Credit { until, .. } => (3, 0, *until),
        };
        out.extend([kind, detail]);
        out.extend(self.id().to_be_bytes());
        out.extend(number.to_be_bytes());
        if let Self::Open { stream_header, .. } = self {
            out.extend(stream_header);
        }
    }

    /// Parses the message of a packet, and returns its bytes.
    pub(super) fn parse(packet: &[u8]) -> Option<(Self, &[u8])> {
        let (&[kind, detail], rest) = packet.split_first_chunk()?;
        let (id, rest) = rest.split_first_chunk()?;
        let (number, rest) = rest.split_first_chunk()?;
        let (id, number) = (u64::from_be_bytes(*id), u64::from_be_bytes(*number));
        let message = match kind {
            0 => Self::Open {
                id,
                class: Class::from_wire(detail)?,
                stream_header: rest.to_vec(),
            },
            1 => Self::Data {
                id,
                from: number,
                length: rest.len() as u64,
                fin: detail != 0,
            },
            2 => Self::Reset {
                id,
                code: ResetCode::from_wire(detail)?,
            },
            _ => Self::Credit { id, until: number },
        };
        Some((message, rest))
    }
}
