//! Linear combinations of byte strings over GF(2^8), the one operation that all codes here are
//! made of.

mod scalar;

/// A way to compute linear combinations that this machine has. All give the same bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kernel {
    /// Tables of products, a byte at a time; on every machine.
    Scalar,
}

impl Kernel {
    /// The fastest one of this machine.
    #[must_use]
    pub fn detect() -> Self {
        Self::Scalar
    }

    /// Sets each output to the sum of all sources, each multiplied with its coefficient:
    /// `outputs[i] = sum over j of coefficients[i * sources.len() + j] * sources[j]`.
    ///
    /// # Panics
    ///
    /// If there are not `outputs.len() * sources.len()` coefficients, or if sources and outputs
    /// are not all of the same length.
    pub fn combine(self, coefficients: &[u8], sources: &[&[u8]], outputs: &mut [&mut [u8]]) {
        let Some(length) = outputs.first().map(|output| output.len()) else {
            return;
        };
        assert_eq!(
            coefficients.len(),
            sources.len() * outputs.len(),
            "a coefficient for each"
        );
        assert!(
            sources.iter().all(|source| source.len() == length),
            "sources of one length"
        );
        assert!(
            outputs.iter().all(|output| output.len() == length),
            "outputs of one length"
        );
        match self {
            Self::Scalar => scalar::combine(coefficients, sources, outputs),
        }
    }
}
