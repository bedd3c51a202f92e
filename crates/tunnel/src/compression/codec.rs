//! zstd contexts, shared by all flows of a thread: they keep no state of a flow between two calls.

use std::fmt;

use zstd_safe::{CCtx, DCtx, find_frame_compressed_size};

use super::{PLAIN_MAX, UnpackError};

/// Compression level (1 to 22).
const LEVEL: i32 = 3;

/// Magic number of every frame (RFC 8878, section 3.1.1); it is not sent.
const MAGIC: [u8; 4] = 0xFD2F_B528_u32.to_le_bytes();

/// Contexts and work space, allocated on first use: about 0.7 MB.
#[derive(Default)]
pub struct Codec {
    compress: Option<CCtx<'static>>,
    decompress: Option<DCtx<'static>>,
    /// A frame with its magic number.
    frame: Vec<u8>,
    plain: Vec<u8>,
}

impl Codec {
    /// Creates a codec without contexts.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Compresses bytes. Returns the frame without its magic number, if it has at most `most` bytes
    /// and memory suffices.
    pub(super) fn compress(
        &mut self,
        plain: &[u8],
        dictionary: &[u8],
        most: usize,
    ) -> Option<&[u8]> {
        let context = match &mut self.compress {
            Some(context) => context,
            none => none.insert(CCtx::try_create()?),
        };
        self.frame.resize(MAGIC.len() + PLAIN_MAX, 0);
        let frame = &mut self.frame[..MAGIC.len() + most.min(PLAIN_MAX)];
        let len = context.compress_using_dict(frame, plain, dictionary, LEVEL);
        self.frame.get(MAGIC.len()..len.ok()?)
    }

    /// Decompresses a frame without its magic number.
    ///
    /// The output buffer has room for exactly one block. zstd thus needs no window memory, whatever
    /// the frame states, and stops at the end of the buffer.
    pub(super) fn decompress(
        &mut self,
        frame: &[u8],
        dictionary: &[u8],
    ) -> Result<&[u8], UnpackError> {
        let context = match &mut self.decompress {
            Some(context) => context,
            none => none.insert(DCtx::try_create().ok_or(UnpackError::Memory)?),
        };
        self.frame.clear();
        self.frame.extend_from_slice(&MAGIC);
        self.frame.extend_from_slice(frame);
        if find_frame_compressed_size(&self.frame) != Ok(self.frame.len()) {
            return Err(UnpackError::Frame);
        }
        self.plain.resize(PLAIN_MAX, 0);
        let plain = &mut self.plain[..];
        let len = context.decompress_using_dict(plain, &self.frame, dictionary);
        match len {
            Ok(0) | Err(_) => Err(UnpackError::Frame),
            Ok(len) => self.plain.get(..len).ok_or(UnpackError::Frame),
        }
    }
}

impl fmt::Debug for Codec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Codec").finish_non_exhaustive()
    }
}
