//! One tunnel: streams, and the packets that carry them over the link, in plain text.

mod config;
mod event;

use std::time::Duration;

pub use config::{Outages, Rate, SessionConfig};
pub use event::Event;

use crate::{
    class::Class,
    store::Store,
    wire::{ResetCode, StreamId},
};

/// One side of a tunnel.
#[derive(Debug)]
pub struct Session {}

/// A packet that has been written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    /// Its number, which no other packet of this side ever has.
    pub number: u64,
}

impl Session {
    /// A session that begins at `now`.
    pub fn new(_config: SessionConfig, _now: Duration) -> Self {
        Self {}
    }

    /// Takes a packet that has arrived for the first time, with its number and whether the network marked
    /// it (congestion experienced). `datagram` is its length on the wire, without IP and UDP.
    ///
    /// # Errors
    /// If what it says makes no sense; the session should then be closed.
    pub fn handle_packet(
        &mut self,
        _now: Duration,
        _number: u64,
        _packet: &[u8],
        _datagram: usize,
        _marked: bool,
        _store: &mut impl Store,
    ) -> Result<(), PacketError> {
        Ok(())
    }

    /// Writes the next packet to be sent now to the end of `out`, if there is one.
    pub fn poll_packet(
        &mut self,
        _now: Duration,
        _out: &mut Vec<u8>,
        _store: &impl Store,
    ) -> Option<Written> {
        None
    }

    /// When to call [`poll_packet`](Self::poll_packet) again though nothing else has happened.
    pub fn deadline(&self) -> Option<Duration> {
        None
    }

    /// What has happened; ask until there is nothing.
    pub fn poll_event(&mut self) -> Option<Event> {
        None
    }

    /// Opens a stream. `site` and `weight` say with whom it shares the link, and how.
    ///
    /// # Errors
    /// If there are as many streams as there may be.
    pub fn open(
        &mut self,
        _class: Class,
        _site: u32,
        _greeting: &[u8],
    ) -> Result<StreamId, TooManyStreams> {
        Err(TooManyStreams)
    }

    /// The stream's bytes below `until` can be read from the store.
    pub fn written(&mut self, _stream: StreamId, _until: u64) {}

    /// The stream ends after what is written.
    pub fn finish(&mut self, _stream: StreamId) {}

    /// Ends the stream in both directions at once.
    pub fn reset(&mut self, _stream: StreamId, _code: ResetCode) {}

    /// The peer may send the stream's bytes below `until`.
    pub fn allow(&mut self, _stream: StreamId, _until: u64) {}

    /// From now on the stream is of that class.
    pub fn set_class(&mut self, _stream: StreamId, _class: Class) {}

    /// Somebody who knows says whether the link is there.
    pub fn hint(&mut self, _now: Duration, _link: LinkHint) {}
}

/// What a modem, an interface or a contact plan says of the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkHint {
    /// Nothing gets through; stop at once.
    Down,
    /// It is back; go on at once.
    Up,
}

/// There are as many streams as the peer takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("as many streams are open as the peer takes")]
pub struct TooManyStreams;

/// A packet, though sealed by the peer, that makes no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct PacketError(pub String);
