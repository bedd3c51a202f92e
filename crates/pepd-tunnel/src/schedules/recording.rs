//! Traces of both ends of a schedule, as qlog files.

use std::{env, fs, sync::Arc, time::Duration};

use parking_lot::Mutex;
use trace::qlog::{Header, Writer};

use super::end::Process;

/// Records so far, by end.
#[derive(Clone, Default)]
pub(super) struct Recording(Arc<Mutex<[Vec<u8>; 2]>>);

impl Recording {
    /// Takes the trace of an end's sessions.
    pub(super) fn take(&self, end: usize, process: &Process) {
        let (taken, origin) = process.take_trace();
        let mut ends = self.0.lock();
        Writer::new(origin).taken(&taken, &mut ends[end]);
    }

    /// Writes a file for each end. Returns their paths.
    pub(super) fn write(&self, seed: u64) -> String {
        let ends = self.0.lock();
        let title = format!("seed {seed}");
        let files = ["near", "far"]
            .into_iter()
            .zip(&*ends)
            .map(|(end, events)| {
                let header = Header {
                    title: &title,
                    vantage_point: end,
                    is_client: end == "near",
                    reference: Duration::ZERO,
                };
                let mut text = Vec::new();
                Writer::header(&header, &mut text);
                text.extend_from_slice(events);
                let path = env::temp_dir().join(format!("pepd-schedule-{seed}-{end}.sqlog"));
                match fs::write(&path, text) {
                    Ok(()) => format!("qlog of the {end} end: {}", path.display()),
                    Err(error) => format!("no qlog of the {end} end: {}: {error}", path.display()),
                }
            });
        files.collect::<Vec<_>>().join("\n")
    }
}
