//! Implementations of the block code.

use std::{fmt, str::FromStr};

use super::{ErasureCode, ReedSolomon};
use crate::kernel::{Kernel, KernelError};

/// Implementation of the block code. All give the same bytes, at different speeds.
///
/// Parsed from `auto`, the name of a [`Kernel`], or `reed-solomon-erasure`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Backend {
    /// Code of this crate, on this kernel.
    Kernel(Kernel),
    /// The crate of that name.
    #[cfg(feature = "reference")]
    Reference,
}

/// Name of the other back end: that of its crate.
const REFERENCE: &str = "reed-solomon-erasure";

/// Error for an unknown name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnknownBackend {
    /// The name is not that of a kernel of this machine either.
    #[error("neither auto nor reed-solomon-erasure, and {0}")]
    Kernel(KernelError),
    /// The program was built without the feature `reference`.
    #[error("built without the code of reed-solomon-erasure")]
    NotBuilt,
}

impl Backend {
    /// Returns a code computed by this back end.
    #[must_use]
    pub fn code(self) -> Box<dyn ErasureCode + Send> {
        match self {
            Self::Kernel(kernel) => Box::new(ReedSolomon::with_kernel(kernel)),
            #[cfg(feature = "reference")]
            Self::Reference => Box::new(super::Reference::new()),
        }
    }
}

impl Default for Backend {
    /// Returns the fastest kernel.
    fn default() -> Self {
        Self::Kernel(Kernel::detect())
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kernel(kernel) => kernel.fmt(f),
            #[cfg(feature = "reference")]
            Self::Reference => f.pad(REFERENCE),
        }
    }
}

impl FromStr for Backend {
    type Err = UnknownBackend;

    fn from_str(name: &str) -> Result<Self, UnknownBackend> {
        match name {
            "auto" => Ok(Self::default()),
            #[cfg(feature = "reference")]
            REFERENCE => Ok(Self::Reference),
            #[cfg(not(feature = "reference"))]
            REFERENCE => Err(UnknownBackend::NotBuilt),
            _ => Kernel::named(name)
                .map(Self::Kernel)
                .map_err(UnknownBackend::Kernel),
        }
    }
}
