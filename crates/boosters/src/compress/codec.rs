//! zstd, once for all flows: nothing of a packet is left in it between two calls.

use std::fmt;

use zstd_safe::{CCtx, DCtx, find_frame_compressed_size};

/// No packet, nor what is in one, is longer.
pub(super) const PLAIN_MAX: usize = 65_535;

/// What every frame begins with (RFC 8878 §3.1.1); it is not sent.
const MAGIC: [u8; 4] = 0xFD2F_B528_u32.to_le_bytes();

/// Contexts and space to work in, which are made when they are first needed.
#[derive(Default)]
pub(super) struct Codec {
    compress: Option<CCtx<'static>>,
    decompress: Option<DCtx<'static>>,
    /// A frame with its magic.
    frame: Vec<u8>,
    plain: Vec<u8>,
}

impl Codec {
    /// The frame of these bytes without its magic, if it is at most so many bytes and there is memory for it.
    pub(super) fn pack(&mut self, plain: &[u8], level: i32, most: usize) -> Option<&[u8]> {
        if plain.len() > PLAIN_MAX {
            return None;
        }
        let context = match &mut self.compress {
            Some(context) => context,
            none => none.insert(CCtx::try_create()?),
        };
        let most = MAGIC.len() + most.min(PLAIN_MAX);
        if self.frame.len() < most {
            self.frame.resize(most, 0);
        }
        let len = context.compress(&mut self.frame[..most], plain, level);
        self.frame.get(MAGIC.len()..len.ok()?)
    }

    /// What a frame without its magic consists of; `None` if it is none, or of nothing, or of more than a packet may be.
    ///
    /// It is written at once to where there is room for a packet and no more: zstd needs no memory for a window then, whatever
    /// the frame says, and stops where it would exceed that.
    pub(super) fn unpack(&mut self, frame: &[u8]) -> Option<&[u8]> {
        let context = match &mut self.decompress {
            Some(context) => context,
            none => none.insert(DCtx::try_create()?),
        };
        self.frame.clear();
        self.frame.extend_from_slice(&MAGIC);
        self.frame.extend_from_slice(frame);
        if find_frame_compressed_size(&self.frame) != Ok(self.frame.len()) {
            return None;
        }
        self.plain.resize(PLAIN_MAX, 0);
        let len = context.decompress(&mut self.plain[..], &self.frame).ok()?;
        self.plain.get(..len).filter(|plain| !plain.is_empty())
    }
}

impl fmt::Debug for Codec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Codec").finish_non_exhaustive()
    }
}
