//! The output of `pepd cc list`: every control, available or not.

use std::fmt;

use bpf_cc::{Control, free_name};
use serde::Serialize;

use super::{Catalogue, about::about};

/// The source of a control.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Built into the kernel, or a loaded module.
    Kernel,
    /// A kernel module that is not loaded.
    Module,
    /// An eBPF program that pepd loads where a site names it.
    Ebpf,
    /// An eBPF program of pepd, under another name: a program of another process has this one.
    Taken,
    /// A program of another process, unknown to pepd.
    OtherProcess,
    /// A control of pepd that cannot be loaded.
    Missing,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Kernel => "kernel",
            Self::Module => "kernel module",
            Self::Ebpf => "eBPF",
            Self::Taken => "eBPF, name taken",
            Self::OtherProcess => "eBPF of another process",
            Self::Missing => "missing",
        })
    }
}

/// A row of the list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Entry {
    /// The name in configurations.
    pub name: String,
    /// The source.
    pub kind: Kind,
    /// A description.
    pub about: &'static str,
    /// The name that sockets show, if different.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub registered_as: Option<String>,
    /// The reason, if the control is missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

impl Entry {
    fn has_note(&self) -> bool {
        self.registered_as.is_some() || self.why.is_some()
    }
}

/// All rows, for display as a table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Listing(pub Vec<Entry>);

impl Listing {
    /// Lists the controls of the kernel, of pepd and of other processes.
    pub fn from_catalogue(catalogue: &Catalogue) -> Self {
        let native = catalogue.native().map(|name| plain(name, Kind::Kernel));
        let modules = catalogue.unloaded_modules();
        let modules = modules.map(|name| plain(name, Kind::Module));
        let mut entries: Vec<_> = native.chain(modules).collect();
        for control in Control::ALL {
            if entries.iter().all(|entry| entry.name != control.name()) {
                entries.push(ours(control, catalogue));
            }
        }
        for name in catalogue.registered() {
            if entries.iter().all(|entry| entry.name != name) {
                entries.push(plain(name, Kind::OtherProcess));
            }
        }
        Self(entries)
    }
}

fn plain(name: &str, kind: Kind) -> Entry {
    Entry {
        name: name.to_owned(),
        kind,
        about: about(name),
        registered_as: None,
        why: None,
    }
}

fn ours(control: Control, catalogue: &Catalogue) -> Entry {
    let taken: Vec<_> = catalogue.registered().map(str::to_owned).collect();
    let name = match catalogue.obstacle() {
        Some(err) => Err(err.clone()),
        None => free_name(control, &taken),
    };
    let kind = match &name {
        Ok(name) if name == control.name() => Kind::Ebpf,
        Ok(_) => Kind::Taken,
        Err(_) => Kind::Missing,
    };
    Entry {
        why: name.as_ref().err().map(ToString::to_string),
        registered_as: name.ok().filter(|_| kind == Kind::Taken),
        ..plain(control.name(), kind)
    }
}

impl fmt::Display for Listing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<15} {:<16} description", "name", "from")?;
        for entry in &self.0 {
            writeln!(f, "{:<15} {:<16} {}", entry.name, entry.kind, entry.about)?;
        }
        if self.0.iter().any(Entry::has_note) {
            writeln!(f)?;
        }
        self.notes(f)
    }
}

impl Listing {
    /// Writes notes that do not fit the table, one line each.
    fn notes(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for entry in &self.0 {
            if let Some(registered_as) = &entry.registered_as {
                let name = &entry.name;
                writeln!(
                    f,
                    "{name}: taken by another process; pepd's own would be `{registered_as}`"
                )?;
            }
        }
        let mut written: Vec<&str> = Vec::new();
        for why in self.0.iter().filter_map(|entry| entry.why.as_deref()) {
            if !written.contains(&why) {
                written.push(why);
                writeln!(f, "{}: {why}", self.names_of(why).join(", "))?;
            }
        }
        Ok(())
    }

    fn names_of(&self, why: &str) -> Vec<&str> {
        let same = self
            .0
            .iter()
            .filter(|entry| entry.why.as_deref() == Some(why));
        same.map(|entry| entry.name.as_str()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::catalogue::tests::{machine, no_perfmon},
        *,
    };

    fn kinds(catalogue: &Catalogue) -> Vec<(String, Kind)> {
        let entries = Listing::from_catalogue(catalogue).0.into_iter();
        entries.map(|entry| (entry.name, entry.kind)).collect()
    }

    #[test]
    fn every_control_is_listed_once_with_its_kind() {
        let machine = machine(
            &["reno", "vegas"],
            &["hybla", "hybla_bpf", "theirs"],
            &["vegas", "westwood"],
            None,
        );
        let expected = [
            ("reno", Kind::Kernel),
            ("vegas", Kind::Kernel),
            ("westwood", Kind::Module),
            ("hybla", Kind::Taken),
            ("hybla_sat", Kind::Ebpf),
            ("steady", Kind::Ebpf),
            ("compound", Kind::Ebpf),
            ("hybla_bpf", Kind::OtherProcess),
            ("theirs", Kind::OtherProcess),
        ];
        let expected: Vec<_> = expected.map(|(name, kind)| (name.to_owned(), kind)).into();
        assert_eq!(kinds(&machine), expected);
        let text = Listing::from_catalogue(&machine).to_string();
        let note = "hybla: taken by another process; pepd's own would be `hybla_bpf2`";
        assert!(text.contains(note), "{text}");
    }

    #[test]
    fn what_is_missing_has_its_reason_once() {
        let machine = machine(&["reno"], &[], &["hybla"], Some(no_perfmon()));
        let listing = Listing::from_catalogue(&machine);
        let text = listing.to_string();
        let reason = "\nhybla_sat, steady, westwood, vegas, compound: eBPF congestion controls need \
                      CAP_PERFMON, which this process lacks";
        assert!(text.contains(reason), "{text}");
        assert_eq!(text.matches("CAP_PERFMON, which").count(), 1, "{text}");
        assert!(!kinds(&machine).contains(&("hybla".to_owned(), Kind::Missing)));
    }

    #[test]
    fn machines_read_kinds_as_words() {
        let machine = machine(&["reno"], &["steady"], &[], None);
        let json = serde_json::to_value(Listing::from_catalogue(&machine)).expect("JSON");
        let of = |name: &str| {
            let entries = json.as_array().expect("a list").iter();
            let mut entries = entries.filter(|entry| entry["name"] == name);
            entries.next().expect("listed").clone()
        };
        assert_eq!(of("reno")["kind"], "kernel");
        assert_eq!(of("hybla")["kind"], "ebpf");
        assert_eq!(of("hybla").get("registered_as"), None);
        assert_eq!(of("steady")["kind"], "taken");
        assert_eq!(of("steady")["registered_as"], "steady_bpf");
    }
}
