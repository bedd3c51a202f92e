//! eBPF congestion controls of pepd that a scenario uses.

use std::collections::BTreeMap;

use bpf_cc::{LoadError, Loaded};

use crate::lab::scenario::WantedControl;

/// Congestion controls available to sockets for as long as this value lives.
#[derive(Debug)]
pub(super) struct Controls {
    names: BTreeMap<String, String>,
    _loaded: Loaded,
}

impl Controls {
    /// Registers the congestion controls.
    pub fn load(controls: &[WantedControl]) -> Result<Self, LoadError> {
        let mut loaded = Loaded::default();
        let mut names = BTreeMap::new();
        for wanted in controls {
            let actual = if wanted.beside {
                loaded.add_beside(wanted.control)?
            } else {
                loaded.add(wanted.control)?
            };
            names.insert(wanted.to_string(), actual.to_owned());
        }
        let _loaded = loaded;
        Ok(Self { names, _loaded })
    }

    /// Registered name of a control of the scenario. It differs from the scenario's name if the
    /// kernel has that name already.
    pub fn actual<'a>(&'a self, name: &'a str) -> &'a str {
        self.names.get(name).map_or(name, String::as_str)
    }

    /// Registered names by the scenario's names.
    pub fn names(&self) -> BTreeMap<String, String> {
        self.names.clone()
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

    /// Needs root and BTF, as the lab does for these controls; elsewhere the test checks the
    /// message.
    #[test]
    fn a_name_that_is_taken_leads_to_another() {
        let wanted = "vegas".parse().unwrap();
        let first = match Controls::load(&[wanted]) {
            Ok(first) => first,
            Err(err) => return assert!(err.to_string().contains("eBPF"), "{err}"),
        };
        let second = Controls::load(&[wanted]).unwrap();
        let [one, other] = [&first, &second].map(|controls| controls.actual("vegas"));
        assert_ne!(one, other);
        assert!(other.starts_with("vegas_bpf"), "{other}");
        assert_eq!(second.names()["vegas"], other);
        assert_eq!(second.actual("hybla"), "hybla", "control was not requested");
    }

    /// Needs root and BTF, like the test above.
    #[test]
    fn the_kernels_name_stays_the_kernels_where_the_scenario_wants_both() {
        let Ok(controls) = Controls::load(&["vegas_bpf".parse().unwrap()]) else {
            return;
        };
        assert!(controls.actual("vegas_bpf").starts_with("vegas_bpf"));
        assert_eq!(controls.actual("vegas"), "vegas");
    }
}
