//! Which bytes go first.

/// What a stream's bytes are to the people who wait for them.
///
/// `Interactive` goes before everything else; `Normal` and `Bulk` share what it leaves, by sites
/// and then by streams; `DelayTolerant` takes only what all others leave (reynolds2006 §3.2.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Class {
    /// Small messages that somebody waits for; each is followed by its repair.
    Interactive = 0,
    /// Delay matters, and so does rate: protected by overcode as the link's loss asks for.
    Normal = 1,
    /// Only the rate matters: what is lost is sent again.
    Bulk = 2,
    /// Whenever nobody else needs the link.
    DelayTolerant = 3,
}

impl Class {
    /// All of them, the most urgent first.
    pub const ALL: [Self; 4] = [
        Self::Interactive,
        Self::Normal,
        Self::Bulk,
        Self::DelayTolerant,
    ];

    /// The class of that number on the wire.
    pub fn from_wire(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }
}
