//! The congestion controls of this crate.

use std::{fmt, str::FromStr};

/// A congestion control of this crate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Control {
    /// TCP Hybla as in the kernel's module (Caini and Firrincieli 2004).
    Hybla,
    /// TCP Hybla with pacing, bounded by the bandwidth-delay product; tells link loss from
    /// congestion.
    HyblaSat,
    /// A constant window for the stated rate; ignores loss (Reynolds 2006, section 3.2.3).
    Steady,
    /// TCP Westwood+ as in the kernel's module (Mascolo et al. 2001).
    Westwood,
    /// TCP Vegas as in the kernel's module (Brakmo and Peterson 1995).
    Vegas,
    /// Compound TCP (Tan, Song, Zhang and Sridharan 2006).
    Compound,
}

/// A name that matches no [`Control`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown congestion control `{0}`; available are {list}", list = Control::names().join(", "))]
pub struct UnknownControl(pub String);

impl Control {
    /// All congestion controls.
    pub const ALL: [Self; 6] = [
        Self::Hybla,
        Self::HyblaSat,
        Self::Steady,
        Self::Westwood,
        Self::Vegas,
        Self::Compound,
    ];

    /// Returns the name in configurations, also the registered name where that is free.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Hybla => "hybla",
            Self::HyblaSat => "hybla_sat",
            Self::Steady => "steady",
            Self::Westwood => "westwood",
            Self::Vegas => "vegas",
            Self::Compound => "compound",
        }
    }

    /// Returns the names of all congestion controls.
    pub fn names() -> Vec<&'static str> {
        Self::ALL.map(Self::name).to_vec()
    }

    /// Returns a one-line description.
    pub const fn about(self) -> &'static str {
        match self {
            Self::Hybla => "grows as if the round trip were 25 ms; as the kernel's module",
            Self::HyblaSat => "hybla, paced and bounded by the path; link loss does not slow it",
            Self::Steady => "constant window at the stated rate, deaf to loss; dedicated hops only",
            Self::Westwood => "after loss, the window of the measured rate; as the kernel's module",
            Self::Vegas => "keeps a few segments queued, by delay; as the kernel's module",
            Self::Compound => "reno plus a window that yields to delay",
        }
    }

    /// Returns whether the control requires a stated rate (SO_MAX_PACING_RATE).
    pub const fn needs_rate(self) -> bool {
        matches!(self, Self::Steady)
    }

    /// Returns whether the control takes bandwidth from other flows: only for a link without them.
    pub const fn needs_dedicated_link(self) -> bool {
        matches!(self, Self::Steady)
    }

    /// Returns the program, as an ELF object with BTF.
    pub(crate) const fn object(self) -> &'static [u8] {
        match self {
            Self::Hybla => include_bytes!("../objects/hybla.bpf.o"),
            Self::HyblaSat => include_bytes!("../objects/hybla_sat.bpf.o"),
            Self::Steady => include_bytes!("../objects/steady.bpf.o"),
            Self::Westwood => include_bytes!("../objects/westwood.bpf.o"),
            Self::Vegas => include_bytes!("../objects/vegas.bpf.o"),
            Self::Compound => include_bytes!("../objects/compound.bpf.o"),
        }
    }
}

impl fmt::Display for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Control {
    type Err = UnknownControl;

    fn from_str(text: &str) -> Result<Self, UnknownControl> {
        Self::ALL
            .into_iter()
            .find(|control| control.name() == text)
            .ok_or_else(|| UnknownControl(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back_and_fit_the_kernel() {
        for control in Control::ALL {
            assert_eq!(control.name().parse(), Ok(control));
            assert!(control.name().len() < 16, "TCP_CA_NAME_MAX");
        }
        let unknown = "hylba".parse::<Control>().unwrap_err().to_string();
        assert!(unknown.contains("hylba") && unknown.contains("hybla_sat"));
    }
}
