//! Linear combinations of byte strings over GF(2^8), the basic operation of all codes here.
//!
//! Multiplication by a coefficient is linear in the bits of a byte, so that a vector unit does it
//! to 16, 32 or 64 bytes at once. With GFNI it is one multiplication with an 8 x 8 matrix of bits,
//! else the sum of two look-ups of four bits each in a table of 16 bytes that fits in a register.
//!
//! Each source is read once for up to six outputs, whose sums stay in registers until all sources
//! have been added; see `pass`.
//!
//! This is the only part of the crate with `unsafe` code: vectors are read and written through
//! pointers, and an instruction requires a machine that has it. The latter holds by construction,
//! as a [`Kernel`] only exists where it can run.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod gfni256;
#[cfg(target_arch = "x86_64")]
mod gfni512;
#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod pass;
mod scalar;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod tables;
#[cfg(test)]
mod tests;

use std::{fmt, str::FromStr};

/// An implementation of linear combinations that this machine can run. All give the same bytes.
///
/// Written and parsed as one of the names `gfni-avx512`, `gfni-avx2`, `avx2`, `neon`, `scalar`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Kernel(Kind);

/// From the fastest to the slowest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Kind {
    GfniAvx512,
    GfniAvx2,
    Avx2,
    Neon,
    Scalar,
}

/// Reason why a name is not a usable kernel.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KernelError {
    /// Not available on this machine: another architecture, or a CPU without the instructions.
    #[error("this machine has no kernel {0}; it has {names}", names = Names)]
    Absent(&'static str),
    /// Unknown name.
    #[error("no kernel is called {0:?}; this machine has {names}", names = Names)]
    Unknown(String),
}

/// Names of this machine's kernels, for messages.
struct Names;

impl fmt::Display for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, kernel) in Kernel::available().enumerate() {
            let comma = if i > 0 { ", " } else { "" };
            write!(f, "{comma}{kernel}")?;
        }
        Ok(())
    }
}

impl Kind {
    const ALL: [Self; 5] = [
        Self::GfniAvx512,
        Self::GfniAvx2,
        Self::Avx2,
        Self::Neon,
        Self::Scalar,
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::GfniAvx512 => "gfni-avx512",
            Self::GfniAvx2 => "gfni-avx2",
            Self::Avx2 => "avx2",
            Self::Neon => "neon",
            Self::Scalar => "scalar",
        }
    }

    /// Reports whether this machine can run it. The standard library caches the CPU's features.
    #[cfg(target_arch = "x86_64")]
    fn is_present(self) -> bool {
        use std::arch::is_x86_feature_detected as has;
        match self {
            Self::GfniAvx512 => has!("avx512f") && has!("avx512bw") && has!("gfni"),
            Self::GfniAvx2 => has!("avx2") && has!("gfni"),
            Self::Avx2 => has!("avx2"),
            Self::Neon => false,
            Self::Scalar => true,
        }
    }

    /// Reports whether this machine can run it.
    #[cfg(target_arch = "aarch64")]
    fn is_present(self) -> bool {
        match self {
            Self::Neon => std::arch::is_aarch64_feature_detected!("neon"),
            Self::Scalar => true,
            Self::GfniAvx512 | Self::GfniAvx2 | Self::Avx2 => false,
        }
    }

    /// Reports whether this machine can run it.
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    fn is_present(self) -> bool {
        self == Self::Scalar
    }
}

impl Kernel {
    /// The kernel that runs on every machine.
    pub const SCALAR: Self = Self(Kind::Scalar);

    /// Returns the fastest kernel of this machine.
    #[must_use]
    pub fn detect() -> Self {
        Self::available().next().unwrap_or(Self::SCALAR)
    }

    /// Returns all kernels of this machine, from the fastest to [`SCALAR`](Self::SCALAR).
    pub fn available() -> impl Iterator<Item = Self> {
        let kinds = Kind::ALL.into_iter();
        kinds.filter(|kind| kind.is_present()).map(Self)
    }

    /// Returns the kernel of this name.
    ///
    /// # Errors
    ///
    /// If this machine cannot run it, or the name is unknown.
    pub fn named(name: &str) -> Result<Self, KernelError> {
        let kind = Kind::ALL.into_iter().find(|kind| kind.name() == name);
        let kind = kind.ok_or_else(|| KernelError::Unknown(name.to_owned()))?;
        if kind.is_present() {
            Ok(Self(kind))
        } else {
            Err(KernelError::Absent(kind.name()))
        }
    }

    /// Name of the kernel.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.0.name()
    }

    /// Sets each output to the sum of all sources, each multiplied with its coefficient:
    /// `outputs[i] = sum over j of coefficients[i * sources.len() + j] * sources[j]`.
    ///
    /// # Panics
    ///
    /// If there are not `outputs.len() * sources.len()` coefficients, or if sources and outputs
    /// are not all of the same length.
    pub fn combine(self, coefficients: &[u8], sources: &[&[u8]], outputs: &mut [&mut [u8]]) {
        let length = check(coefficients, sources, outputs);
        if sources.is_empty() {
            outputs.iter_mut().for_each(|output| output.fill(0));
        } else if length > 0 {
            self.run(coefficients, sources, outputs, false);
        }
    }

    /// As [`combine`](Self::combine), but adds the sums to what the outputs hold.
    ///
    /// # Panics
    ///
    /// As [`combine`](Self::combine).
    pub fn accumulate(self, coefficients: &[u8], sources: &[&[u8]], outputs: &mut [&mut [u8]]) {
        let length = check(coefficients, sources, outputs);
        if !sources.is_empty() && length > 0 {
            self.run(coefficients, sources, outputs, true);
        }
    }

    /// Runs after [`check`], with one source and one byte or more.
    fn run(
        self,
        coefficients: &[u8],
        sources: &[&[u8]],
        outputs: &mut [&mut [u8]],
        accumulate: bool,
    ) {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: such a kernel exists only where AVX-512 F and BW and GFNI have been detected,
            // and `check` has verified the lengths.
            Kind::GfniAvx512 => unsafe {
                pass::combine::<gfni512::Gfni512>(coefficients, sources, outputs, accumulate);
            },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above, of AVX2 and GFNI.
            Kind::GfniAvx2 => unsafe {
                pass::combine::<gfni256::Gfni256>(coefficients, sources, outputs, accumulate);
            },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above, of AVX2.
            Kind::Avx2 => unsafe {
                pass::combine::<avx2::Avx2>(coefficients, sources, outputs, accumulate);
            },
            #[cfg(target_arch = "aarch64")]
            // SAFETY: as above, of NEON.
            Kind::Neon => unsafe {
                pass::combine::<neon::Neon>(coefficients, sources, outputs, accumulate);
            },
            _ => scalar::combine(coefficients, sources, outputs, accumulate),
        }
    }
}

/// Checks that there is a coefficient for each pair, and that all strings are of one length, which
/// is returned. All code below relies on these bounds.
fn check(coefficients: &[u8], sources: &[&[u8]], outputs: &[&mut [u8]]) -> usize {
    let expected = sources.len() * outputs.len();
    assert_eq!(coefficients.len(), expected, "a coefficient for each");
    let Some(length) = outputs.first().map(|output| output.len()) else {
        return 0;
    };
    assert!(
        sources.iter().all(|source| source.len() == length),
        "sources of one length"
    );
    assert!(
        outputs.iter().all(|output| output.len() == length),
        "outputs of one length"
    );
    length
}

impl Default for Kernel {
    fn default() -> Self {
        Self::detect()
    }
}

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Kernel {
    type Err = KernelError;

    fn from_str(name: &str) -> Result<Self, KernelError> {
        Self::named(name)
    }
}
