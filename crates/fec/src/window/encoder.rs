//! Sending side of the sliding window code.

use std::time::Duration;

use super::{
    ConfigError, EncoderConfig, EncoderStats, WINDOW_MAX, coefficients, outbox::Outbox, slot::Slot,
};
use crate::{
    kernel::Kernel,
    overhead::Overhead,
    scheme::{Encoder, TooLong},
    wire::Header,
};

/// Maximum number of repair packets owed: twice what one data packet can bring.
const OWED_MAX: usize = 2 * u8::MAX as usize;

/// Repair packets computed at once, so that the window is read once.
const AT_ONCE: usize = 6;

/// Window encoder: gives repair packets over the last packets of a stream.
///
/// They are evenly spaced, at the ratio of the [`Overhead`] ([`Overhead::rows_of_window`]). Data
/// pauses when the caller reports it ([`handle_drained`](Encoder::handle_drained)), or when a
/// packet has been without a repair packet for too long. The last packets then get their missing
/// repair packets. The last one, the last two, and so on up to the last window, each get as many
/// repair packets after their first as a block of that size has. That happens once; a further drain
/// adds nothing until there is data again.
///
/// Nothing is allocated after construction. Without repair packets, a data packet costs a copy.
#[derive(Clone, Debug)]
pub struct WindowEncoder {
    config: EncoderConfig,
    kernel: Kernel,
    /// Repair packets, and the data packets for which they are sent.
    ratio: (usize, usize),
    /// Last packets, at their position modulo the window.
    packets: Vec<Kept>,
    /// Number of these packets.
    len: usize,
    /// Number of the next data packet.
    next: u32,
    /// Place of the next data packet.
    place: usize,
    /// Accumulated part of the next repair packet, in parts of one data packet's.
    part: usize,
    /// Repair packets to be computed.
    owed: usize,
    /// Repair packets so far, including those owed; modulo 2^32.
    given: u32,
    key: u16,
    now: Duration,
    /// Time since which a packet is without any repair packet.
    bare_since: Option<Duration>,
    outbox: Outbox,
    /// Scratch space for results.
    results: [Slot; AT_ONCE],
    coefficients: Vec<u8>,
    stats: EncoderStats,
}

#[derive(Clone, Debug)]
struct Kept {
    symbol: Slot,
    /// Repair packets given when the packet came.
    given: u32,
}

impl WindowEncoder {
    /// Returns an encoder on the fastest kernel of this machine.
    ///
    /// # Errors
    ///
    /// If a field of the configuration is out of range.
    pub fn new(config: EncoderConfig) -> Result<Self, ConfigError> {
        Self::with_kernel(config, Kernel::detect())
    }

    /// Returns an encoder on `kernel`.
    ///
    /// # Errors
    ///
    /// If a field of the configuration is out of range.
    pub fn with_kernel(config: EncoderConfig, kernel: Kernel) -> Result<Self, ConfigError> {
        config.check()?;
        let window = usize::from(config.window);
        let symbol = Slot::new(config.payload_max);
        let kept = Kept {
            symbol: symbol.clone(),
            given: 0,
        };
        Ok(Self {
            kernel,
            ratio: config.overhead.rows_of_window(window),
            packets: vec![kept; window],
            len: 0,
            next: config.first_id,
            place: 0,
            part: 0,
            owed: 0,
            given: 0,
            key: 0,
            now: Duration::ZERO,
            bare_since: None,
            outbox: Outbox::new(config.payload_max),
            results: std::array::from_fn(|_| symbol.clone()),
            coefficients: vec![0; AT_ONCE * window],
            stats: EncoderStats::default(),
            config,
        })
    }

    /// Sets the delay of repair packets, and the distance between those of the same data packet.
    /// Repair packets computed before keep their times.
    pub fn set_delay(&mut self, delay: Duration, apart: Duration) {
        (self.config.delay, self.config.apart) = (delay, apart);
    }

    /// Counters since construction.
    #[must_use]
    pub fn stats(&self) -> EncoderStats {
        self.stats
    }

    fn keep(&mut self, packet: &[u8]) {
        let kept = &mut self.packets[self.place];
        kept.symbol.set_packet(packet);
        kept.given = self.given;
        self.place = (self.place + 1) % self.packets.len();
        self.len = (self.len + 1).min(self.packets.len());
        self.next = self.next.wrapping_add(1);
    }

    /// Adds repair packets to those owed.
    fn owe(&mut self, repairs: usize) {
        let owed = repairs.min(OWED_MAX - self.owed);
        self.stats.repairs_dropped += (repairs - owed) as u64;
        let repairs = owed;
        if repairs > 0 {
            self.owed += repairs;
            self.given = self.given.wrapping_add(repairs as u32);
            self.bare_since = None;
        }
    }

    /// Time at which a packet will have been without any repair packet for too long.
    fn hold_ends(&self) -> Option<Duration> {
        let since = self.bare_since?;
        Some(since.saturating_add(self.config.hold))
    }

    /// Adds the repair packets that the last packets lack if no more come.
    fn close(&mut self) {
        let window = self.packets.len();
        let lack = (1..=self.len).map(|last| {
            let first = &self.packets[(self.place + window - last) % window];
            let behind = self.given.wrapping_sub(first.given) as usize;
            self.config.overhead.rows(last).saturating_sub(behind)
        });
        let lack = lack.max().unwrap_or(0);
        self.stats.repairs_tail += lack as u64;
        if lack > 0 {
            self.part = 0;
        }
        self.owe(lack);
        self.bare_since = None;
    }

    /// Computes some of the repair packets owed, and puts them into the outbox.
    fn compute(&mut self) {
        let window = self.packets.len();
        let rows = self.owed.min(AT_ONCE).min(self.outbox.room());
        let oldest = self.place + window - self.len;
        let kept = |i: usize| &self.packets[(oldest + i) % window].symbol;
        let lengths = (0..self.len).map(|i| kept(i).symbol().len());
        let length = lengths.max().unwrap_or(0);
        let mut sources: [&[u8]; WINDOW_MAX] = [&[]; WINDOW_MAX];
        for (i, source) in sources[..self.len].iter_mut().enumerate() {
            *source = kept(i).padded(length);
        }
        let coefficients = &mut self.coefficients[..rows * self.len];
        for (row, coefficients) in coefficients.chunks_exact_mut(self.len).enumerate() {
            coefficients::draw(self.key.wrapping_add(row as u16), coefficients);
        }
        let mut outputs = self.results.each_mut().map(|result| result.room(length));
        self.kernel
            .combine(coefficients, &sources[..self.len], &mut outputs[..rows]);
        self.post(rows);
    }

    /// Puts results into the outbox.
    fn post(&mut self, rows: usize) {
        let mut due = self.now.saturating_add(self.config.delay);
        let (first, count) = (self.next.wrapping_sub(self.len as u32), self.len as u16);
        for result in &mut self.results[..rows] {
            let key = self.key;
            self.outbox
                .push(due, Header::WindowRepair { first, count, key }, result);
            self.key = key.wrapping_add(1);
            due = due.saturating_add(self.config.apart);
        }
        self.owed -= rows;
    }
}

impl Encoder for WindowEncoder {
    fn handle_data(&mut self, packet: &[u8], now: Duration) -> Result<Header, TooLong> {
        let (len, max) = (packet.len(), self.config.payload_max);
        if len > max {
            self.stats.too_long += 1;
            return Err(TooLong { len, max });
        }
        self.now = now;
        let id = self.next;
        self.keep(packet);
        self.stats.data += 1;
        self.stats.data_bytes += len as u64;
        let (repairs, packets) = self.ratio;
        if repairs > 0 {
            self.bare_since.get_or_insert(now);
            self.part += repairs;
            self.owe(self.part / packets);
            self.part %= packets;
        }
        Ok(Header::WindowData { id })
    }

    fn handle_drained(&mut self, now: Duration) {
        self.now = now;
        self.close();
    }

    fn handle_timeout(&mut self, now: Duration) {
        self.now = now;
        if self.hold_ends().is_some_and(|end| end <= now) {
            self.close();
        }
    }

    fn poll_timeout(&self) -> Option<Duration> {
        self.hold_ends().into_iter().chain(self.outbox.due()).min()
    }

    fn poll_repair(&mut self) -> Option<(Header, &[u8])> {
        let due = |outbox: &Outbox, now| outbox.due().is_some_and(|due| due <= now);
        while self.owed > 0 && self.outbox.room() > 0 && !due(&self.outbox, self.now) {
            self.compute();
        }
        let hurried = self.owed > 0 && !due(&self.outbox, self.now);
        self.stats.repairs_early += u64::from(hurried);
        if !hurried && !due(&self.outbox, self.now) {
            return None;
        }
        let (header, symbol) = self.outbox.pop()?;
        self.stats.repairs += 1;
        self.stats.repair_bytes += symbol.len() as u64;
        Some((header, symbol))
    }

    fn set_overhead(&mut self, overhead: Overhead) {
        let (_, packets) = self.ratio;
        self.ratio = overhead.rows_of_window(self.packets.len());
        // Keeps the share of a repair packet.
        self.part = self.part * self.ratio.1 / packets;
        self.config.overhead = overhead;
        if self.ratio.0 == 0 {
            self.bare_since = None;
        }
    }
}
