//! The gate in the kernel's rules, through which new connections come.

/// Whether new flows are taken in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gate {
    /// They are.
    Open,
    /// The kernel forwards them, unaccelerated, and counts their SYNs.
    Closed,
}
