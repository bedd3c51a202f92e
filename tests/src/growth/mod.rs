//! Growth of congestion windows over an emulated link, as the kernel reports it, compared with the
//! formulas of Hybla's authors.
//!
//! The formulas are per acknowledgement, and acknowledgements are counted. So load on the machine
//! changes the round trip, not the validity of a formula.

mod bed;
mod formulas;
mod report;
mod stretch;

pub use formulas::formulas;
pub use report::{Figure, table};
pub use stretch::stretch;

/// The result of a measurement; an error ends the whole run.
pub type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;
