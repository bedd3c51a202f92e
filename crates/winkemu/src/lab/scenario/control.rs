//! eBPF congestion controls that a scenario requests.

use std::{fmt, str::FromStr};

use bpf_cc::{Control, UnknownControl};

/// Suffix that leaves the control's own name to the kernel.
const BESIDE: &str = "_bpf";

/// eBPF congestion control of pepd, under its own name or beside the kernel's: `hybla`,
/// `hybla_bpf`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WantedControl {
    /// Control.
    pub control: Control,
    /// True if its own name means the kernel's control.
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
