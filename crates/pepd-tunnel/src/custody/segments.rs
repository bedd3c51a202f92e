//! Records in files. A record is written once, at the end of the last file; a file without needed
//! records is removed.

use std::{collections::BTreeMap, io};

use pepd_relay::limits::Resource;

use super::{
    disk::Disk,
    seal::{Damaged, Label, RECORD, Record, Seal},
};

/// Records per file. A needed one keeps the room of the others if the file system cannot punch
/// holes.
pub(super) const RECORDS: u32 = 128;

/// Place of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spot {
    segment: u32,
    index: u32,
}

impl Spot {
    pub(super) fn new(segment: u32, index: u32) -> Self {
        Self { segment, index }
    }
}

/// Reasons for which a record cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// The quota is used up.
    #[error("`custody.disk` is used up")]
    Quota,
    /// The disk has failed.
    #[error(transparent)]
    Disk(#[from] io::Error),
}

/// Reasons for which a record cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The disk has failed.
    #[error(transparent)]
    Disk(#[from] io::Error),
    /// The record is damaged.
    #[error(transparent)]
    Damaged(#[from] Damaged),
}

impl ReadError {
    /// Returns whether descriptors or memory are short, which says nothing about the disk.
    pub(crate) fn is_shortage(&self) -> bool {
        matches!(self, Self::Disk(err) if Resource::short(err).is_some())
    }
}

/// All records.
#[derive(Debug)]
pub struct Segments<D: Disk> {
    pub(super) disk: D,
    pub(super) seal: Seal,
    /// Maximum and current bytes on the disk.
    most: u64,
    pub(super) used: u64,
    pub(super) segments: BTreeMap<u32, Segment<D::File>>,
    next: u32,
}

#[derive(Debug)]
pub(super) struct Segment<F> {
    pub(super) name: String,
    pub(super) file: F,
    /// Number of written records, and of needed ones.
    written: u32,
    pub(super) needed: u32,
    /// Bytes on the disk.
    pub(super) used: u64,
    /// Some records are not synced.
    dirty: bool,
}

impl<D: Disk> Segments<D> {
    /// Creates a value without records, for up to `most` bytes.
    pub fn new(disk: D, seal: Seal, most: u64) -> Self {
        Self {
            disk,
            seal,
            most,
            used: 0,
            segments: BTreeMap::new(),
            next: 0,
        }
    }

    /// Returns the bytes on the disk.
    #[cfg(test)]
    pub fn used(&self) -> u64 {
        self.used
    }

    /// Seals and writes a record. It counts as stored once it is [synced](Self::sync).
    ///
    /// # Errors
    /// If the record was not written.
    pub fn write(&mut self, label: Label, record: &mut Record) -> Result<Spot, WriteError> {
        if self.used + RECORD > self.most {
            return Err(WriteError::Quota);
        }
        self.seal.close(label, record);
        let number = self.current()?;
        let segment = self.segments.get_mut(&number).expect("the current one");
        let index = segment.written;
        let result = self.disk.write(&segment.file, record.all(), offset(index));
        if let Err(err) = result {
            self.discard_if_empty(number);
            return Err(err.into());
        }
        segment.written += 1;
        segment.needed += 1;
        segment.used += RECORD;
        segment.dirty = true;
        self.used += RECORD;
        Ok(Spot {
            segment: number,
            index,
        })
    }

    /// Syncs all written records.
    ///
    /// # Errors
    /// If some of them may not be on the disk.
    pub fn sync(&mut self) -> io::Result<()> {
        for segment in self.segments.values_mut().filter(|segment| segment.dirty) {
            self.disk.sync(&segment.file)?;
            segment.dirty = false;
        }
        Ok(())
    }

    /// Reads a record.
    ///
    /// # Errors
    /// If the disk fails or returns another record. The call may be retried.
    pub fn read(&self, spot: Spot, label: Label, record: &mut Record) -> Result<(), ReadError> {
        let segment = &self.segments[&spot.segment];
        let bytes = record.all_mut();
        self.disk.read(&segment.file, bytes, offset(spot.index))?;
        Ok(self.seal.open(label, record)?)
    }

    /// Frees a record that is not needed any more.
    pub fn forget(&mut self, spot: Spot) {
        let Some(segment) = self.segments.get_mut(&spot.segment) else {
            return;
        };
        segment.needed -= 1;
        if segment.needed > 0 && self.disk.punch(&segment.file, offset(spot.index), RECORD) {
            segment.used -= RECORD;
            self.used -= RECORD;
        }
        self.discard_if_empty(spot.segment);
    }

    /// Returns the segment with room for a record, or a new one.
    fn current(&mut self) -> io::Result<u32> {
        if let Some((number, segment)) = self.segments.last_key_value()
            && segment.written < RECORDS
        {
            return Ok(*number);
        }
        let (key, generation) = self.seal.name();
        let name = format!("{}{generation}-{}{SUFFIX}", prefix_of(key), self.next);
        let file = self.disk.create(&name)?;
        Ok(self.add(name, file, 0))
    }

    /// Adds a file with so many records.
    pub(super) fn add(&mut self, name: String, file: D::File, written: u32) -> u32 {
        let number = self.next;
        self.next += 1;
        let segment = Segment {
            name,
            file,
            written,
            needed: 0,
            used: 0,
            dirty: false,
        };
        self.segments.insert(number, segment);
        number
    }

    pub(super) fn discard_if_empty(&mut self, number: u32) {
        let is_empty = |segment: &Segment<_>| segment.needed == 0;
        if self.segments.get(&number).is_some_and(is_empty)
            && let Some(segment) = self.segments.remove(&number)
        {
            self.used -= segment.used;
            self.remove(&segment.name);
        }
    }

    pub(super) fn remove(&self, name: &str) {
        if let Err(err) = self.disk.remove(name) {
            tracing::warn!(name, error = %err, "cannot remove a file in `custody.directory`");
        }
    }
}

/// Segments are removed on drop: without the key they are useless.
impl<D: Disk> Drop for Segments<D> {
    fn drop(&mut self) {
        let numbers: Vec<_> = self.segments.keys().copied().collect();
        for number in numbers {
            if let Some(segment) = self.segments.get_mut(&number) {
                segment.needed = 0;
            }
            self.discard_if_empty(number);
        }
    }
}

/// Beginning and end of file names, of every version.
pub(super) const PREFIX: &str = "pepd-spill-";
pub(super) const SUFFIX: &str = ".segment";
/// Version of the format of records.
const VERSION: u32 = 2;

/// Returns whether a name is that of a segment, of any version.
pub(super) fn is_segment(name: &str) -> bool {
    name.starts_with(PREFIX) && name.ends_with(SUFFIX)
}

/// Returns the beginning of file names of this version and key.
pub(super) fn prefix_of(key: &str) -> String {
    format!("{}{key}-", of_this_version())
}

/// Returns the beginning of file names of this version.
pub(super) fn of_this_version() -> String {
    format!("{PREFIX}v{VERSION}-")
}

pub(super) fn offset(index: u32) -> u64 {
    u64::from(index) * RECORD
}
