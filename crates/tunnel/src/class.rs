//! Traffic classes: the priority of streams.

/// Traffic class of a stream.
///
/// `Interactive` goes before everything else. `Normal` and `Bulk` share the remaining capacity, by
/// sites and then by streams. `DelayTolerant` takes only capacity that no other class uses
/// (reynolds2006 §3.2.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Class {
    /// Small, latency-critical messages; each is followed by a repair packet.
    Interactive = 0,
    /// Delay and rate both matter: protected by FEC according to the link's loss.
    Normal = 1,
    /// Only the rate matters: lost segments are retransmitted.
    Bulk = 2,
    /// Sent only while no other class needs the link.
    DelayTolerant = 3,
}

impl Class {
    /// All classes, the most urgent first.
    pub const ALL: [Self; 4] = [
        Self::Interactive,
        Self::Normal,
        Self::Bulk,
        Self::DelayTolerant,
    ];

    /// Returns the class with this number on the wire.
    pub fn from_wire(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }
}
