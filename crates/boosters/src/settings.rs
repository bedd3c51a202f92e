//! From what is wanted of a site to its chain.

use crate::chain::Receiver;

/// What takes the messages of any chain.
#[must_use]
pub fn receiver() -> Receiver {
    Receiver::new(Vec::new())
}
