//! The gate in the nftables rules, which lets new connections in.

/// The acceptance of new flows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gate {
    /// New flows are accepted.
    Open,
    /// The kernel forwards new flows unaccelerated, and counts their SYNs.
    Closed,
}
