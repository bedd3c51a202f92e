//! Congestion marks of IP headers (RFC 3168). The caller, which puts the packets into the tunnel,
//! translates between inner and outer marks (RFC 6040).

/// The ECN field of an IP header; the discriminant is the two-bit codepoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Ecn {
    /// Not ECN-capable: the transport detects congestion by loss.
    NotEct = 0,
    /// ECT(1).
    Ect1 = 1,
    /// ECT(0).
    Ect0 = 2,
    /// Congestion experienced on the path.
    Ce = 3,
}
