//! The eBPF congestion controls of ours that a scenario uses.

use std::collections::BTreeMap;

use bpf_cc::{Control, LoadError, Loaded};

/// Congestion controls that sockets can choose for as long as this lives.
#[derive(Debug)]
pub(super) struct Controls {
    loaded: Loaded,
}

impl Controls {
    /// Registers them.
    pub fn load(controls: &[Control]) -> Result<Self, LoadError> {
        let loaded = Loaded::load(controls)?;
        Ok(Self { loaded })
    }

    /// The name by which sockets have to ask for what a scenario calls so: another one where that
    /// of a control of ours was taken.
    pub fn actual<'a>(&'a self, name: &'a str) -> &'a str {
        let control = name.parse().ok();
        let actual = control.and_then(|control: Control| self.loaded.name_of(control));
        actual.unwrap_or(name)
    }

    /// All that are registered, and by which names.
    pub fn names(&self) -> BTreeMap<&'static str, String> {
        let names = self.loaded.names();
        names
            .map(|(control, name)| (control.name(), name.to_owned()))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_registered_keeps_its_name() {
        let none = Controls::load(&[]).unwrap();
        assert_eq!(
            (none.actual("hybla"), none.actual("reno")),
            ("hybla", "reno")
        );
        assert!(none.names().is_empty());
    }

    /// Needs root and BTF, as the lab does for these; elsewhere it checks the message.
    #[test]
    fn a_name_that_is_taken_leads_to_another() {
        let first = match Controls::load(&[Control::Vegas]) {
            Ok(first) => first,
            Err(err) => return assert!(err.to_string().contains("eBPF"), "{err}"),
        };
        let second = Controls::load(&[Control::Vegas]).unwrap();
        let [one, other] = [&first, &second].map(|controls| controls.actual("vegas"));
        assert_ne!(one, other);
        assert!(other.starts_with("vegas_bpf"), "{other}");
        assert_eq!(second.names()["vegas"], other);
        assert_eq!(second.actual("hybla"), "hybla", "not asked for");
    }
}
