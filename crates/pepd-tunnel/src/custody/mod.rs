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
//! Several threads with flows have a [`Spill`] each. One thread for the disk serves them, and ends
//! with the last of them. They share the quota, and the [`Seal`]: no nonce may be used twice.
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

/// Maximum of pending records of a [`Spill`].
const UNDER_WAY: usize = 32;
/// Maximum of records synced together.
const TOGETHER: usize = 16;

/// Records on disk of one thread. Callers mark their requests by a `T`.
#[derive(Debug)]
pub struct Spill<T> {
    /// Requests, with the number of this value.
    jobs: Sender<(usize, Job<T>)>,
    number: usize,
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

/// Values for several threads, with their replies.
pub type Spills<T> = Vec<(Spill<T>, Replies<T>)>;

/// Receiver of replies.
#[derive(Debug)]
pub struct Replies<T>(UnboundedReceiver<Answer<T>>);

impl<T: fmt::Debug + Copy + Send + 'static> Spill<T> {
    /// Opens a directory for up to `most` bytes, and takes over records of previous processes with
    /// the same key. Returns `count` values, each for a thread, with its replies.
    pub fn open(
        (claimed, thread): (Claimed, IdleThread),
        most: u64,
        seal: Seal,
        count: usize,
    ) -> (Spills<T>, Left) {
        let mut segments = Segments::new(Directory::new(&claimed.path), seal, most);
        let left = segments.inherit();
        (Self::over(segments, thread, claimed, count), left)
    }

    fn over<D: Disk>(
        segments: Segments<D>,
        thread: IdleThread,
        held: impl Send + 'static,
        count: usize,
    ) -> Spills<T> {
        let (spills, worker) = Self::without_thread(segments, count);
        thread.begin(move || {
            let _held = held;
            worker.run();
        });
        spills
    }

    fn without_thread<D: Disk>(segments: Segments<D>, count: usize) -> (Spills<T>, Worker<D, T>) {
        let (jobs, todo) = channel();
        let mut worker = Worker {
            segments,
            todo,
            answers: Vec::new(),
            written: Vec::new(),
        };
        let spills = (0..count).map(|number| {
            let (answers, replies) = unbounded_channel();
            worker.answers.push(answers);
            let spill = Self {
                jobs: jobs.clone(),
                number,
                spare: Vec::new(),
                under_way: 0,
            };
            (spill, Replies(replies))
        });
        (spills.collect(), worker)
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
        self.request(Job::Forget(spot));
    }

    fn begin(&mut self, job: Job<T>) {
        self.under_way += 1;
        self.request(job);
    }

    fn request(&self, job: Job<T>) {
        // The thread does not end before this value, except by a panic, which is logged elsewhere.
        let _ = self.jobs.send((self.number, job));
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
    todo: Receiver<(usize, Job<T>)>,
    /// Senders of replies, by number of the [`Spill`].
    answers: Vec<UnboundedSender<Answer<T>>>,
    /// Records written and not synced.
    written: Vec<(usize, T, Label, Spot, Record)>,
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

    fn work(&mut self, (by, job): (usize, Job<T>)) {
        match job {
            Job::Write(of, label, mut record) => match self.segments.write(label, &mut record) {
                Ok(spot) => self.written.push((by, of, label, spot, record)),
                Err(err) => self.answer_written(by, (of, label), Err(err), record),
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
                self.answer(by, reply, spare);
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
        for (by, of, label, spot, record) in written {
            let result = match &synced {
                Ok(()) => Ok(spot),
                Err(err) => {
                    self.segments.forget(spot);
                    let again = err.raw_os_error().map(io::Error::from_raw_os_error);
                    Err(again.unwrap_or_else(|| err.kind().into()).into())
                }
            };
            self.answer_written(by, (of, label), result, record);
        }
    }

    fn answer_written(
        &self,
        by: usize,
        (of, label): (T, Label),
        result: Result<Spot, WriteError>,
        record: Record,
    ) {
        let reply = Reply::Written { of, label, result };
        self.answer(by, reply, Some(record));
    }

    fn answer(&self, by: usize, reply: Reply<T>, spare: Option<Record>) {
        // The receiver may have ended with its thread.
        let _ = self.answers[by].send(Answer { reply, spare });
    }
}
