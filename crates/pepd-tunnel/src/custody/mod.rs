//! Custody on disk: storage for bytes that exceed memory while the link is down.
//!
//! ```text
//!   tunnels' thread                          a thread of its own                 disk
//!   Spill::write -- record ----------------> seal, write, sync ----------------> segments
//!         Reply <- spot, or error ----------
//!   Spill::read  -- spot ------------------> read, open <----------------------- segments
//!         Reply <- record, or error --------
//!   Spill::forget -------------------------> free the room --------------------> segments
//! ```
//!
//! A separate thread waits for the disk, so that flows do not. The number of pending records is
//! bounded. The module knows nothing of flows: the caller keeps a record's bytes until its reply.
//!
//! Records do not outlive their key, which is in the memory of flows only. A process that takes
//! over this memory can thus use [left records](Left), too. Records are synced so that a failing
//! disk reports errors while the bytes are still in memory.

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

/// Maximum of pending records.
const UNDER_WAY: usize = 32;
/// Maximum of records synced together.
const TOGETHER: usize = 16;

/// Records on disk. Callers mark their requests by a `T`.
#[derive(Debug)]
pub struct Spill<T> {
    jobs: Sender<Job<T>>,
    spare: Vec<Record>,
    under_way: usize,
}

/// Result of a request.
#[derive(Debug)]
pub enum Reply<T> {
    /// Result of a write.
    Written {
        /// Mark of the request.
        of: T,
        /// Label of the record.
        label: Label,
        /// Place of the record.
        result: Result<Spot, WriteError>,
    },
    /// Result of a read.
    Read {
        /// Mark of the request.
        of: T,
        /// Label of the record.
        label: Label,
        /// Place of the record, unchanged.
        spot: Spot,
        /// The record, to be [returned](Spill::reuse).
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
    /// The record, if the reply does not contain it.
    spare: Option<Record>,
}

/// Receiver of replies.
#[derive(Debug)]
pub struct Replies<T>(UnboundedReceiver<Answer<T>>);

impl<T: fmt::Debug + Copy + Send + 'static> Spill<T> {
    /// Opens a directory for up to `most` bytes, and takes over records of previous processes with
    /// the same key.
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

    /// Returns whether records are pending.
    #[cfg(test)]
    pub(crate) fn is_busy(&self) -> bool {
        self.under_way > 0
    }

    /// Returns memory for a record to write, or `None` if too many are pending.
    pub fn record(&mut self) -> Option<Record> {
        (self.under_way < UNDER_WAY).then(|| self.spare.pop().unwrap_or_default())
    }

    /// Returns the memory of a record for reuse.
    pub fn reuse(&mut self, record: Record) {
        if self.spare.len() < TOGETHER {
            self.spare.push(record);
        }
    }

    /// Requests a write, of a record from [`record`](Self::record).
    pub fn write(&mut self, of: T, label: Label, record: Record) {
        self.begin(Job::Write(of, label, record));
    }

    /// Requests a read. Returns false if too many are pending.
    #[must_use]
    pub fn read(&mut self, of: T, label: Label, spot: Spot) -> bool {
        let record = self.record();
        let job = record.map(|record| Job::Read(of, label, spot, record));
        job.map(|job| self.begin(job)).is_some()
    }

    /// Frees a record that is not needed any more.
    pub fn forget(&mut self, spot: Spot) {
        // The thread ends with this value only, or by a panic, which is logged elsewhere.
        let _ = self.jobs.send(Job::Forget(spot));
    }

    fn begin(&mut self, job: Job<T>) {
        self.under_way += 1;
        let _ = self.jobs.send(job);
    }

    /// Handles an answer. Returns its reply.
    fn on_answer(&mut self, answer: Answer<T>) -> Reply<T> {
        self.under_way -= 1;
        if let Some(record) = answer.spare {
            self.reuse(record);
        }
        answer.reply
    }
}

impl<T: fmt::Debug + Copy + Send + 'static> Replies<T> {
    /// Waits for the next reply, to be taken by [`Answered::by`].
    pub async fn next(&mut self) -> Option<Answered<T>> {
        self.0.recv().await.map(Answered)
    }
}

/// A reply that must go through its [`Spill`] first.
#[expect(missing_debug_implementations, reason = "goes from hand to hand")]
pub struct Answered<T>(Answer<T>);

impl<T: fmt::Debug + Copy + Send + 'static> Answered<T> {
    /// Returns the reply to a request of this `spill`.
    pub fn by(self, spill: &mut Spill<T>) -> Reply<T> {
        spill.on_answer(self.0)
    }
}

struct Worker<D: Disk, T> {
    segments: Segments<D>,
    todo: Receiver<Job<T>>,
    answers: UnboundedSender<Answer<T>>,
    /// Records written and not synced.
    written: Vec<(T, Label, Spot, Record)>,
}

impl<D: Disk, T> Worker<D, T> {
    fn run(mut self) {
        while let Ok(job) = self.todo.recv() {
            self.work(job);
            self.work_on();
        }
    }

    /// Handles pending requests, as many as are synced together.
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
        // The receiver may have ended with the daemon.
        let _ = self.answers.send(Answer { reply, spare });
    }
}
