//! Records: chunks as they lie on the disk, encrypted and authenticated.
//!
//! ```text
//!   magic 8 | flow 16 | position 8 | length 4 | generation 4 | counter 8 | direction 1 | 0 15 |
//!   sealed bytes | tag 16 | 0 up to RECORD
//! ```
//!
//! All numbers are little-endian. Records are sealed by AES-256-GCM: the nonce is generation and
//! counter, and the header is authenticated with the bytes. The key exists in memory only, so
//! records that outlive it cannot be decrypted.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use ring::{
    aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey},
    digest,
};

use pep_core::{chunks::CHUNK, relay::Direction};

const MAGIC: [u8; 8] = *b"pepdspl2";
/// Length of the header before the sealed bytes.
pub(super) const HEADER: usize = 64;
const TAG: usize = 16;

/// Bytes of a record on the disk: a chunk, its header and its tag, in whole blocks.
pub(crate) const RECORD: u64 = (CHUNK + (HEADER + TAG) as u64).next_multiple_of(4096);

/// Flow and position of a record's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Label {
    /// Number of the flow, unique under this key.
    pub flow: u128,
    /// Direction of the flow.
    pub direction: Direction,
    /// Position of the first byte in the stream.
    pub position: u64,
    /// Number of bytes, up to a [chunk's](CHUNK).
    pub len: u32,
}

/// Memory of a record. Its bytes are put into `bytes_mut`.
#[derive(Debug)]
pub struct Record(Box<[u8]>);

/// A record differs from the one written: the disk or another program has changed it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("record damaged: read bytes differ from those written")]
pub struct Damaged;

impl Default for Record {
    fn default() -> Self {
        Self(vec![0; RECORD as usize].into())
    }
}

impl Record {
    /// Returns the room for a chunk, or the decrypted bytes.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.0[HEADER..HEADER + CHUNK as usize]
    }

    /// Returns the whole record, as on the disk.
    pub(super) fn all(&self) -> &[u8] {
        &self.0
    }

    pub(super) fn all_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

/// Seals and opens records.
#[derive(Debug)]
pub struct Seal {
    key: LessSafeKey,
    /// Number of processes that have sealed by this key, and records sealed by this one.
    generation: u32,
    counter: AtomicU64,
    name: String,
}

impl Seal {
    /// Creates a sealer. A pair of key and generation must be unique: nonces must never repeat.
    pub fn new(key: &[u8; 32], generation: u32) -> Self {
        let unbound = UnboundKey::new(&AES_256_GCM, key).expect("a key of that length");
        let mut named = digest::Context::new(&digest::SHA256);
        named.update(b"pepd spill ");
        named.update(key);
        let name = named.finish();
        let name = name.as_ref()[..8].iter().map(|byte| format!("{byte:02x}"));
        Self {
            key: LessSafeKey::new(unbound),
            generation,
            counter: AtomicU64::new(0),
            name: name.collect(),
        }
    }

    /// Returns the part of file names that identifies this key, and the generation. Reveals nothing
    /// of the key.
    pub fn name(&self) -> (&str, u32) {
        (&self.name, self.generation)
    }

    /// Seals the bytes in a record.
    pub fn close(&self, label: Label, record: &mut Record) {
        assert!(u64::from(label.len) <= CHUNK);
        let counter = self.counter.fetch_add(1, Relaxed);
        let header = self.header(label, counter);
        let len = label.len as usize;
        let all = &mut record.0[..];
        all[..HEADER].copy_from_slice(&header);
        let bytes = &mut all[HEADER..HEADER + len];
        let nonce = nonce(&header);
        let tag = self
            .key
            .seal_in_place_separate_tag(nonce, Aad::from(header), bytes);
        let tag = tag.expect("a chunk is not too long");
        all[HEADER + len..][..TAG].copy_from_slice(tag.as_ref());
        all[HEADER + len + TAG..].fill(0);
    }

    /// Opens a record with this label.
    ///
    /// # Errors
    /// If the record has another label or was changed.
    pub fn open(&self, label: Label, record: &mut Record) -> Result<(), Damaged> {
        let (header, sealed) = record.0.split_at_mut(HEADER);
        let header: [u8; HEADER] = (*header).try_into().expect("of that length");
        let found = Self::label(&header).ok_or(Damaged)?;
        let (nonce, len) = (nonce(&header), label.len as usize);
        let sealed = &mut sealed[..len + TAG];
        let opened = self.key.open_in_place(nonce, Aad::from(header), sealed);
        (found == label && opened.is_ok())
            .then_some(())
            .ok_or(Damaged)
    }

    fn header(&self, label: Label, counter: u64) -> [u8; HEADER] {
        let mut header = [0; HEADER];
        header[..8].copy_from_slice(&MAGIC);
        header[8..24].copy_from_slice(&label.flow.to_le_bytes());
        header[24..32].copy_from_slice(&label.position.to_le_bytes());
        header[32..36].copy_from_slice(&label.len.to_le_bytes());
        header[36..40].copy_from_slice(&self.generation.to_le_bytes());
        header[40..48].copy_from_slice(&counter.to_le_bytes());
        header[48] = label.direction as u8;
        header
    }

    /// Parses a header: the label, and an ordinal of sealing that grows with time. Both are
    /// trustworthy only once the record is [open](Self::open).
    pub(super) fn read(header: &[u8; HEADER]) -> Option<(Label, (u32, u64))> {
        let generation = header[36..40].try_into().map(u32::from_le_bytes).ok()?;
        let counter = header[40..48].try_into().map(u64::from_le_bytes).ok()?;
        Some((Self::label(header)?, (generation, counter)))
    }

    fn label(header: &[u8; HEADER]) -> Option<Label> {
        let u64_at = |at: usize| header[at..at + 8].try_into().map(u64::from_le_bytes);
        let flow = header[8..24].try_into().map(u128::from_le_bytes).ok()?;
        let direction = Direction::ALL.get(usize::from(header[48]));
        let label = Label {
            flow,
            direction: *direction?,
            position: u64_at(24).ok()?,
            len: header[32..36].try_into().map(u32::from_le_bytes).ok()?,
        };
        (header[..8] == MAGIC && u64::from(label.len) <= CHUNK).then_some(label)
    }
}

fn nonce(header: &[u8; HEADER]) -> Nonce {
    let mut nonce = [0; NONCE_LEN];
    nonce.copy_from_slice(&header[36..48]);
    Nonce::assume_unique_for_key(nonce)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LABEL: Label = Label {
        flow: 7 << 90,
        direction: Direction::Up,
        position: 1 << 40,
        len: 60_000,
    };

    fn sealed(seal: &Seal) -> Record {
        let mut record = Record::default();
        record.bytes_mut().fill(b'x');
        seal.close(LABEL, &mut record);
        record
    }

    #[test]
    fn what_was_sealed_is_opened_and_cannot_be_read_before() {
        let seal = Seal::new(&[1; 32], 0);
        let mut record = sealed(&seal);
        assert!(!record.all().windows(8).any(|bytes| bytes == b"xxxxxxxx"));
        seal.open(LABEL, &mut record).unwrap();
        assert!(
            record.bytes_mut()[..60_000]
                .iter()
                .all(|byte| *byte == b'x')
        );
    }

    #[test]
    fn nothing_can_be_changed_or_taken_for_something_else() {
        let seal = Seal::new(&[1; 32], 0);
        for at in [
            0, 9, 25, 33, 37, 45, 48, 50, 64, 1000, 60_063, 60_064, 60_079,
        ] {
            let mut record = sealed(&seal);
            record.all_mut()[at] ^= 1;
            assert_eq!(seal.open(LABEL, &mut record), Err(Damaged), "{at}");
        }
        let others = [
            Label { flow: 1, ..LABEL },
            Label {
                direction: Direction::Down,
                ..LABEL
            },
            Label {
                position: 0,
                ..LABEL
            },
            Label {
                len: 59_999,
                ..LABEL
            },
        ];
        for label in others {
            assert_eq!(seal.open(label, &mut sealed(&seal)), Err(Damaged));
        }
        let other = Seal::new(&[2; 32], 0);
        assert_eq!(other.open(LABEL, &mut sealed(&seal)), Err(Damaged));
        assert_ne!(seal.name(), other.name());
    }

    #[test]
    fn no_nonce_comes_twice() {
        let seals = [0, 1].map(|generation| Seal::new(&[1; 32], generation));
        let records = [&seals[0], &seals[0], &seals[1]].map(sealed);
        let nonces = records.map(|record| record.all()[36..48].to_vec());
        assert!(nonces[0] != nonces[1] && nonces[0] != nonces[2]);
    }
}
