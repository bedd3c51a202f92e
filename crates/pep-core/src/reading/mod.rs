//! Reading of TOML: tables whose keys are taken one by one, checked values, and what is wrong with
//! them, each with its line.

mod error;
pub(crate) mod findings;
pub(crate) mod raw;
pub(crate) mod values;

pub use error::{ConfigError, ConfigWarning};
pub use raw::closest;
