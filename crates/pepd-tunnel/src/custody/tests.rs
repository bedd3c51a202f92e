//! Custody on working, full and failing disks.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::unix::fs::{PermissionsExt, chown},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
        mpsc::TryRecvError,
    },
    time::Duration,
};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use parking_lot::Mutex;
use pep_core::relay::Direction;
use tokio::time::timeout;

use super::{directory::claim_within, segments::RECORDS, *};

const MIB: u64 = 1 << 20;

fn seal() -> Seal {
    seal_of(1)
}

/// Returns the sealer of the process with that number.
fn seal_of(generation: u32) -> Seal {
    Seal::new(&[7; 32], generation)
}

fn label(number: u64) -> Label {
    Label {
        flow: u128::from(number % 3),
        direction: Direction::Up,
        position: number << 16,
        len: 65_536 - (number as u32 % 5),
    }
}

fn filled(number: u64) -> Record {
    let mut record = Record::default();
    record.bytes_mut().fill(number as u8);
    record
}

fn is_right(number: u64, record: &mut Record) -> bool {
    let len = label(number).len as usize;
    record.bytes_mut()[..len]
        .iter()
        .all(|byte| *byte == number as u8)
}

fn write<D: Disk>(segments: &mut Segments<D>, number: u64) -> Result<Spot, WriteError> {
    segments.write(label(number), &mut filled(number))
}

fn on_disk(directory: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let files = fs::read_dir(directory).unwrap();
    files
        .map(|file| file.unwrap().metadata().unwrap().blocks() * 512)
        .sum()
}

#[test]
fn records_come_back_as_they_were_and_their_room_is_free_again() {
    let directory = tempfile::tempdir().unwrap();
    let mut segments = Segments::new(Directory::new(directory.path()), seal(), 64 * MIB);
    let spots: Vec<_> = (0..300).map(|n| write(&mut segments, n).unwrap()).collect();
    segments.sync().unwrap();
    assert_eq!(segments.used(), 300 * RECORD);
    let mut record = Record::default();
    for (number, spot) in (0..).zip(&spots) {
        segments.read(*spot, label(number), &mut record).unwrap();
        assert!(is_right(number, &mut record), "{number}");
    }
    // A record with another label is rejected.
    let other = segments.read(spots[3], label(4), &mut record);
    assert!(matches!(other, Err(ReadError::Damaged(_))));
    for spot in &spots[..299] {
        segments.forget(*spot);
        assert!(on_disk(directory.path()) <= segments.used() + 4096);
    }
    assert!(segments.used() <= RECORD * 44, "{}", segments.used());
    segments.read(spots[299], label(299), &mut record).unwrap();
    segments.forget(spots[299]);
    assert_eq!((segments.used(), on_disk(directory.path())), (0, 0));
}

#[test]
fn the_quota_is_never_exceeded() {
    let directory = tempfile::tempdir().unwrap();
    let most = 200 * RECORD + 1;
    let mut segments = Segments::new(Directory::new(directory.path()), seal(), most);
    let spots: Vec<_> = (0..200).map(|n| write(&mut segments, n).unwrap()).collect();
    assert!(matches!(write(&mut segments, 200), Err(WriteError::Quota)));
    assert!(on_disk(directory.path()) <= most);
    segments.forget(spots[17]);
    let again = write(&mut segments, 201).unwrap();
    assert!(matches!(write(&mut segments, 202), Err(WriteError::Quota)));
    let mut record = Record::default();
    segments.read(again, label(201), &mut record).unwrap();
    assert!(is_right(201, &mut record));
}

/// The records of one flow that is held for long, among those of others, keep a file each.
#[test]
fn many_files_take_few_descriptors() {
    let directory = tempfile::tempdir().unwrap();
    let mut segments = Segments::new(Directory::new(directory.path()), seal(), 1 << 40);
    let mut kept = Vec::new();
    for number in 0..40 * u64::from(RECORDS) {
        let spot = write(&mut segments, number).unwrap();
        if number % u64::from(RECORDS) == 3 {
            kept.push((number, spot));
        } else {
            segments.forget(spot);
        }
    }
    segments.sync().unwrap();
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 40);
    let inside = fs::canonicalize(directory.path()).unwrap();
    let open = fs::read_dir("/proc/self/fd").unwrap().filter(|fd| {
        let target = fd
            .as_ref()
            .ok()
            .and_then(|fd| fs::read_link(fd.path()).ok());
        target.is_some_and(|target| target.starts_with(&inside))
    });
    assert!((1..=16).contains(&open.count()));
    let mut record = Record::default();
    for (number, spot) in kept {
        segments.read(spot, label(number), &mut record).unwrap();
        assert!(is_right(number, &mut record), "{number}");
        segments.forget(spot);
    }
    assert_eq!((segments.used(), on_disk(directory.path())), (0, 0));
}

#[test]
fn an_end_leaves_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let mut segments = Segments::new(Directory::new(directory.path()), seal(), 64 * MIB);
    for number in 0..200 {
        write(&mut segments, number).unwrap();
    }
    drop(segments);
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
}

/// A file system of a few bytes that soon is full; `None` without the privilege to mount.
struct Small(tempfile::TempDir);

impl Small {
    fn new(kib: u64) -> Option<Self> {
        let directory = tempfile::tempdir().unwrap();
        let options = format!("size={kib}k,mode=0700");
        let flags = MsFlags::empty();
        let mounted = mount(
            Some("none"),
            directory.path(),
            Some("tmpfs"),
            flags,
            Some(options.as_str()),
        );
        mounted.is_ok().then_some(Self(directory))
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = umount2(self.0.path(), MntFlags::MNT_DETACH);
    }
}

#[test]
fn a_disk_that_is_full_takes_more_once_there_is_room() {
    let Some(small) = Small::new(2048) else {
        eprintln!("skipped: mounting needs privileges");
        return;
    };
    let path = small.0.path();
    let mut segments = Segments::new(Directory::new(path), seal(), 64 * MIB);
    let mut spots = Vec::new();
    let full = loop {
        match write(&mut segments, spots.len() as u64) {
            Ok(spot) => spots.push(spot),
            Err(err) => break err,
        }
    };
    assert!(matches!(&full, WriteError::Disk(err) if directory::is_full(err)));
    assert!(spots.len() > 20, "{}", spots.len());
    let mut record = Record::default();
    for (number, spot) in (0..).zip(&spots) {
        segments.read(*spot, label(number), &mut record).unwrap();
        assert!(is_right(number, &mut record));
    }
    segments.forget(spots[5]);
    segments.forget(spots[6]);
    let again = write(&mut segments, 90).unwrap();
    segments.read(again, label(90), &mut record).unwrap();
    assert!(is_right(90, &mut record));
    // A full disk does not prevent a start.
    let filler = vec![0; 2 << 20];
    let _ = fs::write(path.join("filler"), filler);
    claim_within(path, Duration::ZERO).unwrap();
}

/// Files in memory on a disk that fails on demand.
#[derive(Debug, Clone, Default)]
pub(crate) struct Faulty(pub(crate) Arc<Faults>);

#[derive(Debug, Default)]
pub(crate) struct Faults {
    files: Mutex<BTreeMap<String, Arc<Mutex<Vec<u8>>>>>,
    pub(crate) create: AtomicBool,
    pub(crate) write: AtomicBool,
    pub(crate) read: AtomicBool,
    pub(crate) sync: AtomicBool,
}

impl Faults {
    /// Returns the bytes in files.
    pub(crate) fn bytes(&self) -> u64 {
        let files = self.files.lock();
        let files = files.values().map(|file| file.lock().len() as u64);
        files.sum()
    }
}

/// A disk that works on demand, for deterministic tests.
pub(crate) struct ManualDisk<T>(Worker<Faulty, T>, Replies<T>);

impl<T: fmt::Debug + Copy + Send + 'static> ManualDisk<T> {
    /// Creates a disk of up to `most` bytes.
    pub(crate) fn new(disk: &Faulty, most: u64) -> (Spill<T>, Self) {
        let (spill, slow, _) = Self::with_room(disk, most, 1);
        (spill, slow)
    }

    /// Creates the disk of the process with that number, with the records left by earlier ones.
    pub(crate) fn with_room(disk: &Faulty, most: u64, generation: u32) -> (Spill<T>, Self, Left) {
        let mut segments = Segments::new(disk.clone(), seal_of(generation), most);
        let left = segments.inherit();
        let (mut spills, worker) = Spill::without_thread(segments, 1);
        let (spill, replies) = spills.remove(0);
        (spill, Self(worker, replies), left)
    }

    /// Performs the first request alone, without others of the batch. Returns whether there was
    /// one.
    pub(crate) fn work_once(&mut self) -> bool {
        let job = self.0.todo.try_recv();
        job.map(|job| self.0.work(job)).is_ok()
    }

    /// Simulates a crash: further requests are not performed.
    pub(crate) fn crash(self) {
        mem::forget(self.0.segments);
    }

    /// Performs pending requests. Returns their answers.
    pub(crate) fn work(&mut self) -> Vec<Answered<T>> {
        self.0.work_on();
        let answers = &mut self.1.0;
        std::iter::from_fn(|| answers.try_recv().ok().map(Answered)).collect()
    }
}

fn fail(fault: &AtomicBool) -> io::Result<()> {
    let failed = fault.load(Relaxed);
    (!failed)
        .then_some(())
        .ok_or_else(|| io::Error::from_raw_os_error(libc::EIO))
}

impl Disk for Faulty {
    type File = Arc<Mutex<Vec<u8>>>;

    fn create(&self, name: &str) -> io::Result<Self::File> {
        fail(&self.0.create)?;
        let file = Self::File::default();
        let mut files = self.0.files.lock();
        assert!(files.insert(name.into(), Arc::clone(&file)).is_none());
        Ok(file)
    }

    fn names(&self) -> io::Result<Vec<String>> {
        fail(&self.0.read)?;
        Ok(self.0.files.lock().keys().cloned().collect())
    }

    fn open(&self, name: &str) -> io::Result<(Self::File, u64)> {
        let files = self.0.files.lock();
        let file = files.get(name).ok_or(io::ErrorKind::NotFound)?;
        let len = file.lock().len() as u64;
        Ok((Arc::clone(file), len))
    }

    fn write(&self, file: &Self::File, bytes: &[u8], offset: u64) -> io::Result<()> {
        let (file, offset) = (&mut *file.lock(), offset as usize);
        let failed = fail(&self.0.write);
        // Half of the bytes have been written by then.
        let bytes = &bytes[..bytes.len() / if failed.is_err() { 2 } else { 1 }];
        let end = file.len().max(offset + bytes.len());
        file.resize(end, 0);
        file[offset..offset + bytes.len()].copy_from_slice(bytes);
        failed
    }

    fn read(&self, file: &Self::File, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        fail(&self.0.read)?;
        let file = file.lock();
        let found = file.get(offset as usize..offset as usize + bytes.len());
        bytes.copy_from_slice(found.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn sync(&self, _: &Self::File) -> io::Result<()> {
        fail(&self.0.sync)
    }

    fn punch(&self, _: &Self::File, _: u64, _: u64) -> bool {
        false
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let removed = self.0.files.lock().remove(name);
        removed.map(drop).ok_or(io::ErrorKind::NotFound.into())
    }
}

fn spill(disk: &Faulty) -> (Spill<u64>, Replies<u64>) {
    let segments = Segments::new(disk.clone(), seal(), 64 * MIB);
    Spill::over(segments, thread(), (), 1).remove(0)
}

async fn reply(spill: &mut Spill<u64>, replies: &mut Replies<u64>) -> Reply<u64> {
    let answered = timeout(Duration::from_secs(60), replies.next()).await;
    answered.expect("an answer").unwrap().by(spill)
}

async fn written(
    spill: &mut Spill<u64>,
    replies: &mut Replies<u64>,
    number: u64,
) -> Result<Spot, WriteError> {
    let mut record = spill.record().unwrap();
    record.bytes_mut().fill(number as u8);
    spill.write(number, label(number), record);
    match reply(spill, replies).await {
        Reply::Written { of, result, .. } if of == number => result,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_disk_that_fails_says_so_and_works_again_when_it_does() {
    let disk = Faulty::default();
    let (mut spill, mut replies) = spill(&disk);
    let first = written(&mut spill, &mut replies, 1).await.unwrap();
    for fault in [&disk.0.write, &disk.0.sync] {
        fault.store(true, Relaxed);
        let failed = written(&mut spill, &mut replies, 2).await;
        assert!(matches!(failed, Err(WriteError::Disk(_))));
        fault.store(false, Relaxed);
        let second = written(&mut spill, &mut replies, 3).await.unwrap();
        spill.forget(second);
    }
    disk.0.read.store(true, Relaxed);
    for fails in [true, false] {
        disk.0.read.store(fails, Relaxed);
        assert!(spill.read(9, label(1), first));
        match reply(&mut spill, &mut replies).await {
            Reply::Read { result, spot, .. } => {
                assert_eq!((result.is_err(), spot), (fails, first));
                let right = result.map(|mut record| is_right(1, &mut record));
                assert!(right.unwrap_or(true));
            }
            other => panic!("{other:?}"),
        }
    }
    spill.forget(first);
    disk.0.create.store(true, Relaxed);
    while written(&mut spill, &mut replies, 4).await.is_ok() {
        tokio::task::yield_now().await;
    }
    assert!(disk.0.files.lock().is_empty());
}

#[tokio::test]
async fn what_the_disk_has_changed_is_not_taken_for_what_was_written() {
    let disk = Faulty::default();
    let (mut spill, mut replies) = spill(&disk);
    let spot = written(&mut spill, &mut replies, 1).await.unwrap();
    for file in disk.0.files.lock().values() {
        file.lock()[5000] ^= 1;
    }
    assert!(spill.read(1, label(1), spot));
    match reply(&mut spill, &mut replies).await {
        Reply::Read { result, .. } => assert!(matches!(result, Err(ReadError::Damaged(_)))),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn pending_records_are_limited() {
    let disk = Faulty::default();
    let (mut spill, mut replies) = spill(&disk);
    for round in 0..3 {
        let mut begun = 0;
        while let Some(record) = spill.record() {
            spill.write(begun, label(begun), record);
            begun += 1;
        }
        assert_eq!(begun, UNDER_WAY as u64, "{round}");
        for _ in 0..begun {
            let Reply::Written { result, .. } = reply(&mut spill, &mut replies).await else {
                panic!("something was read");
            };
            result.unwrap();
        }
    }
}

/// Starts as many writes as may be pending. Returns their numbers, from `first`.
fn write_all(spill: &mut Spill<u64>, first: u64) -> BTreeSet<u64> {
    let mut begun = BTreeSet::new();
    for number in first.. {
        let Some(mut record) = spill.record() else {
            break;
        };
        record.bytes_mut().fill(number as u8);
        spill.write(number, label(number), record);
        begun.insert(number);
    }
    begun
}

#[tokio::test]
async fn several_share_a_quota_and_each_gets_its_own_replies() {
    let disk = Faulty::default();
    let most = (2 * UNDER_WAY as u64 - 1) * RECORD;
    let segments = Segments::new(disk.clone(), seal(), most);
    let mut spills = Spill::<u64>::over(segments, thread(), (), 2);
    let firsts = [0, 1000];
    let begun = firsts.map(|first| write_all(&mut spills[usize::from(first > 0)].0, first));
    let (mut spots, mut refused) = (Vec::new(), 0);
    for ((spill, replies), begun) in spills.iter_mut().zip(begun) {
        assert_eq!(begun.len(), UNDER_WAY, "each has its own limit");
        let mut answered = BTreeSet::new();
        while spill.is_busy() {
            let Reply::Written { of, result, .. } = reply(spill, replies).await else {
                panic!("something was read");
            };
            answered.insert(of);
            match result {
                Ok(spot) => spots.push((of, spot)),
                Err(WriteError::Quota) => refused += 1,
                Err(err) => panic!("{err}"),
            }
        }
        assert_eq!(answered, begun);
    }
    assert_eq!((spots.len(), refused), (2 * UNDER_WAY - 1, 1));
    // Each record can be read by any of them.
    let (spill, replies) = &mut spills[1];
    for (number, spot) in spots {
        assert!(spill.read(number, label(number), spot));
        let Reply::Read { of, result, .. } = reply(spill, replies).await else {
            panic!("something was written");
        };
        assert_eq!(of, number);
        assert!(is_right(number, &mut result.unwrap()), "{number}");
    }
}

#[tokio::test]
async fn the_thread_serves_until_the_last_has_ended() {
    let disk = Faulty::default();
    let segments = Segments::new(disk.clone(), seal(), 64 * MIB);
    let (held, until) = channel::<()>();
    let mut spills = Spill::<u64>::over(segments, thread(), held, 3);
    for first in [0, 1000] {
        // It ends with requests pending.
        let (mut spill, replies) = spills.remove(0);
        assert_eq!(write_all(&mut spill, first).len(), UNDER_WAY);
        drop((spill, replies));
    }
    let (mut last, mut replies) = spills.remove(0);
    written(&mut last, &mut replies, 2000).await.unwrap();
    assert!(matches!(until.try_recv(), Err(TryRecvError::Empty)));
    drop(last);
    until.recv().unwrap_err();
    assert!(replies.next().await.is_none());
    assert!(disk.0.files.lock().is_empty());
}

fn thread() -> IdleThread {
    IdleThread::new("pepd-custody".to_owned()).unwrap()
}

fn fault(path: &Path) -> String {
    claim_within(path, Duration::ZERO).unwrap_err().to_string()
}

#[test]
fn directories_that_others_can_write_to_are_refused_with_the_remedy() {
    let parent = tempfile::tempdir().unwrap();
    let path = parent.path().join("custody");
    let claimed = claim_within(&path, Duration::ZERO).unwrap();
    let mode = fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
    assert!(fault(&path).contains("another pepd uses it"));
    drop(claimed);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o770)).unwrap();
    assert!(fault(&path).contains("other users can write to it (mode 770): `chmod 700`"));
    fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
    if chown(&path, Some(12_345), None).is_ok() {
        assert!(fault(&path).contains("it belongs to user 12345"));
    }
    let link = parent.path().join("link");
    std::os::unix::fs::symlink(parent.path(), &link).unwrap();
    assert!(fault(&link).contains("it is a file or a link, not a directory"));
    let file = parent.path().join("file");
    fs::write(&file, "").unwrap();
    assert!(fault(&file).contains("it is a file or a link, not a directory: remove it"));
    assert!(fault(&parent.path().join("no/such")).contains("the parent directory does not exist"));
}

#[test]
fn what_others_have_left_is_removed_and_nothing_else() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    let left = ["pepd-spill-v1-00-1-0.segment", "pepd-spill-v9-x.segment"];
    for name in left.into_iter().chain(["notes.txt"]) {
        fs::write(path.join(name), "something").unwrap();
    }
    let odd = ["pepd-spill-link.segment", "pepd-spill-directory.segment"];
    std::os::unix::fs::symlink("notes.txt", path.join(odd[0])).unwrap();
    fs::create_dir(path.join(odd[1])).unwrap();
    let mut other = Segments::new(Directory::new(path), Seal::new(&[9; 32], 1), 64 * MIB);
    write(&mut other, 1).unwrap();
    mem::forget(other);
    let claimed = claim_within(path, Duration::ZERO).unwrap();
    let (spills, left) = Spill::<u64>::open((claimed, thread()), 64 * MIB, seal(), 1);
    let names = fs::read_dir(path).unwrap().map(|f| f.unwrap().file_name());
    let mut names: Vec<_> = names.collect();
    names.sort();
    assert_eq!(names, ["notes.txt", odd[1], odd[0]]);
    assert_eq!((left.count(), left.torn), (0, 0));
    drop(spills);
}

/// Writes records, and ends without cleaning up.
fn left_by(directory: &Path, generation: u32, numbers: impl Iterator<Item = u64>) -> Vec<Spot> {
    let mut segments = Segments::new(Directory::new(directory), seal_of(generation), 64 * MIB);
    segments.inherit();
    let spots = numbers.map(|number| write(&mut segments, number).unwrap());
    let spots = spots.collect();
    mem::forget(segments);
    spots
}

#[test]
fn what_a_predecessor_has_left_is_found_by_what_it_is() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    // Records of chunk length, of three flows.
    let numbers = || (0..300).step_by(5);
    left_by(path, 1, numbers());
    // A successor has written some of them again, and others.
    left_by(path, 2, (250..400).step_by(5));
    let mut segments = Segments::new(Directory::new(path), seal_of(3), 64 * MIB);
    let mut left = segments.inherit();
    assert_eq!((left.count(), left.torn), (80, 0));
    assert_eq!(segments.used(), 80 * RECORD);
    assert!(left.take(0, Direction::Down).is_empty());
    let mut flows = [0, 1, 2].map(|flow| left.take(flow, Direction::Up));
    let mut record = Record::default();
    for number in (0..400).step_by(5) {
        let label = label(number);
        let spot = flows[label.flow as usize].remove(&label.position).unwrap();
        segments.read(spot, label, &mut record).unwrap();
        assert!(is_right(number, &mut record), "{number}");
        segments.forget(spot);
    }
    assert_eq!((left.count(), segments.used()), (0, 0));
    assert_eq!(fs::read_dir(path).unwrap().count(), 0);
}

#[test]
fn what_a_predecessor_has_left_is_divided_by_flows() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    left_by(path, 1, (0..90).step_by(5));
    let mut segments = Segments::new(Directory::new(path), seal_of(2), 64 * MIB);
    let mut left = segments.inherit();
    // Flow 7 has nothing on disk, and another thread has flow 1 already.
    let mut parts = [left.cut([7, 1]), left.cut([1, 2])];
    assert_eq!(parts.each_ref().map(Left::count), [6, 6]);
    assert_eq!((left.count(), left.torn), (6, 0));
    assert_eq!(parts[0].take(1, Direction::Up).len(), 6);
    assert_eq!(parts[1].take(2, Direction::Up).len(), 6);
    assert_eq!(left.take(0, Direction::Up).len(), 6);
    assert_eq!(parts.map(|part| part.rest().count()), [0, 0]);
}

#[test]
fn partly_written_records_are_rejected() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    left_by(path, 1, [0, 5, 10].into_iter());
    left_by(path, 2, [15, 20].into_iter());
    let names = || fs::read_dir(path).unwrap().map(|file| file.unwrap().path());
    for file in names() {
        let file = fs::OpenOptions::new().write(true).open(file).unwrap();
        let len = file.metadata().unwrap().len();
        file.set_len(len - RECORD / 2).unwrap();
    }
    // And an invalid one.
    let odd = names().next().unwrap();
    let odd = fs::OpenOptions::new().write(true).open(odd).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&odd, b"x", 0).unwrap();
    let mut segments = Segments::new(Directory::new(path), seal_of(3), 64 * MIB);
    let left = segments.inherit();
    assert_eq!(left.torn, 3, "{left:?}");
    let spots: Vec<_> = left.rest().collect();
    for spot in spots {
        segments.forget(spot);
    }
    assert_eq!((segments.used(), names().count()), (0, 0));
}

#[test]
fn what_cannot_be_read_at_the_start_is_lost_and_does_not_keep_pepd_from_starting() {
    let disk = Faulty::default();
    let mut segments = Segments::new(disk.clone(), seal(), 64 * MIB);
    write(&mut segments, 0).unwrap();
    mem::forget(segments);
    disk.0.read.store(true, Relaxed);
    let mut segments = Segments::new(disk.clone(), seal_of(2), 64 * MIB);
    assert_eq!(segments.inherit().count(), 0);
    disk.0.read.store(false, Relaxed);
    let written = write(&mut segments, 5).unwrap();
    let mut record = Record::default();
    segments.read(written, label(5), &mut record).unwrap();
}
