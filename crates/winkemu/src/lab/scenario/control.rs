//! Which of our congestion controls a scenario asks for.

use std::{fmt, str::FromStr};

use bpf_cc::{Control, UnknownControl};

/// What follows a name that leaves the control's own to the kernel.
const BESIDE: &str = "_bpf";

/// An eBPF congestion control of ours, under its name or beside the kernel's: `hybla`, `hybla_bpf`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WantedControl {
    /// Which.
    pub control: Control,
    /// Whether its own name means the kernel's.
    pub beside: bool,
}

impl FromStr for WantedControl {
    type Err = UnknownControl;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let name = text.strip_suffix(BESIDE);
        Ok(Self {
            control: name.unwrap_or(text).parse()?,
            beside: name.is_some(),
        })
    }
}

impl fmt::Display for WantedControl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ending = if self.beside { BESIDE } else { "" };
        write!(f, "{}{ending}", self.control.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ending_leaves_the_name_to_the_kernel() {
        for (text, control, beside) in [
            ("hybla", Control::Hybla, false),
            ("hybla_bpf", Control::Hybla, true),
            ("hybla_sat_bpf", Control::HyblaSat, true),
        ] {
            let wanted: WantedControl = text.parse().unwrap();
            assert_eq!((wanted.control, wanted.beside), (control, beside));
            assert_eq!(wanted.to_string(), text);
        }
        assert!("reno_bpf".parse::<WantedControl>().is_err());
    }
}
