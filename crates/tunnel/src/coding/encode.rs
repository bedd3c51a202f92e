//! FEC at the sending end.

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

/// Mean burst length in packets above which losses of messages count as bursty.
const BURST: f64 = 2.0;
/// Factor on the mean length that covers nineteen of twenty bursts.
const BURSTS_OVER: f64 = 3.0;
/// Maximum useful delay.
const APART_MAX: Duration = Duration::from_millis(20);

/// FEC encoder of both channels.
#[derive(Debug)]
pub struct Encoding {
    content_max: usize,
    control: Control,
    /// Created on first use: each keeps a window of packets.
    encoders: [Option<Box<WindowEncoder>>; 2],
    /// Last counts from the peer.
    counted: [u64; 3],
    /// Repair packets per packet of normal streams.
    share: f64,
    /// Delay of repair packets of messages, if losses are bursty.
    apart: Option<Duration>,
}

impl Encoding {
    /// Creates an encoder for packets of at most `packet_max` bytes, with at most `overhead_max`
    /// repair packets per packet of normal streams.
    pub fn new(packet_max: usize, overhead_max: f64) -> Self {
        let config = ControlConfig {
            overhead_max: overhead_max.clamp(0.0, 1.0),
            block: block_of_window(WINDOW_NORMAL.into()).min(255) as u8,
            ..ControlConfig::default()
        };
        let control = Control::new(config).expect("defaults with a valid share");
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
    /// The content is longer than `packet_max` allows.
    pub fn protect(&mut self, channel: Channel, content: &[u8], now: Duration, out: &mut Vec<u8>) {
        let encoder = self.encoder(channel);
        let header = encoder.handle_data(content, now);
        let header = header.expect("the session limits the content's length");
        emit(channel, header, content, out);
    }

    /// Signals that no more data of a channel waits, so that its last packets get their repair
    /// packets.
    pub fn drained(&mut self, channel: Channel, now: Duration) {
        if let Some(encoder) = &mut self.encoders[channel as usize] {
            encoder.handle_drained(now);
        }
    }

    /// Writes the next due repair packet of a channel to the end of `out`; returns true if there
    /// was one.
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

    /// Returns when a repair packet of a channel is due.
    pub fn deadline(&self, channel: Channel) -> Option<Duration> {
        self.encoders[channel as usize].as_ref()?.poll_timeout()
    }

    /// Returns the repair packets per packet of normal streams.
    pub fn share(&self) -> f64 {
        self.share
    }

    /// Returns the share of sent packets that is lost, as far as known.
    pub fn loss(&self) -> f64 {
        self.control.estimate().loss().value
    }

    /// Returns the share of sent packets that the link itself loses, as far as known, without
    /// congestion losses.
    pub fn link_loss(&self) -> f64 {
        self.control.link_estimate().loss().value
    }

    /// Returns the last counts from the peer.
    pub fn counted(&self) -> [u64; 3] {
        self.counted
    }

    /// Handles the peer's counts of packets since the session began: examined, lost, bursts.
    /// Impossible counts are ignored. `packet` is the time of a packet on the link.
    pub fn on_counts(&mut self, counts: [u64; 3], congested: bool, packet: Duration) {
        let [packets, lost, bursts] = self.counted;
        let news = Counts::new(
            counts[0].saturating_sub(packets),
            counts[1].saturating_sub(lost),
            counts[2].saturating_sub(bursts),
        );
        if counts[0] < packets {
            return; // An overtaken report.
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

    /// Delays repair packets of messages when losses are bursty: a packet right after a message is
    /// lost in the same burst. One repair packet follows when the burst is probably over, and
    /// another after as long again.
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

    /// Excludes counts that do not predict later loss.
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
            Box::new(WindowEncoder::new(config).expect("both windows are valid"))
        })
    }
}

/// Returns one repair packet per message, or two where one is likely to hit the same burst.
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
