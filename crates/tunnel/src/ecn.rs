//! Congestion marks of IP headers, and what becomes of them in a tunnel (RFC 3168, RFC 6040).

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

impl Ecn {
    /// What the datagram gets that carries a packet with this one: the same (normal mode, RFC 6040 §4.1).
    #[must_use]
    pub fn outside(self) -> Self {
        self
    }

    /// What a packet that came into the tunnel with this one has where it leaves it, if its datagram came with `outer`; `None` if it is to
    /// be dropped, as its sender would not understand that there is congestion (RFC 6040 §4.2).
    #[must_use]
    pub fn leaving(self, outer: Self) -> Option<Self> {
        match (self, outer) {
            (Self::NotEct, Self::Ce) => None,
            (Self::Ect0, Self::Ect1) => Some(Self::Ect1),
            (Self::Ect0 | Self::Ect1, Self::Ce) => Some(Self::Ce),
            (inner, _) => Some(inner),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Ecn::{Ce, Ect0, Ect1, NotEct};

    /// Figures 3 and 4 of RFC 6040.
    #[test]
    fn marks_are_as_rfc_6040_has_them() {
        let table = [
            (NotEct, [Some(NotEct), Some(NotEct), Some(NotEct), None]),
            (Ect0, [Some(Ect0), Some(Ect0), Some(Ect1), Some(Ce)]),
            (Ect1, [Some(Ect1), Some(Ect1), Some(Ect1), Some(Ce)]),
            (Ce, [Some(Ce); 4]),
        ];
        for (inner, leaving) in table {
            assert_eq!(inner.outside(), inner);
            let outer = [NotEct, Ect0, Ect1, Ce];
            assert_eq!(outer.map(|outer| inner.leaving(outer)), leaving);
        }
    }
}
