//! Traces requested by operators, passed from the threads that carry flows to the reader.
//!
//! ```text
//!   Flow, each turn ---------+                               GET /v1/flows/FLOW/qlog
//!                            +--> Recorder -- Chunks ------> the observer, as qlog
//!   tunnels' thread ---------+    (a bounded channel)
//! ```
//!
//! Without a request, a turn costs one load. A slow reader loses events, which are counted, and
//! never delays a flow.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use parking_lot::{Mutex, MutexGuard};
use tokio::{sync::mpsc, time::Instant};
use trace::{Taken, Trace};

use super::Watched;

/// Maximum weight of the events that an object keeps between two calls of [`Attached::take`], and
/// of those that wait for a reader: some 5 MB each.
const WEIGHT_MAX: usize = 49_152;

/// Object of a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recorded {
    /// Flow between two legs.
    Flow(Watched),
    /// Sessions with a peer, by the [`name_hash`](pep_core::arena::name_hash) of its name;
    /// optionally one flow of its tunnel, by its slot in the arena.
    Tunnel {
        /// Hash of the peer's name.
        peer: u64,
        /// Slot of the flow.
        slot: Option<u32>,
    },
}

/// Recorded events of an object.
#[derive(Debug)]
pub struct Chunk {
    /// Events, timed since the recording began.
    pub taken: Taken,
    /// Stream of the selected flow, if it has changed.
    pub stream: Option<u64>,
}

/// Sending end of a recording, at the traced object.
#[derive(Debug)]
pub struct Recorder {
    what: Recorded,
    began: Instant,
    chunks: mpsc::UnboundedSender<Chunk>,
    /// Weight of the events in the channel, which bounds it, and number of events that did not fit.
    waiting: AtomicUsize,
    missed: AtomicU64,
    /// Number of the stream known to the reader, plus 1; 0 for none.
    stream: AtomicU64,
}

impl Recorder {
    /// Takes the count of events dropped since the last chunk.
    pub fn take_missed(&self) -> u64 {
        self.missed.swap(0, Ordering::Relaxed)
    }

    /// Sends events of an object whose clock shows `now`. `stream` is the stream of the selected
    /// flow, if any.
    fn give(&self, now: Duration, taken: &Taken, stream: Option<u64>) {
        let reported = stream.map_or(0, |stream| stream.saturating_add(1));
        let stream = stream.filter(|_| self.stream.load(Ordering::Relaxed) != reported);
        if taken.events.is_empty() && taken.missed == 0 && stream.is_none() {
            return;
        }
        let weight = taken.weight.max(1);
        if self.waiting.fetch_add(weight, Ordering::Relaxed) + weight > WEIGHT_MAX {
            self.waiting.fetch_sub(weight, Ordering::Relaxed);
            let lost = taken.events.len() as u64 + taken.missed;
            self.missed.fetch_add(lost, Ordering::Relaxed);
            return;
        }
        let mut taken = taken.clone();
        let since = self.began.elapsed();
        for (at, _) in &mut taken.events {
            *at = (since + *at).saturating_sub(now);
        }
        taken.missed += self.missed.swap(0, Ordering::Relaxed);
        // When the reader has gone, its recorder ends, too.
        if self.chunks.send(Chunk { taken, stream }).is_ok() && reported > 0 {
            self.stream.store(reported, Ordering::Relaxed);
        }
    }
}

/// All recordings in progress. The caller of [`record`](Self::record) bounds their number.
#[derive(Debug, Default)]
pub struct Recorders {
    /// Incremented whenever the list changes.
    changes: AtomicU64,
    list: Mutex<Vec<Arc<Recorder>>>,
}

/// Reader's end of a recording, which ends on drop.
#[derive(Debug)]
pub struct Recording {
    recorders: Arc<Recorders>,
    recorder: Arc<Recorder>,
    chunks: mpsc::UnboundedReceiver<Chunk>,
}

impl Recorders {
    /// Starts a recording. Its events are timed since `began`.
    pub fn record(self: &Arc<Self>, what: Recorded, began: Instant) -> Recording {
        let (sender, chunks) = mpsc::unbounded_channel();
        let recorder = Arc::new(Recorder {
            what,
            began,
            chunks: sender,
            waiting: AtomicUsize::new(0),
            missed: AtomicU64::new(0),
            stream: AtomicU64::new(0),
        });
        self.change(|list| list.push(Arc::clone(&recorder)));
        Recording {
            recorders: Arc::clone(self),
            recorder,
            chunks,
        }
    }

    fn change(&self, change: impl FnOnce(&mut Vec<Arc<Recorder>>)) {
        let mut list = self.list();
        change(&mut list);
        self.changes.fetch_add(1, Ordering::Release);
    }

    fn list(&self) -> MutexGuard<'_, Vec<Arc<Recorder>>> {
        self.list.lock()
    }
}

impl Recording {
    /// Returns the end for the traced object.
    pub fn recorder(&self) -> Arc<Recorder> {
        Arc::clone(&self.recorder)
    }

    /// Returns the next events; never `None` while this lives.
    pub async fn next(&mut self) -> Option<Chunk> {
        let chunk = self.chunks.recv().await?;
        let weight = chunk.taken.weight.max(1);
        self.recorder.waiting.fetch_sub(weight, Ordering::Relaxed);
        Some(chunk)
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        let own = &self.recorder;
        self.recorders
            .change(|list| list.retain(|recorder| !Arc::ptr_eq(recorder, own)));
    }
}

/// Recorders attached to one object.
#[derive(Debug, Default)]
pub struct Attached {
    /// Change number of the list at the last update.
    seen: u64,
    recorders: Vec<Arc<Recorder>>,
}

impl Attached {
    /// Returns whether there was a recorder at the last [`update`](Self::update).
    pub fn is_any(&self) -> bool {
        !self.recorders.is_empty()
    }

    /// Updates the attached recorders; costs one load if none has changed. Returns whether there is
    /// any.
    pub fn update(&mut self, all: &Recorders, is_of: impl Fn(Recorded) -> bool) -> bool {
        let changes = all.changes.load(Ordering::Acquire);
        if changes != self.seen {
            self.seen = changes;
            let list = all.list();
            let own = list.iter().filter(|recorder| is_of(recorder.what));
            self.recorders = own.cloned().collect();
        }
        self.is_any()
    }

    /// Sends the object's traces to all recorders. Starts traces that are off, and ends them
    /// without a recorder. `now` is the object's clock; `stream_of` returns the stream of the flow
    /// in a slot.
    pub fn take<'a>(
        &self,
        now: Duration,
        traces: impl IntoIterator<Item = &'a mut Trace>,
        mut stream_of: impl FnMut(u32) -> Option<u64>,
    ) {
        for (index, trace) in traces.into_iter().enumerate() {
            if !self.is_any() {
                trace.end();
                continue;
            }
            if !trace.is_on() {
                trace.begin(WEIGHT_MAX);
                trace.at(now);
            }
            let taken = trace.take();
            for recorder in &self.recorders {
                let slot = match recorder.what {
                    Recorded::Tunnel { slot, .. } => slot.filter(|_| index == 0),
                    Recorded::Flow(_) => None,
                };
                recorder.give(now, &taken, slot.and_then(&mut stream_of));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use trace::Event;

    use super::*;

    const TUNNEL: Recorded = Recorded::Tunnel {
        peer: 7,
        slot: Some(3),
    };

    fn push(trace: &mut Trace, count: u64) {
        for _ in 0..count {
            trace.push(|| Event::Restored { segments: 1 });
        }
    }

    #[tokio::test(start_paused = true)]
    async fn events_reach_every_recorder_in_the_time_of_its_recording() {
        let all = Arc::new(Recorders::default());
        let (mut attached, mut trace) = (Attached::default(), Trace::default());
        assert!(!attached.update(&all, |what| what == TUNNEL));
        let began = Instant::now();
        let mut recordings = [all.record(TUNNEL, began), all.record(TUNNEL, began)];
        let _other = all.record(
            Recorded::Tunnel {
                peer: 8,
                slot: None,
            },
            began,
        );
        assert!(attached.update(&all, |what| what == TUNNEL));
        // The object's clock is far behind the recording's.
        attached.take(Duration::ZERO, [&mut trace], |_| None);
        tokio::time::advance(Duration::from_secs(5)).await;
        trace.at(Duration::from_secs(4));
        push(&mut trace, 1);
        attached.take(Duration::from_secs(5), [&mut trace], |slot| {
            Some(slot.into())
        });
        for recording in &mut recordings {
            let chunk = recording.next().await.expect("a chunk");
            assert_eq!(chunk.stream, Some(3));
            assert_eq!(chunk.taken.events[0].0, Duration::from_secs(4));
        }
        drop(recordings);
        assert!(!attached.update(&all, |what| what == TUNNEL));
        attached.take(Duration::from_secs(6), [&mut trace], |_| None);
        assert!(!trace.is_on());
    }

    #[tokio::test]
    async fn a_slow_reader_loses_events_and_gets_their_number() {
        let all = Arc::new(Recorders::default());
        let (mut attached, mut trace) = (Attached::default(), Trace::default());
        let mut recording = all.record(TUNNEL, Instant::now());
        attached.update(&all, |_| true);
        attached.take(Duration::ZERO, [&mut trace], |_| None);
        let fits = WEIGHT_MAX as u64;
        push(&mut trace, fits);
        attached.take(Duration::ZERO, [&mut trace], |_| None);
        push(&mut trace, 20);
        attached.take(Duration::ZERO, [&mut trace], |_| None);
        let chunk = recording.next().await.expect("a chunk");
        assert_eq!(
            (chunk.taken.events.len(), chunk.taken.missed),
            (WEIGHT_MAX, 0)
        );
        push(&mut trace, 1);
        attached.take(Duration::ZERO, [&mut trace], |_| None);
        let chunk = recording.next().await.expect("a chunk");
        assert_eq!((chunk.taken.events.len(), chunk.taken.missed), (1, 20));
        // Events dropped by the object itself count, too.
        push(&mut trace, fits + 5);
        attached.take(Duration::ZERO, [&mut trace], |_| None);
        let chunk = recording.next().await.expect("a chunk");
        assert_eq!(
            (chunk.taken.events.len(), chunk.taken.missed),
            (WEIGHT_MAX, 5)
        );
    }
}
