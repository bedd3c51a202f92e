//! Recordings: decisions in a file, one JSON object per line.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, BufWriter, Write},
    path::{Path, PathBuf},
    sync::mpsc,
    thread,
};

use crate::link::Decision;

/// Failure to write or read a recording.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// Failed access to the file.
    #[error("cannot {verb} the recording {}", path.display())]
    File {
        /// `write` or `read`.
        verb: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// Cause.
        #[source]
        source: io::Error,
    },
    /// Line that is no decision.
    #[error("{}, line {line}: not a recorded decision", path.display())]
    Line {
        /// Path of the file.
        path: PathBuf,
        /// Line number, from 1.
        line: usize,
        /// Error in the line.
        #[source]
        source: serde_json::Error,
    },
}

impl RecordError {
    fn file(verb: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::File { verb, path, source }
    }
}

/// Recorder on a thread of its own: a stalled disk must not stall the link.
#[derive(Debug)]
pub(super) struct Recorder {
    path: PathBuf,
    decisions: mpsc::Sender<Vec<Decision>>,
    writer: thread::JoinHandle<io::Result<()>>,
}

impl Recorder {
    pub(super) fn create(path: &Path) -> Result<Self, RecordError> {
        let file = File::create(path).map_err(RecordError::file("write", path))?;
        let (decisions, incoming) = mpsc::channel::<Vec<Decision>>();
        let write = move || {
            let mut out = BufWriter::new(file);
            for decision in incoming.into_iter().flatten() {
                serde_json::to_writer(&mut out, &decision)?;
                out.write_all(b"\n")?;
            }
            out.flush()
        };
        let writer = thread::Builder::new().name("recorder".to_owned());
        Ok(Self {
            path: path.to_owned(),
            decisions,
            writer: writer
                .spawn(write)
                .map_err(RecordError::file("write", path))?,
        })
    }

    pub(super) fn write(&self, decisions: Vec<Decision>) {
        // Fails only when the writer gave up; `finish` returns the reason.
        let _ = self.decisions.send(decisions);
    }

    pub(super) fn finish(self) -> Result<(), RecordError> {
        drop(self.decisions);
        let outcome = self.writer.join().expect("the writer does not panic");
        outcome.map_err(RecordError::file("write", &self.path))
    }
}

/// Reads a recording.
///
/// # Errors
/// A file that cannot be read, or a line that is no decision.
pub fn read_recording(path: &Path) -> Result<Vec<Decision>, RecordError> {
    let file = File::open(path).map_err(RecordError::file("read", path))?;
    let mut decisions = Vec::new();
    for (number, line) in (1..).zip(BufReader::new(file).lines()) {
        let line = line.map_err(RecordError::file("read", path))?;
        let decision = serde_json::from_str(&line).map_err(|source| RecordError::Line {
            path: path.to_owned(),
            line: number,
            source,
        })?;
        decisions.push(decision);
    }
    Ok(decisions)
}
