//! FEC at the receiving end.

use fec::{
    scheme::{Arrival, Decoder, Refused},
    window::{DecoderConfig, WindowDecoder},
    wire::{Header, HeaderError},
};

use super::{CODED_OVERHEAD, Channel};

/// FEC decoder of both channels.
#[derive(Debug)]
pub struct Decoding {
    content_max: usize,
    /// Created on first use: each keeps some windows of packets.
    decoders: [Option<Box<WindowDecoder>>; 2],
}

/// Origin of a protected packet's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The packet itself arrived.
    Arrived,
    /// FEC restored it.
    Restored,
}

/// An invalid protected packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CodedError {
    /// The channel does not exist.
    #[error("unknown FEC channel {0}")]
    Channel(u8),
    /// The FEC header does not parse.
    #[error("FEC: {0}")]
    Header(#[from] HeaderError),
    /// The decoder rejects it.
    #[error("FEC: {0}")]
    Refused(#[from] Refused),
}

impl Decoding {
    /// Creates a decoder for packets of at most `packet_max` bytes.
    pub fn new(packet_max: usize) -> Self {
        Self {
            content_max: packet_max.saturating_sub(CODED_OVERHEAD).max(1),
            decoders: [None, None],
        }
    }

    /// Decodes a protected packet from its FEC header on, and passes each resulting packet to
    /// `packet`: its own, and restored ones.
    ///
    /// # Errors
    ///
    /// The packet is invalid; nothing of it is kept.
    pub fn handle(
        &mut self,
        channel: u8,
        protected: &[u8],
        mut packet: impl FnMut(&[u8], Origin),
    ) -> Result<(), CodedError> {
        let channel = Channel::from_wire(channel).ok_or(CodedError::Channel(channel))?;
        let (header, payload) = Header::parse(protected)?;
        let decoder = self.decoder(channel);
        match decoder.handle(header, payload)? {
            // Late ones may be new; segment numbers identify duplicates.
            Arrival::Data | Arrival::Late => packet(payload, Origin::Arrived),
            Arrival::Duplicate | Arrival::Repair => {}
        }
        while let Some((_, restored)) = decoder.poll_recovered() {
            packet(restored, Origin::Restored);
        }
        Ok(())
    }

    fn decoder(&mut self, channel: Channel) -> &mut WindowDecoder {
        let payload_max = self.content_max;
        self.decoders[channel as usize].get_or_insert_with(|| {
            let config = DecoderConfig {
                payload_max,
                ..DecoderConfig::for_window(channel.window())
            };
            Box::new(WindowDecoder::new(&config).expect("both windows are valid"))
        })
    }
}
