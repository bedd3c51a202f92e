//! Rules of pepd's table as pepd has left them, to notice changes by other programs: of single
//! rules, or of the whole table by restoring a saved rule set.

use std::{collections::BTreeMap, io};

use parking_lot::Mutex;

use super::ask::{generation, rules_of, table_handle};

/// Rules of a table, as last changed by pepd; none if the kernel could not list them.
#[derive(Debug, Default)]
pub(crate) struct Installed(Mutex<Option<Content>>);

/// A table's number, which a table of the same name that replaces it does not have, and the number
/// of rules in each chain.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Content {
    handle: u64,
    rules: BTreeMap<String, usize>,
}

impl Content {
    /// Reads the table; `None` if it does not exist, or changes meanwhile.
    fn read(table: &str) -> io::Result<Option<Self>> {
        let before = generation()?;
        let Some(handle) = table_handle(table)? else {
            return Ok(None);
        };
        let rules = rules_of(table)?;
        Ok((generation()? == before).then_some(Self { handle, rules }))
    }

    /// Returns the number of rules that were added to, or removed from, the chains of `self`; all
    /// rules if another table has replaced it.
    fn changes(&self, now: &Self) -> usize {
        if self.handle != now.handle {
            return now.rules.values().sum::<usize>().max(1);
        }
        let changes = self.rules.iter().map(|(chain, rules)| {
            let now = now.rules.get(chain).copied().unwrap_or(0);
            now.abs_diff(*rules)
        });
        changes.sum()
    }
}

impl Installed {
    /// Remembers the whole table, which pepd has just installed.
    pub(crate) fn remember(&self, table: &str) {
        *self.0.lock() = Content::read(table).unwrap_or_default();
    }

    /// Remembers these chains, which pepd has just changed.
    pub(crate) fn remember_chains<'a>(&self, table: &str, chains: impl Iterator<Item = &'a str>) {
        let mut known = self.0.lock();
        let Some(content) = known.as_mut() else {
            return;
        };
        let Ok(Some(now)) = Content::read(table) else {
            *known = None;
            return;
        };
        for chain in chains {
            let rules = now.rules.get(chain).copied().unwrap_or(0);
            content.rules.insert(chain.to_owned(), rules);
        }
    }

    /// Returns the number of rules that other programs have changed since, as far as known; `None`
    /// if the table does not exist.
    ///
    /// # Errors
    /// When no descriptors or memory are left, or the kernel's answer is malformed.
    pub(crate) fn changes(&self, table: &str) -> io::Result<Option<usize>> {
        if table_handle(table)?.is_none() {
            return Ok(None);
        }
        let known = self.0.lock();
        let now = known.as_ref().map(|_| Content::read(table)).transpose()?;
        let changes = known.as_ref().zip(now.flatten());
        Ok(Some(changes.map_or(0, |(known, now)| known.changes(&now))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content(handle: u64, rules: &[(&str, usize)]) -> Content {
        let rules = rules
            .iter()
            .map(|(chain, rules)| ((*chain).to_owned(), *rules));
        Content {
            handle,
            rules: rules.collect(),
        }
    }

    #[test]
    fn rules_that_others_add_or_remove_are_counted_and_a_table_that_replaces_another() {
        let known = content(1, &[("sites", 3), ("to_hosts", 2), ("gate", 0)]);
        let changes = |handle, rules: &[(&str, usize)]| known.changes(&content(handle, rules));
        assert_eq!(changes(1, &[("sites", 3), ("to_hosts", 2)]), 0);
        assert_eq!(changes(1, &[("sites", 3)]), 2);
        assert_eq!(changes(1, &[("sites", 6), ("to_hosts", 4), ("gate", 1)]), 6);
        assert_eq!(
            changes(1, &[("sites", 3), ("to_hosts", 2), ("others", 5)]),
            0
        );
        assert_eq!(changes(2, &[("sites", 3), ("to_hosts", 2)]), 5);
        assert_eq!(changes(2, &[]), 1);
    }
}
