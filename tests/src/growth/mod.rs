//! How congestion windows grow, read from the kernel while a sender runs over an emulated link,
//! beside the formulas that Hybla's authors give.
//!
//! Formulas are per acknowledgement, and acknowledgements are counted, so that a busy machine
//! changes what a round trip is, not whether a formula holds.

mod bed;
mod formulas;
mod report;
mod stretch;

pub use formulas::formulas;
pub use report::{Figure, table};
pub use stretch::stretch;

/// What a measurement returns; an error ends the whole run.
pub type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;
