//! Congestion marks of IP headers (RFC 3168). What becomes of them in the tunnel those know who put packets into it (RFC 6040).

/// The ECN field of an IP header; its two bits are the number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Ecn {
    /// The sender does not know of marks: it is told of congestion by loss.
    NotEct = 0,
    /// ECT(1).
    Ect1 = 1,
    /// ECT(0).
    Ect0 = 2,
    /// Congestion was experienced on the way.
    Ce = 3,
}
