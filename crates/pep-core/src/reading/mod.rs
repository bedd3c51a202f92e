//! TOML reader: tables whose keys are taken one by one, checked values, and errors with their
//! lines.

mod error;
mod findings;
mod raw;
mod renamed;
mod table;
pub(crate) mod values;

pub use error::{ConfigError, ConfigWarning};
pub(crate) use findings::{Findings, Lines};
pub(crate) use raw::Section;
pub use raw::closest;
pub use renamed::{RenameError, with_present_names};
pub(crate) use table::{row, section, words};
