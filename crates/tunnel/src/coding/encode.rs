//! The sending side.

use std::time::Duration;

use fec::{
    control::{Control, ControlConfig, Counts, Measured},
    overhead::Overhead,
    scheme::Encoder,
    theory::block_of_window,
    window::{EncoderConfig, WindowEncoder},
};

use super::{CODED_OVERHEAD, Channel, WINDOW_NORMAL};
use crate::wire::emit_coded_header;

/// Losses come in bursts, as far as messages are concerned, if so many packets are lost in a row on average.
const BURST: f64 = 2.0;
/// So many times the mean length of bursts nineteen of twenty are over.
const BURSTS_OVER: f64 = 3.0;
/// Nothing is gained by waiting for longer.
const APART_MAX: Duration = Duration::from_millis(20);

/// Protects packets of both channels.
#[derive(Debug)]
pub struct Encoding {
    content_max: usize,
    control: Control,
    /// Made when they are needed: each keeps a window of packets.
    encoders: [Option<Box<WindowEncoder>>; 2],
    /// How the peer's counts stood.
    counted: [u64; 3],
    /// Repair packets per packet of normal streams.
    share: f64,
    /// Where losses come in bursts, for how long messages' repair packets wait.
    apart: Option<Duration>,
}

impl Encoding {
    /// For packets of at most `packet_max` bytes, with at most `overhead_max` repair packets for each
    /// packet of normal streams.
    pub fn new(packet_max: usize, overhead_max: f64) -> Self {
        let config = ControlConfig {
            overhead_max: overhead_max.clamp(0.0, 1.0),
            block: block_of_window(WINDOW_NORMAL.into()).min(255) as u8,
            ..ControlConfig::default()
        };
        let control = Control::new(config).expect("the defaults, and a share");
        Self {
            content_max: packet_max.saturating_sub(CODED_OVERHEAD).max(1),
            share: share(&control),
            control,
            encoders: [None, None],
            counted: [0; 3],
            apart: None,
        }
    }

    /// Writes a protected packet with this content to the end of `out`.
    ///
    /// # Panics
    /// If the content is longer than the packets that this was made for can have.
    pub fn protect(&mut self, channel: Channel, content: &[u8], now: Duration, out: &mut Vec<u8>) {
        let encoder = self.encoder(channel);
        let header = encoder.handle_data(content, now);
        let header = header.expect("the session measures what it protects");
        emit(channel, header, content, out);
    }

    /// Says that nothing more of a channel waits to be sent, so that its last packets get the overcode
    /// that they lack.
    pub fn drained(&mut self, channel: Channel, now: Duration) {
        if let Some(encoder) = &mut self.encoders[channel as usize] {
            encoder.handle_drained(now);
        }
    }

    /// Writes the next repair packet of a channel that is due to the end of `out`, if there is one.
    pub fn poll_repair(&mut self, channel: Channel, now: Duration, out: &mut Vec<u8>) -> bool {
        let Some(encoder) = &mut self.encoders[channel as usize] else {
            return false;
        };
        encoder.handle_timeout(now);
        let Some((header, symbol)) = encoder.poll_repair() else {
            return false;
        };
        emit(channel, header, symbol, out);
        true
    }

    /// When a repair packet of a channel will be due.
    pub fn deadline(&self, channel: Channel) -> Option<Duration> {
        self.encoders[channel as usize].as_ref()?.poll_timeout()
    }

    /// Repair packets per packet of normal streams.
    pub fn share(&self) -> f64 {
        self.share
    }

    /// The share of our packets that is lost, as far as known.
    pub fn loss(&self) -> f64 {
        self.control.estimate().loss().value
    }

    /// The share of our packets that the link loses by itself, as far as known: what is lost in congestion is left out.
    pub fn link_loss(&self) -> f64 {
        self.control.link_estimate().loss().value
    }

    /// The peer's counts as they are known.
    pub fn counted(&self) -> [u64; 3] {
        self.counted
    }

    /// What became of our packets, as the peer counts it since the session began: looked at, lost, bursts.
    /// What cannot be is left out. `packet` is how long a packet takes on the link.
    pub fn on_counts(&mut self, counts: [u64; 3], congested: bool, packet: Duration) {
        let [packets, lost, bursts] = self.counted;
        let news = Counts::new(
            counts[0].saturating_sub(packets),
            counts[1].saturating_sub(lost),
            counts[2].saturating_sub(bursts),
        );
        if counts[0] < packets {
            return; // A report that was overtaken.
        }
        self.counted = counts;
        self.control.on_congestion(congested);
        if let Ok(news) = news {
            self.control.on_counts(news);
        }
        if let Some(overhead) = self.control.poll_overhead() {
            let overhead = overhead.clone();
            if let Some(encoder) = &mut self.encoders[Channel::Normal as usize] {
                encoder.set_overhead(overhead);
            }
            self.share = share(&self.control);
        }
        self.set_apart(packet);
    }

    /// What follows a message at once is lost in the same burst: one repair packet then comes when that will be over, and another one
    /// after as long again.
    fn set_apart(&mut self, packet: Duration) {
        let estimate = self.control.estimate();
        let burst = estimate.burst().filter(|_| estimate.is_bursty());
        let burst = burst.filter(|burst| burst.value >= BURST);
        let over = |burst: Measured| packet.mul_f64(burst.value.min(1e3) * BURSTS_OVER);
        let apart = burst.map(|burst| over(burst).min(APART_MAX));
        if apart == self.apart {
            return;
        }
        self.apart = apart;
        if let Some(encoder) = &mut self.encoders[Channel::Interactive as usize] {
            encoder.set_overhead(of_messages(apart));
            let apart = apart.unwrap_or_default();
            encoder.set_delay(apart, apart);
        }
    }

    /// The same, of a time that says nothing of later ones.
    pub fn leave_out(&mut self, counts: [u64; 3]) {
        if counts[0] >= self.counted[0] {
            self.counted = counts;
        }
    }

    fn encoder(&mut self, channel: Channel) -> &mut WindowEncoder {
        let control = &self.control;
        let apart = self.apart;
        let payload_max = self.content_max;
        self.encoders[channel as usize].get_or_insert_with(|| {
            let (overhead, delay) = match channel {
                Channel::Interactive => (of_messages(apart), apart.unwrap_or_default()),
                Channel::Normal => (control.overhead().clone(), Duration::ZERO),
            };
            let config = EncoderConfig {
                window: channel.window(),
                payload_max,
                overhead,
                delay,
                apart: delay,
                ..EncoderConfig::default()
            };
            Box::new(WindowEncoder::new(config).expect("both windows are possible"))
        })
    }
}

/// One repair packet for each, and two where one of them is likely to meet the same burst.
fn of_messages(apart: Option<Duration>) -> Overhead {
    Overhead::of_block(1, if apart.is_some() { 2 } else { 1 })
}

fn share(control: &Control) -> f64 {
    let window = usize::from(WINDOW_NORMAL);
    let (repairs, packets) = control.overhead().rows_of_window(window);
    repairs as f64 / packets as f64
}

fn emit(channel: Channel, header: fec::wire::Header, payload: &[u8], out: &mut Vec<u8>) {
    emit_coded_header(channel as u8, out);
    header.emit(out);
    out.extend_from_slice(payload);
}
