//! The configuration: TOML text to checked types which cannot hold a nonsensical value.
//!
//! Nothing past this module sees TOML. `docs/configuration.md` is the reference for operators;
//! tests keep it and these types in agreement.

mod error;
mod intercept;
mod limits;
mod link;
mod log;
mod names;
mod timeouts;

use std::time::Duration;

pub use error::{ConfigError, ConfigWarning};
pub use intercept::{Intercept, Marks};
pub use limits::Limits;
pub use link::Link;
pub use log::{LogConfig, LogFormat, LogLevel};
pub use names::{CongestionName, IfName, NameError, TableName};
pub use timeouts::{Keepalive, Timeouts};

use crate::site::{SiteId, SiteTable};

/// A checked configuration.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Where connections come in.
    pub intercept: Intercept,
    /// The bad hop, where it is described.
    pub link: Option<Link>,
    /// What is never exceeded.
    pub limits: Limits,
    /// Timers of flows whose site says nothing else. Sites hold their own copy.
    pub timeouts: Timeouts,
    /// After SIGTERM, how long flows may still run before they are reset (`timeouts.drain`), 0
    /// to 1 h. Default 10 s: short transfers finish, and service managers wait longer (90 s).
    pub drain: Duration,
    /// What is logged.
    pub log: LogConfig,
    /// The policies, in order of precedence, with the built-in `default` at the end.
    pub sites: SiteTable,
    /// What is allowed but can hardly be meant.
    pub warnings: Vec<ConfigWarning>,
}

impl Config {
    /// The loopback port of a site's listeners.
    ///
    /// # Panics
    /// When the site is not one of this configuration's.
    pub fn listen_port(&self, site: SiteId) -> u16 {
        assert!(
            site.index() < self.sites.len(),
            "site {site} of {}",
            self.sites.len()
        );
        self.intercept.listen_port + site.0
    }
}
