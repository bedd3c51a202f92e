//! Seeded bytes, so that neither end has to hold or send the expected ones.

use std::{
    io::{self, Read, Write},
    time::{SystemTime, UNIX_EPOCH},
};

use sha2::{Digest as _, Sha256};
use splitmix::SplitMix64;

/// A SHA-256.
pub type Sum = [u8; 32];

/// The environment variable that repeats a run: `PEPD_TEST_SEED=17`.
pub const SEED_VARIABLE: &str = "PEPD_TEST_SEED";

/// Returns the seed of this run, and prints it so that a failure can be repeated with
/// [`SEED_VARIABLE`].
///
/// # Panics
/// When the variable is set to something that is not a number.
pub fn run_seed() -> u64 {
    let seed = match std::env::var(SEED_VARIABLE) {
        Ok(text) => text.parse().expect("PEPD_TEST_SEED is a number"),
        Err(_) => SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(1, |since| u64::from(since.subsec_nanos())),
    };
    println!("{SEED_VARIABLE}={seed}");
    seed
}

/// Returns a transfer size of `max` bytes or less from a seed: often tiny or zero, sometimes near
/// the sizes at which buffers, rings and pipes fill, sometimes large.
pub fn size(seed: u64, max: u64) -> u64 {
    const EDGES: [u64; 8] = [1448, 4096, 16_384, 65_535, 65_536, 65_537, 131_072, 1 << 20];
    let mut random = SplitMix64::new(seed);
    let size = match random.below(8) {
        0 => 0,
        1 => random.below(100),
        2 | 3 => random.one_of(&EDGES) + random.below(3),
        4..=6 => random.below(200_000),
        _ => random.below(max),
    };
    size.min(max)
}

/// `len` bytes determined by a seed, readable once from start to end.
#[derive(Debug, Clone)]
pub struct Payload {
    random: SplitMix64,
    left: u64,
}

impl Payload {
    /// Returns the first `len` bytes of this seed.
    pub fn new(seed: u64, len: u64) -> Self {
        Self {
            random: SplitMix64::new(seed),
            left: len,
        }
    }

    /// Returns the checksum of the bytes not yet read.
    pub fn sum(&self) -> Sum {
        receive(&mut self.clone())
            .expect("a payload has no errors")
            .1
    }

    /// Writes the bytes not yet read.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn send(&mut self, to: &mut impl Write) -> io::Result<()> {
        let mut buffer = vec![0; 64 * 1024];
        loop {
            let len = self.read(&mut buffer)?;
            if len == 0 {
                return Ok(());
            }
            to.write_all(&buffer[..len])?;
        }
    }
}

impl Read for Payload {
    /// Fills the buffer up to a multiple of eight bytes, except at the end.
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        assert!(
            buffer.len() >= 8,
            "the generator makes eight bytes at a time"
        );
        let mut filled = 0;
        for word in buffer.chunks_exact_mut(8) {
            let len = self.left.min(8) as usize;
            word.copy_from_slice(&self.random.next_u64().to_le_bytes());
            self.left -= len as u64;
            filled += len;
            if len < 8 {
                break;
            }
        }
        Ok(filled)
    }
}

/// Reads to the end; returns the number of bytes and their checksum.
///
/// # Errors
/// Those of the reader.
pub fn receive(from: &mut impl Read) -> io::Result<(u64, Sum)> {
    receive_slowly(from, || {})
}

/// Reads like [`receive`], calling `pause` before each read of up to 64 KiB.
///
/// # Errors
/// Those of the reader.
pub fn receive_slowly(from: &mut impl Read, mut pause: impl FnMut()) -> io::Result<(u64, Sum)> {
    let (mut total, mut sum) = (0, Sha256::new());
    let mut buffer = vec![0; 64 * 1024];
    loop {
        pause();
        let len = from.read(&mut buffer)?;
        if len == 0 {
            return Ok((total, sum.finalize().into()));
        }
        sum.update(&buffer[..len]);
        total += len as u64;
    }
}

/// Returns the checksum of these bytes.
pub fn sum_of(bytes: &[u8]) -> Sum {
    Sha256::digest(bytes).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_has_the_length_asked_for_and_depends_on_the_seed() {
        for len in [0, 1, 7, 8, 9, 65_535, 65_536, 65_537] {
            let (received, sum) = receive(&mut Payload::new(1, len)).expect("no errors");
            assert_eq!(received, len);
            assert_eq!(sum == Payload::new(2, len).sum(), len == 0);
        }
    }

    #[test]
    fn however_it_is_cut_a_payload_is_the_same() {
        let mut whole = Vec::new();
        let mut payload = Payload::new(3, 100_001);
        payload.send(&mut whole).expect("a vector takes all");
        assert_eq!(sum_of(&whole), Payload::new(3, 100_001).sum());
        let mut pieces = Vec::new();
        let mut payload = Payload::new(3, 100_001);
        let mut buffer = [0; 24];
        while let Ok(len @ 1..) = payload.read(&mut buffer) {
            pieces.extend_from_slice(&buffer[..len]);
        }
        assert_eq!(whole, pieces);
    }
}
