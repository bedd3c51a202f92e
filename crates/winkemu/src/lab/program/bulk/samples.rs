//! Samples of the sending socket over time.

use std::{
    sync::mpsc::{Receiver, RecvTimeoutError},
    time::{Duration, Instant},
};

use serde::Serialize;
use socket2::Socket;

use super::Bulk;
use crate::lab::program::TcpInfo;

/// State of the sending socket at an instant.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Sample {
    /// Seconds since the start.
    pub t_s: f64,
    /// TCP_INFO of the kernel.
    #[serde(flatten)]
    pub tcp: TcpInfo,
}

/// Sampler that reads TCP_INFO at fixed times.
#[derive(Debug)]
pub(super) struct Sampler {
    start: Instant,
    every: Duration,
    early: Duration,
    series: Vec<Sample>,
    early_bytes: Option<u64>,
}

impl Sampler {
    pub(super) fn new(bulk: &Bulk, start: Instant) -> Self {
        Self {
            start,
            every: bulk.sample,
            early: bulk.early,
            series: Vec::new(),
            early_bytes: None,
        }
    }

    /// Samples until the other end of the channel is closed.
    pub(super) fn run(mut self, socket: &Socket, over: &Receiver<()>) -> Self {
        loop {
            let now = self.start.elapsed();
            let next = self.next(now);
            match over.recv_timeout(next - now) {
                Err(RecvTimeoutError::Timeout) => self.take(socket),
                _ => return self,
            }
        }
    }

    /// Time of the next sample: the next multiple of the interval, or the end of the early part.
    fn next(&self, now: Duration) -> Duration {
        let count = now.as_nanos() / self.every.as_nanos() + 1;
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        let regular = self.every.saturating_mul(count);
        if self.early_bytes.is_none() && now < self.early {
            regular.min(self.early)
        } else {
            regular
        }
    }

    /// Takes a sample, unless the socket fails to report.
    pub(super) fn take(&mut self, socket: &Socket) {
        let Ok(tcp) = TcpInfo::read(socket) else {
            return;
        };
        let now = self.start.elapsed();
        if now >= self.early {
            self.early_bytes.get_or_insert(tcp.bytes_retrans);
        }
        let t_s = now.as_secs_f64();
        self.series.push(Sample { t_s, tcp });
    }

    /// Bytes retransmitted in the early part, and in total.
    pub(super) fn retransmitted(&self) -> (Option<u64>, Option<u64>) {
        let last = self.series.last();
        (
            self.early_bytes,
            last.map(|sample| sample.tcp.bytes_retrans),
        )
    }

    pub(super) fn into_series(self) -> Vec<Sample> {
        self.series
    }
}
