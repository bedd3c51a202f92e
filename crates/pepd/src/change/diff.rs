//! Difference of two configurations, by key.

use std::collections::{BTreeMap, BTreeSet};

use pepd_api::change::Change;
use toml::{Table, Value};

/// Returns the changes between two texts, by key. Comments and the order of keys do not count; the
/// order of sites does.
///
/// # Errors
/// When one of them is not TOML.
pub fn diff(old: &str, new: &str) -> Result<Vec<Change>, toml::de::Error> {
    let (old, new) = (flat(&old.parse()?), flat(&new.parse()?));
    let keys: BTreeSet<_> = old.keys().chain(new.keys()).collect();
    let changes = keys.into_iter().filter_map(|key| {
        let (old, new) = (old.get(key).cloned(), new.get(key).cloned());
        let key = key.clone();
        (old != new).then_some(Change { key, old, new })
    });
    Ok(changes.collect())
}

fn flat(table: &Table) -> BTreeMap<String, String> {
    let mut keys = BTreeMap::new();
    for (key, value) in table {
        flatten(key, value, &mut keys);
    }
    keys
}

fn flatten(key: &str, value: &Value, keys: &mut BTreeMap<String, String>) {
    match value {
        Value::Table(table) if !table.is_empty() => {
            for (part, value) in table {
                flatten(&format!("{key}.{part}"), value, keys);
            }
        }
        Value::Array(all) => match named(all) {
            Some(all) => {
                // The first site that matches a flow takes it.
                let order: Vec<_> = all.iter().map(|(name, _)| *name).collect();
                keys.insert(format!("{key} (in this order)"), order.join(", "));
                for (name, table) in all {
                    for (part, value) in table.iter().filter(|(part, _)| *part != "name") {
                        flatten(&format!("{key}.{name}.{part}"), value, keys);
                    }
                }
            }
            None => drop(keys.insert(key.to_owned(), value.to_string())),
        },
        _ => drop(keys.insert(key.to_owned(), value.to_string())),
    }
}

/// Returns the tables with their names, if each name is unique.
fn named(all: &[Value]) -> Option<Vec<(&str, &Table)>> {
    let named = all.iter().map(|value| {
        let table = value.as_table()?;
        Some((table.get("name")?.as_str()?, table))
    });
    let named: Vec<_> = named.collect::<Option<_>>()?;
    let names: BTreeSet<_> = named.iter().map(|(name, _)| name).collect();
    (!named.is_empty() && names.len() == named.len()).then_some(named)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines_of(old: &str, new: &str) -> Vec<String> {
        let changes = diff(old, new).unwrap();
        let word = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
        let reported = changes.into_iter();
        reported
            .map(|change| {
                let (old, new) = (word(change.old), word(change.new));
                format!("{}: {old} > {new}", change.key)
            })
            .collect()
    }

    #[test]
    fn changed_keys_are_listed_with_dots_and_others_are_not() {
        let old = "[intercept]\nlan = [\"a\"]\nlisten_port = 1 # one\n[limits]\nflows = 5\n";
        let new = "limits.held = 7\n[intercept]\nlisten_port = 1\nlan = [\"a\", \"b\"]\n";
        assert_eq!(
            lines_of(old, new),
            [
                "intercept.lan: [\"a\"] > [\"a\", \"b\"]",
                "limits.flows: 5 > -",
                "limits.held: - > 7",
            ]
        );
        assert!(lines_of(old, &format!("# another comment\n{old}\n")).is_empty());
    }

    #[test]
    fn sites_are_compared_by_name_and_their_order_counts() {
        let mail = "[[site]]\nname = \"mail\"\nports = [25]\n";
        let web = "[[site]]\nname = \"web\"\nmode = \"direct\"\n";
        let slow = "[[site]]\nname = \"mail\"\nports = [25, 587]\n";
        assert_eq!(
            lines_of(&format!("{mail}{web}"), &format!("{web}{mail}")),
            ["site (in this order): mail, web > web, mail"]
        );
        assert_eq!(
            lines_of(&format!("{mail}{web}"), &format!("{slow}{web}")),
            ["site.mail.ports: [25] > [25, 587]"]
        );
        assert_eq!(
            lines_of(&format!("{mail}{web}"), mail),
            [
                "site (in this order): mail, web > mail",
                "site.web.mode: \"direct\" > -"
            ]
        );
    }

    #[test]
    fn what_is_no_toml_is_an_error() {
        assert!(diff("a = 1", "a = ").is_err());
    }
}
