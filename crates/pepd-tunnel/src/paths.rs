//! A persistent record of the paths to peers, and of their handshake counters, in a file. Without a
//! state directory it is in memory that the keeper process holds open as well, so that it survives
//! pepd.
//!
//! If the file is missing, damaged or not pepd's, only the remembered figures are lost. A lost
//! counter costs a round trip.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    fs::{self, File},
    io::{self, Write as _},
    net::{IpAddr, SocketAddr},
    os::{
        fd::OwnedFd,
        unix::fs::{DirBuilderExt as _, FileExt as _, OpenOptionsExt as _},
    },
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use nix::{
    sys::{
        memfd::{MFdFlags, memfd_create},
        statvfs::statvfs,
    },
    unistd::{AccessFlags, eaccess},
};
use parking_lot::Mutex;
use pep_core::key::PublicKey;
use pepd_relay::survive::inheritance::PATHS;
use serde::{Deserialize, Serialize};
use tunnel::{
    endpoint::{COUNTER_MAX, Carrier, Counters, Remote},
    path::PathMemory,
};

use super::core::Shared;

/// File name in the state directory.
const FILE: &str = "paths.json";
const VERSION: u32 = 1;
/// Maximum size; longer files are not pepd's.
const BYTES_MAX: u64 = 4 << 20;
/// Age from which a record is ignored.
const OLD: Duration = Duration::from_secs(24 * 3600);
/// Age from which a peer's address is not called: it may belong to another host by then.
const MOVED: Duration = Duration::from_secs(3600);
/// Interval between checks of peers' addresses.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Interval between writes, unless a peer moves.
const WRITE_EVERY: Duration = Duration::from_secs(60);

/// More initiations than a process sends to one peer between two writes.
const COUNTER_MARGIN: u64 = 4096;

/// Records by public key.
#[derive(Debug, Clone, Default, PartialEq)]
struct Known {
    peers: BTreeMap<String, Entry>,
    counters: BTreeMap<String, Counted>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Content {
    version: u32,
    peers: BTreeMap<String, Entry>,
    #[serde(default)]
    counters: BTreeMap<String, Counted>,
}

/// Handshake counters of one peer.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Counted {
    sent: u64,
    heard: u64,
}

/// Record of one path.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    /// Time of the measurement, in seconds since 1970.
    seen: u64,
    /// Rate in bit/s.
    rate: u64,
    rtt_us: u64,
    loss: f64,
    packet: usize,
    /// Address of the peer by UDP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    address: Option<SocketAddr>,
    /// Address of the peer by TCP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    by_tcp: Option<IpAddr>,
}

/// Location of the record.
#[derive(Debug, Clone)]
enum Store {
    /// In a directory: survives a reboot.
    File(PathBuf),
    /// In memory: lasts as long as a process has it open.
    Memory(Arc<File>),
}

impl fmt::Display for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(file) => file.display().fmt(f),
            Self::Memory(_) => f.write_str("memory"),
        }
    }
}

/// The record and its location.
#[derive(Debug)]
pub(crate) struct Paths {
    store: Store,
    known: Known,
    /// An address has changed since the last write.
    moved: bool,
    /// A failed write was logged.
    logged: bool,
}

#[derive(Debug, thiserror::Error)]
enum ReadError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("file too long: {0} bytes")]
    Long(u64),
    #[error(transparent)]
    Form(#[from] serde_json::Error),
    #[error("unknown version {0}")]
    Version(u32),
}

impl Paths {
    /// Loads the record from the directory. Creates the directory if only the last component is
    /// missing, and warns if nothing can be stored in it.
    pub(super) fn prepare(directory: &Path) -> Self {
        // A failure shows up at the write below.
        let _ = fs::DirBuilder::new().mode(0o700).create(directory);
        let mut paths = Self::load(directory);
        paths.write();
        paths
    }

    /// Loads the record from the directory, if there is one.
    fn load(directory: &Path) -> Self {
        Self::from_store(Store::File(directory.join(FILE)))
    }

    /// Loads the record that the previous process kept in memory, or creates new memory.
    ///
    /// # Errors
    /// As memfd_create(2).
    pub(super) fn inherit(before: Option<OwnedFd>) -> io::Result<Self> {
        let memory = match before {
            Some(memory) => memory,
            None => memfd_create(PATHS, MFdFlags::MFD_CLOEXEC)?,
        };
        Ok(Self::from_store(Store::Memory(Arc::new(memory.into()))))
    }

    fn from_store(store: Store) -> Self {
        let known = match read(&store) {
            Ok(known) => known,
            Err(ReadError::Io(err)) if is_missing(&err) => Known::default(),
            Err(err) => {
                tracing::warn!(path = %store, error = %err, "cannot read the record of paths to peers: pepd measures them anew");
                Known::default()
            }
        };
        Self {
            store,
            known,
            moved: false,
            logged: false,
        }
    }

    /// Returns the record of a peer. `now` is the monotonic time of sessions, `today` the time of
    /// day.
    pub(super) fn get(
        &self,
        key: &PublicKey,
        now: Duration,
        today: Duration,
    ) -> Option<PathMemory> {
        let entry = self.known.peers.get(&key.to_string())?;
        let age = today.checked_sub(Duration::from_secs(entry.seen))?;
        let at = now.checked_sub(age).filter(|_| age < OLD)?;
        let mut memory = PathMemory::default();
        let rtt = Duration::from_micros(entry.rtt_us);
        memory.note(at, entry.rate, rtt, entry.loss, entry.packet);
        (entry.rate > 0 && entry.rtt_us > 0).then_some(memory)
    }

    /// Returns the UDP address at which a peer was recently.
    pub(super) fn address(&self, key: &PublicKey, today: Duration) -> Option<SocketAddr> {
        let entry = self.known.peers.get(&key.to_string())?;
        let age = today.checked_sub(Duration::from_secs(entry.seen))?;
        entry.address.filter(|_| age < MOVED)
    }

    /// Returns the addresses at which peers were within a day, by UDP or TCP.
    fn addresses(&self) -> Vec<IpAddr> {
        let entries = self.known.peers.values();
        let by_any = |entry: &Entry| entry.address.map(|at| at.ip()).or(entry.by_tcp);
        entries.filter_map(by_any).collect()
    }

    /// Returns the handshake counters with which a new process begins.
    pub(super) fn counters(&self, key: &PublicKey) -> Counters {
        let counted = self.known.counters.get(&key.to_string());
        counted.map_or_else(Counters::default, |counted| Counters {
            sent: counted.sent,
            heard: counted.heard,
        })
    }

    /// Raises the counters of these peers for a new process above those that the previous one may
    /// have sent since its last write. Forgets others, and writes.
    pub(super) fn raise_counters(&mut self, of: impl Iterator<Item = PublicKey>) {
        let keys: BTreeSet<_> = of.map(|key| key.to_string()).collect();
        self.known.counters.retain(|key, _| keys.contains(key));
        for counted in self.known.counters.values_mut() {
            let raised = counted.sent.saturating_add(COUNTER_MARGIN);
            counted.sent = raised.min(COUNTER_MAX);
        }
        self.write();
    }

    fn note_counters(&mut self, key: &PublicKey, Counters { sent, heard }: Counters) {
        let counted = Counted { sent, heard };
        self.known.counters.insert(key.to_string(), counted);
    }

    /// Records a peer's path and remote; times as above.
    fn note(
        &mut self,
        key: &PublicKey,
        (memory, remote): (&PathMemory, Option<Remote>),
        now: Duration,
        today: Duration,
    ) {
        let by = |carrier| remote.filter(|remote| remote.carrier == carrier);
        let address = by(Carrier::Udp).map(|remote| remote.address);
        let seen = today.saturating_sub(now.saturating_sub(memory.at));
        let rtt = u64::try_from(memory.rtt.as_micros()).unwrap_or(u64::MAX);
        let entry = Entry {
            seen: seen.as_secs(),
            rate: memory.rate,
            rtt_us: rtt,
            loss: memory.loss,
            packet: memory.packet,
            address,
            by_tcp: by(Carrier::Tcp).map(|remote| remote.address.ip()),
        };
        if remote.is_none() && (entry.rate == 0 || entry.rtt_us == 0) {
            return;
        }
        let before = self.known.peers.insert(key.to_string(), entry);
        self.moved |= before.and_then(|entry| entry.address) != address;
    }

    fn forget_old(&mut self, today: Duration) {
        let young = |entry: &Entry| {
            let age = today.saturating_sub(Duration::from_secs(entry.seen));
            age < OLD
        };
        self.known.peers.retain(|_, entry| young(entry));
    }

    /// Writes the file atomically.
    pub(super) fn write(&mut self) {
        let written = self.writing()();
        self.on_written(written);
    }

    /// Returns a closure that writes the file, on any thread.
    fn writing(&mut self) -> impl FnOnce() -> io::Result<()> + Send + 'static {
        self.moved = false;
        let store = self.store.clone();
        let content = Content {
            version: VERSION,
            peers: self.known.peers.clone(),
            counters: self.known.counters.clone(),
        };
        move || write(&store, &content)
    }

    fn on_written(&mut self, written: io::Result<()>) {
        if let Err(err) = written
            && !std::mem::replace(&mut self.logged, true)
        {
            let key = match self.store {
                Store::File(_) => " (`identity.state`)",
                Store::Memory(_) => "",
            };
            let path = &self.store;
            tracing::warn!(
                %path,
                error = %err,
                "cannot write the record of paths to peers{key}: pepd measures them anew after a restart (logged once)"
            );
        }
    }

    /// Records the current paths to all peers of a thread.
    pub(super) fn take(&mut self, core: &Shared) {
        let (core, today) = (&mut *core.borrow_mut(), today());
        let now = core.now();
        core.each_path(|key, memory, remote| self.note(key, (memory, remote), now, today));
        core.each_counters(|key, counters| self.note_counters(key, counters));
        self.forget_old(today);
    }
}

/// Checks a directory as a start would find it, without changing anything. Returns its state in a
/// few words.
///
/// # Errors
/// The reason for which nothing could be stored there.
pub fn inspect(directory: &Path) -> io::Result<&'static str> {
    let parent = directory.parent().filter(|parent| *parent != Path::new(""));
    let (place, state) = match fs::metadata(directory) {
        Err(err) if err.kind() == io::ErrorKind::NotFound => {
            (parent.unwrap_or(Path::new(".")), "will be created")
        }
        _ => (directory, "exists"),
    };
    if !fs::metadata(place)?.is_dir() {
        return Err(io::ErrorKind::NotADirectory.into());
    }
    eaccess(place, AccessFlags::W_OK | AccessFlags::X_OK)?;
    let room = statvfs(place)?;
    // Some file systems do not count inodes.
    if room.blocks_available() == 0 || (room.files() > 0 && room.files_available() == 0) {
        return Err(io::ErrorKind::StorageFull.into());
    }
    Ok(state)
}

/// Returns whether the file and its directory are both missing.
fn is_missing(err: &io::Error) -> bool {
    matches!(
        err.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}

fn read(store: &Store) -> Result<Known, ReadError> {
    let length = match store {
        Store::File(file) => fs::metadata(file)?.len(),
        Store::Memory(memory) => memory.metadata()?.len(),
    };
    if length > BYTES_MAX {
        return Err(ReadError::Long(length));
    }
    let bytes = match store {
        Store::File(file) => fs::read(file)?,
        // Nothing has been written yet.
        Store::Memory(_) if length == 0 => return Ok(Known::default()),
        Store::Memory(memory) => {
            let mut bytes = vec![0; length as usize];
            memory.read_exact_at(&mut bytes, 0)?;
            bytes
        }
    };
    let content: Content = serde_json::from_slice(&bytes)?;
    if content.version != VERSION {
        return Err(ReadError::Version(content.version));
    }
    Ok(Known {
        peers: content.peers,
        counters: content.counters,
    })
}

fn write(store: &Store, content: &Content) -> io::Result<()> {
    let bytes = serde_json::to_vec(content)?;
    match store {
        Store::File(file) => {
            let beside = file.with_extension("json.new");
            let written = write_secret(&beside, &bytes).and_then(|()| fs::rename(&beside, file));
            if written.is_err() {
                // On a full disk only the file name was written.
                let _ = fs::remove_file(&beside);
            }
            written
        }
        // A process that ends in between leaves a damaged record, which costs the remembered
        // figures only.
        Store::Memory(memory) => {
            memory.set_len(bytes.len() as u64)?;
            memory.write_all_at(&bytes, 0)
        }
    }
}

/// Writes a file that only its owner may read: it names the peers' keys and addresses. Replaces one
/// that an earlier process has left.
fn write_secret(file: &Path, bytes: &[u8]) -> io::Result<()> {
    match fs::remove_file(file) {
        Err(err) if err.kind() != io::ErrorKind::NotFound => return Err(err),
        _ => {}
    }
    let mut options = fs::OpenOptions::new();
    options.write(true).create_new(true).mode(0o600);
    options.open(file)?.write_all(bytes)
}

/// Returns the time of day, since 1970.
pub(super) fn today() -> Duration {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap_or_default()
}

/// The record as shared by the tunnel threads.
pub(super) type Record = Arc<Mutex<Paths>>;

/// Keeps the record of a thread's peers current, and lets the thread prefer the recorded addresses.
/// The thread that `writes` writes it every minute and when a peer has moved. Never ends.
pub(super) async fn keep(core: Shared, paths: Record, writes: bool) {
    let mut written = Instant::now();
    loop {
        let addresses = paths.lock().addresses();
        core.borrow_mut().expect_from(&addresses);
        tokio::time::sleep(LOOK_EVERY).await;
        // A file system may block, and datagrams must not wait for it.
        let writing = {
            let mut paths = paths.lock();
            paths.take(&core);
            let due = writes && (paths.moved || written.elapsed() >= WRITE_EVERY);
            due.then(|| paths.writing())
        };
        if let Some(writing) = writing {
            written = Instant::now();
            match tokio::task::spawn_blocking(writing).await {
                Ok(written) => paths.lock().on_written(written),
                Err(_panicked) => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    const KEY: PublicKey = PublicKey([7; 32]);
    const DAY: Duration = Duration::from_secs(20_000 * 24 * 3600);
    const HOUR: Duration = Duration::from_secs(3600);

    fn memory(at: Duration) -> PathMemory {
        let mut memory = PathMemory::default();
        memory.note(at, 8_000_000, Duration::from_millis(600), 0.02, 1400);
        memory
    }

    #[test]
    fn what_is_written_is_read_with_its_age() {
        let directory = tempfile::tempdir().unwrap();
        let mut paths = Paths::load(directory.path());
        assert_eq!(paths.get(&KEY, 48 * HOUR, DAY), None);
        // Heard an hour ago by the monotonic clock.
        let address: SocketAddr = "192.0.2.1:5001".parse().unwrap();
        for moved in [true, false] {
            paths.moved = false;
            paths.note(
                &KEY,
                (&memory(9 * HOUR), Some(address.into())),
                10 * HOUR,
                DAY,
            );
            assert_eq!(paths.moved, moved);
        }
        paths.write();
        let again = Paths::load(directory.path());
        let two_later = again.get(&KEY, 48 * HOUR, DAY + 2 * HOUR);
        assert_eq!(two_later, Some(memory(45 * HOUR)));
        let ago = HOUR / 2;
        assert_eq!(again.address(&KEY, DAY - ago), Some(address));
        assert_eq!(again.address(&KEY, DAY + ago), None, "it may have moved");
        assert_eq!(again.get(&PublicKey([8; 32]), 48 * HOUR, DAY), None);
        assert_eq!(again.get(&KEY, 48 * HOUR, DAY + 24 * HOUR), None, "too old");
        assert_eq!(
            again.get(&KEY, 48 * HOUR, DAY - 2 * HOUR),
            None,
            "of tomorrow"
        );
        paths.forget_old(DAY + 24 * HOUR);
        assert!(paths.known.peers.is_empty());
    }

    #[test]
    fn only_its_owner_may_read_the_file() {
        let directory = tempfile::tempdir().unwrap();
        let mut paths = Paths::load(directory.path());
        // An earlier process was killed while it wrote.
        fs::write(directory.path().join("paths.json.new"), "old").unwrap();
        paths.note(&KEY, (&memory(HOUR), None), HOUR, DAY);
        paths.write();
        let mode = fs::metadata(directory.path().join("paths.json")).unwrap();
        assert_eq!(mode.permissions().mode() & 0o777, 0o600);
        assert_eq!(Paths::load(directory.path()).known.peers.len(), 1);
    }

    #[test]
    fn without_a_directory_the_next_process_finds_the_record_in_memory() {
        let mut paths = Paths::inherit(None).unwrap();
        assert!(paths.known.peers.is_empty());
        let address: SocketAddr = "192.0.2.1:5001".parse().unwrap();
        let other: SocketAddr = "[2001:db8::1]:5001".parse().unwrap();
        paths.note(
            &PublicKey([8; 32]),
            (&memory(HOUR), Some(Remote::tcp(other))),
            HOUR,
            DAY,
        );
        paths.note(&KEY, (&memory(HOUR), Some(address.into())), HOUR, DAY);
        paths.write();
        let next = |paths: &Paths| {
            let Store::Memory(memory) = &paths.store else {
                panic!("not a memory store")
            };
            Paths::inherit(Some(memory.try_clone().unwrap().into())).unwrap()
        };
        let mut next_one = next(&paths);
        assert_eq!(next_one.known, paths.known);
        assert_eq!(next_one.addresses(), [address.ip(), other.ip()]);
        assert_eq!(next_one.address(&KEY, DAY), Some(address));
        // Shorter than before: no bytes of the old content remain.
        next_one.known.peers.remove(&PublicKey([8; 32]).to_string());
        next_one.write();
        assert_eq!(next(&paths).known, next_one.known);
    }

    #[test]
    fn counters_outlive_the_process_and_the_next_one_begins_above_them() {
        let directory = tempfile::tempdir().unwrap();
        let mut paths = Paths::load(directory.path());
        assert_eq!(paths.counters(&KEY), Counters::default());
        let other = PublicKey([8; 32]);
        let counters = |sent, heard| Counters { sent, heard };
        paths.note_counters(&KEY, counters(7, 5));
        paths.note_counters(&other, counters(COUNTER_MAX, u64::MAX));
        // Counters have no age.
        paths.forget_old(DAY);
        paths.write();
        let mut again = Paths::load(directory.path());
        again.raise_counters([KEY, other].into_iter());
        assert_eq!(again.counters(&KEY), counters(4103, 5));
        assert_eq!(again.counters(&other), counters(COUNTER_MAX, u64::MAX));
        // The process crashes before it writes.
        let mut again = Paths::load(directory.path());
        again.raise_counters([KEY].into_iter());
        assert_eq!(again.counters(&KEY), counters(8199, 5));
        assert_eq!(again.counters(&other), Counters::default());
    }

    #[test]
    fn an_unknown_file_is_ignored_and_replaced() {
        let good = |fields: &str| format!("{{\"version\":1,\"peers\":{{\"{KEY}\":{{{fields}}}}}}}");
        let fields = "\"seen\":1728000000,\"rate\":1,\"rtt_us\":1,\"loss\":0.5,\"packet\":1200";
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join(FILE);
        for (text, is_good) in [
            (good(fields), true),
            (good(&format!("{fields},\"more\":1")), false),
            (good("\"seen\":1"), false),
            (good(&fields.replace(":1,", ":-1,")), false),
            (
                good(fields).replace("\"version\":1", "\"version\":2"),
                false,
            ),
            (good(fields)[..40].to_owned(), false),
            (String::new(), false),
            ("x".repeat(BYTES_MAX as usize + 1), false),
        ] {
            fs::write(&file, &text).unwrap();
            let mut paths = Paths::load(directory.path());
            let known = paths.get(&KEY, 48 * HOUR, DAY);
            assert_eq!(known.is_some(), is_good, "{text:.80}");
            paths.note(&KEY, (&memory(HOUR), None), HOUR, DAY);
            paths.write();
            assert!(
                Paths::load(directory.path())
                    .get(&KEY, 48 * HOUR, DAY)
                    .is_some()
            );
        }
        let left = fs::read_dir(directory.path()).unwrap().count();
        assert_eq!(left, 1, "no temporary file is left");
    }

    #[test]
    fn a_start_creates_the_directory_and_nothing_above_it() {
        let directory = tempfile::tempdir().unwrap();
        let state = directory.path().join("state");
        assert_eq!(inspect(&state).unwrap(), "will be created");
        assert!(!state.exists());
        assert!(!Paths::prepare(&state).logged);
        assert_eq!(inspect(&state).unwrap(), "exists");
        let far = directory.path().join("gone/state");
        assert_eq!(inspect(&far).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert!(Paths::prepare(&far).logged && !directory.path().join("gone").exists());
        let file = directory.path().join("file");
        fs::write(&file, "").unwrap();
        for wrong in [file.clone(), file.join("state")] {
            let kind = inspect(&wrong).unwrap_err().kind();
            assert_eq!(kind, io::ErrorKind::NotADirectory, "{}", wrong.display());
            assert!(Paths::prepare(&wrong).logged);
        }
    }

    #[test]
    fn what_cannot_be_written_leaves_nothing_beside() {
        let directory = tempfile::tempdir().unwrap();
        // A directory cannot be replaced by a file.
        fs::create_dir_all(directory.path().join(FILE).join("x")).unwrap();
        let mut paths = Paths::load(directory.path());
        paths.write();
        assert!(paths.logged);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_missing_directory_is_no_reason_to_stop() {
        let directory = tempfile::tempdir().unwrap();
        let missing = directory.path().join("gone");
        let mut paths = Paths::load(&missing);
        paths.note(&KEY, (&memory(HOUR), None), HOUR, DAY);
        paths.write();
        assert!(paths.logged && !missing.exists());
        // An unmeasured path is not recorded.
        paths.known.peers.clear();
        paths.note(&KEY, (&PathMemory::default(), None), HOUR, DAY);
        assert!(paths.known.peers.is_empty());
    }
}
