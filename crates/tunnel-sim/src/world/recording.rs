//! Traces of both sessions of a run, as qlog.

use std::time::Duration;

use trace::qlog::{Header, Writer};

use super::World;
use crate::{plan::Plan, side::Side, violation::Failure, world::Summary};

/// Maximum events of one step.
const STEP_MAX: usize = 1 << 16;

/// Traces of both ends so far.
#[derive(Debug)]
pub(super) struct Recording {
    writer: Writer,
    ends: [Vec<u8>; 2],
}

impl Recording {
    fn new(plan: &Plan) -> Self {
        let title = format!("seed {}", plan.seed);
        let ends = ["end 0", "end 1"].map(|end| {
            let header = Header {
                title: &title,
                vantage_point: end,
                is_client: end == "end 0",
                reference: Duration::ZERO,
            };
            let mut out = Vec::new();
            Writer::header(&header, &mut out);
            out
        });
        Self {
            writer: Writer::new(Duration::ZERO),
            ends,
        }
    }
}

impl<S: Side> World<S> {
    /// Runs a plan as [`run`](Self::run) does, and also returns the traces of both ends as qlog
    /// (docs/operating.md).
    pub fn run_recorded(plan: Plan) -> (Result<Summary, Box<Failure>>, [Vec<u8>; 2]) {
        let mut world = Self::new(plan);
        world.recording = Some(Recording::new(&world.plan));
        world.record();
        let outcome = world.run_caught();
        world.record();
        let recording = world.recording.take();
        let ends = recording
            .map(|recording| recording.ends)
            .unwrap_or_default();
        (world.judged(outcome), ends)
    }

    /// Takes the new trace events of both sessions.
    pub(super) fn record(&mut self) {
        let Some(recording) = &mut self.recording else {
            return;
        };
        for (seat, out) in self.seats.iter_mut().zip(&mut recording.ends) {
            let Some(trace) = seat.side.trace() else {
                continue;
            };
            recording.writer.taken(&trace.take(), out);
            // An end may have restarted.
            trace.begin(STEP_MAX);
        }
    }
}
