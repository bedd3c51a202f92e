//! zstd, one instance for all flows: it keeps no data of a packet between two calls.

use std::fmt;

use zstd_safe::{CCtx, DCtx, find_frame_compressed_size};

/// Maximum length of a packet or its payload.
pub(super) const PLAIN_MAX: usize = 65_535;

/// Magic number of every frame (RFC 8878 §3.1.1), which is not sent.
const MAGIC: [u8; 4] = 0xFD2F_B528_u32.to_le_bytes();

/// Contexts and buffers, allocated on first use.
#[derive(Default)]
pub(super) struct Codec {
    compress: Option<CCtx<'static>>,
    decompress: Option<DCtx<'static>>,
    /// Buffer for a frame with its magic.
    frame: Vec<u8>,
    plain: Vec<u8>,
}

impl Codec {
    /// Compresses bytes into a frame without its magic; `None` if it is longer than `most`, or
    /// without memory.
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

    /// Decompresses a frame without its magic; `None` if it is malformed, empty, or longer than a
    /// packet.
    ///
    /// The output goes directly into a buffer for one packet. So zstd needs no memory for a window,
    /// whatever the frame says, and stops where the output would exceed the buffer.
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
