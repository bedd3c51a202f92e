//! `pepd cc list`: every control there is, or could be.

use std::fmt;

use bpf_cc::{Control, free_name};
use serde::Serialize;

use super::{Catalogue, about::about};

/// Of which kind a control is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// The kernel has it.
    Kernel,
    /// The kernel has a module for it, which is not loaded.
    Module,
    /// pepd loads it as an eBPF program where a site names it.
    Ebpf,
    /// The same under another name: a program of another process has this one.
    Taken,
    /// A program of another process, which pepd does not know.
    Foreign,
    /// It is one of pepd's, which cannot be loaded.
    Missing,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Kernel => "kernel",
            Self::Module => "kernel module",
            Self::Ebpf => "eBPF",
            Self::Taken => "eBPF, name taken",
            Self::Foreign => "another's eBPF",
            Self::Missing => "missing",
        })
    }
}

/// One control.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Entry {
    /// Its name in configurations.
    pub name: String,
    /// Of which kind it is.
    pub kind: Kind,
    /// What it is.
    pub about: &'static str,
    /// The name that its sockets would show, where that is another.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub registered_as: Option<String>,
    /// Why it is missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

impl Entry {
    fn has_note(&self) -> bool {
        self.registered_as.is_some() || self.why.is_some()
    }
}

/// All of them, to be printed as a table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Listing(pub Vec<Entry>);

impl Listing {
    /// What there is on a machine: the kernel's, ours, and those of others.
    pub fn of(catalogue: &Catalogue) -> Self {
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
                entries.push(plain(name, Kind::Foreign));
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
        writeln!(f, "{:<15} {:<16} what it is", "name", "from")?;
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
    /// What a table has no room for, a line each.
    fn notes(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for entry in &self.0 {
            if let Some(registered_as) = &entry.registered_as {
                let name = &entry.name;
                writeln!(
                    f,
                    "{name}: another process has the name; pepd's own would be `{registered_as}`"
                )?;
            }
        }
        let mut told: Vec<&str> = Vec::new();
        for why in self.0.iter().filter_map(|entry| entry.why.as_deref()) {
            if !told.contains(&why) {
                told.push(why);
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
        let entries = Listing::of(catalogue).0.into_iter();
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
            ("hybla_bpf", Kind::Foreign),
            ("theirs", Kind::Foreign),
        ];
        let expected: Vec<_> = expected.map(|(name, kind)| (name.to_owned(), kind)).into();
        assert_eq!(kinds(&machine), expected);
        let text = Listing::of(&machine).to_string();
        let note = "hybla: another process has the name; pepd's own would be `hybla_bpf2`";
        assert!(text.contains(note), "{text}");
    }

    #[test]
    fn what_is_missing_has_its_reason_once() {
        let machine = machine(&["reno"], &[], &["hybla"], Some(no_perfmon()));
        let listing = Listing::of(&machine);
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
        let json = serde_json::to_value(Listing::of(&machine)).expect("JSON");
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
