//! Custody on disk: what does not fit into memory while the link is away.
//!
//! ```text
//!   tunnels' thread                          a thread of its own                 disk
//!   Spill::write -- record ----------------> seal, write, sync ----------------> segments
//!         Reply <- where it is, or why not --
//!   Spill::read  -- where it is -----------> read, open <----------------------- segments
//!         Reply <- record, or why not -------
//!   Spill::forget -------------------------> give the room back ---------------> segments
//! ```
//!
//! Waiting for a disk would keep all flows waiting, so another thread does. How many records are under way is bounded. Nothing here knows
//! of flows: whoever has a record written keeps its bytes until he is told that it is there.
//!
//! What was written does not outlive the key, which is in memory only: in that of flows, so that a process that goes on with these can go on
//! with [what it finds](Left), too. It is synced so that a disk that fails says so while the bytes are still in memory.

mod directory;
mod disk;
mod left;
mod look;
mod seal;
mod segments;
#[cfg(test)]
pub(crate) mod tests;

use std::{
    fmt, io, mem,
    sync::mpsc::{Receiver, Sender, channel},
};

use pepd_sys::threads::IdleThread;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

pub use directory::{Claimed, DirectoryError, claim};
use disk::{Directory, Disk};
pub use left::Left;
pub use look::{Look, inspect};
pub(crate) use seal::RECORD;
pub use seal::{Label, Record, Seal};
use segments::Segments;
pub use segments::{ReadError, Spot, WriteError};

/// Records that are under way at most.
const UNDER_WAY: usize = 32;
/// Records that are synced together.
const TOGETHER: usize = 16;

/// Records on disk. Whoever has them written and read marks them by a `T`.
#[derive(Debug)]
pub struct Spill<T> {
    jobs: Sender<Job<T>>,
    spare: Vec<Record>,
    under_way: usize,
}

/// What has become of a record.
#[derive(Debug)]
pub enum Reply<T> {
    /// It was to be written.
    Written {
        /// Whose it is.
        of: T,
        /// Which it is.
        label: Label,
        /// Where it is now.
        result: Result<Spot, WriteError>,
    },
    /// It was to be read.
    Read {
        /// Whose it is.
        of: T,
        /// Which it is.
        label: Label,
        /// Where it still is.
        spot: Spot,
        /// Its bytes, to be [given back](Spill::reuse).
        result: Result<Record, ReadError>,
    },
}

enum Job<T> {
    Write(T, Label, Record),
    Read(T, Label, Spot, Record),
    Forget(Spot),
}

struct Answer<T> {
    reply: Reply<T>,
    /// Where the record is not part of the reply.
    spare: Option<Record>,
}

/// Where replies come.
#[derive(Debug)]
pub struct Replies<T>(UnboundedReceiver<Answer<T>>);

impl<T: fmt::Debug + Copy + Send + 'static> Spill<T> {
    /// Uses a folder for at most so many bytes, and what processes before this one have sealed there by the same key.
    pub fn open(
        (claimed, thread): (Claimed, IdleThread),
        most: u64,
        seal: Seal,
    ) -> (Self, Replies<T>, Left) {
        let mut segments = Segments::new(Directory(claimed.path.clone()), seal, most);
        let left = segments.inherit();
        let (spill, replies) = Self::over(segments, thread, claimed);
        (spill, replies, left)
    }

    fn over<D: Disk>(
        segments: Segments<D>,
        thread: IdleThread,
        held: impl Send + 'static,
    ) -> (Self, Replies<T>) {
        let (spill, replies, worker) = Self::without_thread(segments);
        thread.begin(move || {
            let _held = held;
            worker.run();
        });
        (spill, replies)
    }

    fn without_thread<D: Disk>(segments: Segments<D>) -> (Self, Replies<T>, Worker<D, T>) {
        let (jobs, todo) = channel();
        let (answers, replies) = unbounded_channel();
        let worker = Worker {
            segments,
            todo,
            answers,
            written: Vec::new(),
        };
        let spill = Self {
            jobs,
            spare: Vec::new(),
            under_way: 0,
        };
        (spill, Replies(replies), worker)
    }

    /// Whether records are under way.
    #[cfg(test)]
    pub(crate) fn is_busy(&self) -> bool {
        self.under_way > 0
    }

    /// Memory for a record that is to be written, or `None` when so many are under way that it has to wait.
    pub fn record(&mut self) -> Option<Record> {
        (self.under_way < UNDER_WAY).then(|| self.spare.pop().unwrap_or_default())
    }

    /// A record that is not needed any more.
    pub fn reuse(&mut self, record: Record) {
        if self.spare.len() < TOGETHER {
            self.spare.push(record);
        }
    }

    /// Has a record written; one for which there [was memory](Self::record).
    pub fn write(&mut self, of: T, label: Label, record: Record) {
        self.begin(Job::Write(of, label, record));
    }

    /// Has a record read. Returns whether: it has to wait when too many are under way.
    #[must_use]
    pub fn read(&mut self, of: T, label: Label, spot: Spot) -> bool {
        let record = self.record();
        let job = record.map(|record| Job::Read(of, label, spot, record));
        job.map(|job| self.begin(job)).is_some()
    }

    /// Nobody needs a record any more, nor has it to be read.
    pub fn forget(&mut self, spot: Spot) {
        // The thread only ends with us, or by a panic that is told elsewhere.
        let _ = self.jobs.send(Job::Forget(spot));
    }

    fn begin(&mut self, job: Job<T>) {
        self.under_way += 1;
        let _ = self.jobs.send(job);
    }

    /// Takes note of an answer. Returns the reply in it.
    fn on_answer(&mut self, answer: Answer<T>) -> Reply<T> {
        self.under_way -= 1;
        if let Some(record) = answer.spare {
            self.reuse(record);
        }
        answer.reply
    }
}

impl<T: fmt::Debug + Copy + Send + 'static> Replies<T> {
    /// The next reply, once there is one, to be taken by [`Answered::by`].
    pub async fn next(&mut self) -> Option<Answered<T>> {
        self.0.recv().await.map(Answered)
    }
}

/// A reply of which the [`Spill`] is to be told first.
#[expect(missing_debug_implementations, reason = "goes from hand to hand")]
pub struct Answered<T>(Answer<T>);

impl<T: fmt::Debug + Copy + Send + 'static> Answered<T> {
    /// The reply to what was asked of this one.
    pub fn by(self, spill: &mut Spill<T>) -> Reply<T> {
        spill.on_answer(self.0)
    }
}

struct Worker<D: Disk, T> {
    segments: Segments<D>,
    todo: Receiver<Job<T>>,
    answers: UnboundedSender<Answer<T>>,
    /// What has been written and not been synced.
    written: Vec<(T, Label, Spot, Record)>,
}

impl<D: Disk, T> Worker<D, T> {
    fn run(mut self) {
        while let Ok(job) = self.todo.recv() {
            self.work(job);
            self.work_on();
        }
    }

    /// Does what there is to do, as much as is synced together.
    fn work_on(&mut self) {
        while self.written.len() < TOGETHER
            && let Ok(job) = self.todo.try_recv()
        {
            self.work(job);
        }
        self.sync();
    }

    fn work(&mut self, job: Job<T>) {
        match job {
            Job::Write(of, label, mut record) => match self.segments.write(label, &mut record) {
                Ok(spot) => self.written.push((of, label, spot, record)),
                Err(err) => self.answer_written(of, label, Err(err), record),
            },
            Job::Read(of, label, spot, mut record) => {
                let result = self.segments.read(spot, label, &mut record);
                let (result, spare) = match result {
                    Ok(()) => (Ok(record), None),
                    Err(err) => (Err(err), Some(record)),
                };
                let reply = Reply::Read {
                    of,
                    label,
                    spot,
                    result,
                };
                self.answer(reply, spare);
            }
            Job::Forget(spot) => self.segments.forget(spot),
        }
    }

    fn sync(&mut self) {
        let written = mem::take(&mut self.written);
        if written.is_empty() {
            return;
        }
        let synced = self.segments.sync();
        for (of, label, spot, record) in written {
            let result = match &synced {
                Ok(()) => Ok(spot),
                Err(err) => {
                    self.segments.forget(spot);
                    let again = err.raw_os_error().map(io::Error::from_raw_os_error);
                    Err(again.unwrap_or_else(|| err.kind().into()).into())
                }
            };
            self.answer_written(of, label, result, record);
        }
    }

    fn answer_written(
        &self,
        of: T,
        label: Label,
        result: Result<Spot, WriteError>,
        record: Record,
    ) {
        self.answer(Reply::Written { of, label, result }, Some(record));
    }

    fn answer(&self, reply: Reply<T>, spare: Option<Record>) {
        // Nobody waits for it any more once the daemon ends.
        let _ = self.answers.send(Answer { reply, spare });
    }
}
