//! Records left in the directory by previous processes.
//!
//! A process that ends at any moment leaves records of flows that resume. It also leaves copies of
//! bytes that are in memory as well, delivered records not yet deleted, and a partial record. The
//! flows determine by the labels which records they need. A position of a stream always holds the
//! same bytes, so repeated writes do no harm.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    io, mem,
};

use pep_core::{chunks::CHUNK, relay::Direction};

use super::{
    disk::Disk,
    seal::{HEADER, Label, RECORD, Seal},
    segments::{RECORDS, Segments, Spot, is_segment, offset, prefix_of},
};

/// Records sealed by a known key, by label.
#[derive(Debug, Default)]
pub struct Left {
    flows: BTreeMap<(u128, usize), BTreeMap<u64, Sealed>>,
    /// Number of incomplete or unreadable records.
    pub torn: u64,
}

#[derive(Debug)]
struct Sealed {
    spot: Spot,
    when: (u32, u64),
}

/// Files sealed by other keys.
#[derive(Debug, Default)]
struct UnusableFiles {
    files: u64,
    bytes: u64,
}

impl Left {
    /// Takes the chunks of one direction of a flow, by position.
    pub fn take(&mut self, flow: u128, direction: Direction) -> BTreeMap<u64, Spot> {
        let records = self.flows.remove(&(flow, direction as usize));
        let records = records.into_iter().flatten();
        records.map(|(start, found)| (start, found.spot)).collect()
    }

    /// Moves the records of these flows to another value, for the thread that recovers them. What
    /// no thread claims thus stays here, and each record is dropped by one of them only.
    pub fn cut(&mut self, flows: impl IntoIterator<Item = u128>) -> Self {
        let mut part = Self::default();
        for flow in flows {
            for direction in Direction::ALL {
                let key = (flow, direction as usize);
                part.flows.extend(self.flows.remove_entry(&key));
            }
        }
        part
    }

    /// Returns all records that were not taken.
    pub fn rest(self) -> impl Iterator<Item = Spot> {
        let records = self.flows.into_values().flat_map(BTreeMap::into_values);
        records.map(|found| found.spot)
    }

    /// Returns the number of records.
    pub fn count(&self) -> u64 {
        self.flows
            .values()
            .map(|records| records.len() as u64)
            .sum()
    }

    /// Adds a record. Returns the older of two records with one label, which is not needed.
    fn add(&mut self, label: Label, found: Sealed) -> Option<Spot> {
        let flow = (label.flow, label.direction as usize);
        match self.flows.entry(flow).or_default().entry(label.position) {
            Entry::Vacant(place) => {
                place.insert(found);
                None
            }
            Entry::Occupied(mut place) if place.get().when < found.when => {
                Some(mem::replace(place.get_mut(), found).spot)
            }
            Entry::Occupied(_) => Some(found.spot),
        }
    }
}

impl<D: Disk> Segments<D> {
    /// Takes over records sealed by the same key, and removes others, which cannot be decrypted any
    /// more. Unreadable files are ignored.
    pub(crate) fn inherit(&mut self) -> Left {
        let mut left = Left::default();
        let mut unusable = UnusableFiles::default();
        let names = self.disk.names().unwrap_or_else(|err| {
            tracing::error!(error = %err, "cannot list `custody.directory`: pepd runs without the data in it; fix permissions or the disk, then restart pepd");
            Vec::new()
        });
        let prefix = prefix_of(self.seal.name().0);
        for name in names {
            if !is_segment(&name) {
                continue;
            }
            let opened = self.disk.open(&name);
            match opened {
                Ok((file, len)) if name.starts_with(&prefix) => {
                    self.inherit_from(name, file, len, &mut left);
                }
                Ok((_, len)) => {
                    unusable.files += 1;
                    unusable.bytes += len;
                    self.remove(&name);
                }
                Err(err) if is_no_file(&err) => {
                    tracing::warn!(
                        name,
                        "not a regular file, but named like a custody file: remove it from `custody.directory`"
                    );
                }
                Err(err) => {
                    tracing::error!(name, error = %err, "cannot open a file in `custody.directory`: flows lose its data; check permissions and disk");
                }
            }
        }
        let UnusableFiles { files, bytes } = unusable;
        if files > 0 {
            tracing::warn!(
                files,
                bytes,
                "custody files of an earlier pepd removed: their key is lost"
            );
        }
        left
    }

    fn inherit_from(&mut self, name: String, file: D::File, len: u64, left: &mut Left) {
        let number = self.add(name, file, RECORDS);
        let mut unneeded = Vec::new();
        let count = u32::try_from(len.div_ceil(RECORD)).unwrap_or(u32::MAX);
        for index in 0..count.min(RECORDS) {
            let spot = Spot::new(number, index);
            let is_whole = offset(index) + RECORD <= len;
            let segment = self.segments.get_mut(&number).expect("added above");
            let found = header(&self.disk, &segment.file, index, is_whole);
            if matches!(found, Ok(Header::None)) {
                continue;
            }
            segment.used += RECORD;
            self.used += RECORD;
            match found {
                Ok(Header::Of(label, when)) => {
                    segment.needed += 1;
                    unneeded.extend(left.add(label, Sealed { spot, when }));
                }
                Ok(_) => left.torn += 1,
                Err(err) => {
                    left.torn += 1;
                    let name = &segment.name;
                    tracing::error!(name, error = %err, "cannot read a file in `custody.directory`: flows lose its data; check permissions and disk");
                }
            }
        }
        for spot in unneeded {
            self.forget(spot);
        }
        self.discard_if_empty(number);
    }
}

/// Returns whether the error means a link, a directory or a socket.
fn is_no_file(err: &io::Error) -> bool {
    matches!(
        err.raw_os_error(),
        Some(libc::ELOOP | libc::EISDIR | libc::ENXIO)
    )
}

/// Content of a record's place.
enum Header {
    /// The blocks were freed.
    None,
    Torn,
    Of(Label, (u32, u64)),
}

fn header<D: Disk>(disk: &D, file: &D::File, index: u32, is_whole: bool) -> io::Result<Header> {
    if !is_whole {
        return Ok(Header::Torn);
    }
    let mut header = [0; HEADER];
    disk.read(file, &mut header, offset(index))?;
    if header == [0; HEADER] {
        return Ok(Header::None);
    }
    let found = Seal::read(&header);
    let found = found.filter(|(label, _)| u64::from(label.len) == CHUNK);
    Ok(found.map_or(Header::Torn, |(label, when)| Header::Of(label, when)))
}
