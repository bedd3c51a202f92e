//! Which implementation computes the code.

use std::{fmt, str::FromStr};

use super::{ErasureCode, ReedSolomon};
use crate::kernel::{Kernel, KernelError};

/// What computes a block code. All give the same bytes, at different speeds.
///
/// Parsed from `auto`, the name of a [`Kernel`], or `reed-solomon-erasure`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Backend {
    /// Our own, on this kernel.
    Kernel(Kernel),
    /// The crate of that name.
    #[cfg(feature = "reference")]
    Reference,
}

/// The other back end's name: that of its crate.
const REFERENCE: &str = "reed-solomon-erasure";

/// Nothing here is called that.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnknownBackend {
    /// It is no kernel of this machine either.
    #[error("neither auto nor reed-solomon-erasure, and {0}")]
    Kernel(KernelError),
    /// This program was built without the feature `reference`.
    #[error("built without the code of reed-solomon-erasure")]
    NotBuilt,
}

impl Backend {
    /// A code computed by it.
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
    /// The fastest kernel.
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
