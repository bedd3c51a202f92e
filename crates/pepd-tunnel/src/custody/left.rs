//! What processes before this one have left in the folder.
//!
//! A process that ends at any instant leaves records whose flows go on, and others: copies of what was in memory as well, what had been
//! delivered and not been deleted yet, half of the one that it was writing. Which of them are needed say their flows, by their labels: what is
//! at a place of a stream is always the same, so it makes no difference how often it was written.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    io, mem,
};

use pep_core::{chunks::CHUNK, relay::Direction};

use super::{
    disk::Disk,
    seal::{HEADER, Label, RECORD, Seal},
    segments::{RECORDS, Segments, Spot, is_segment, offset, ours},
};

/// Records that were sealed by a key that is known, by what they are.
#[derive(Debug, Default)]
pub struct Left {
    flows: BTreeMap<(u128, usize), BTreeMap<u64, Sealed>>,
    /// Those that are not complete, or cannot be read.
    pub torn: u64,
}

#[derive(Debug)]
struct Sealed {
    spot: Spot,
    when: (u32, u64),
}

/// Files that are of no use.
#[derive(Debug, Default)]
struct UnusableFiles {
    files: u64,
    bytes: u64,
}

impl Left {
    /// Chunks of one half of a flow, by where they begin.
    pub fn take(&mut self, flow: u128, direction: Direction) -> BTreeMap<u64, Spot> {
        let records = self.flows.remove(&(flow, direction as usize));
        let records = records.into_iter().flatten();
        records.map(|(start, found)| (start, found.spot)).collect()
    }

    /// All that nobody has taken.
    pub fn rest(self) -> impl Iterator<Item = Spot> {
        let records = self.flows.into_values().flat_map(BTreeMap::into_values);
        records.map(|found| found.spot)
    }

    /// How many there are.
    pub fn count(&self) -> u64 {
        self.flows
            .values()
            .map(|records| records.len() as u64)
            .sum()
    }

    /// Adds a record. Returns the one that is not needed because of it, or the other way round.
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
    /// Takes over what was sealed by the same key, and removes what was sealed by others: nobody can read that any more. Nothing
    /// is known of what cannot be read now.
    pub(crate) fn inherit(&mut self) -> Left {
        let mut left = Left::default();
        let mut foreign = UnusableFiles::default();
        let names = self.disk.names().unwrap_or_else(|err| {
            tracing::error!(error = %err, "cannot look into the spill folder: what is there is lost");
            Vec::new()
        });
        let ours = ours(self.seal.name().0);
        for name in names {
            if !is_segment(&name) {
                continue;
            }
            let opened = self.disk.open(&name);
            match opened {
                Ok((file, len)) if name.starts_with(&ours) => {
                    self.inherit_from(name, file, len, &mut left);
                }
                Ok((_, len)) => {
                    foreign.files += 1;
                    foreign.bytes += len;
                    self.remove(&name);
                }
                Err(err) if is_no_file(&err) => {
                    tracing::warn!(
                        name,
                        "has the name of a file of pepd's in `custody.directory` and is none: remove it"
                    );
                }
                Err(err) => {
                    tracing::error!(name, error = %err, "cannot open a file of the spill folder");
                }
            }
        }
        let UnusableFiles { files, bytes } = foreign;
        if files > 0 {
            tracing::warn!(
                files,
                bytes,
                "removed what an earlier pepd had in custody: its key is gone, so nobody can read it"
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
            let segment = self.segments.get_mut(&number).expect("it was added");
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
                    tracing::error!(name, error = %err, "cannot read a file of the spill folder");
                }
            }
        }
        for spot in unneeded {
            self.forget(spot);
        }
        self.discard_if_empty(number);
    }
}

/// A link, a folder, a socket.
fn is_no_file(err: &io::Error) -> bool {
    matches!(
        err.raw_os_error(),
        Some(libc::ELOOP | libc::EISDIR | libc::ENXIO)
    )
}

/// What is where a record may be.
enum Header {
    /// Its room was given back.
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
