//! Rules of pepd's table as pepd has left them, to notice changes by other programs: of single
//! rules, or of the whole table by restoring a saved rule set.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
};

use parking_lot::Mutex;

use super::ask::{generation, rules_of, table_handle};

/// Readings of a table before it is left for later: other programs may change theirs just then.
const READINGS: usize = 8;

/// Rules of a table, as last changed by pepd; none if the kernel could not list them. They are then
/// learnt at the next look.
#[derive(Debug, Default)]
pub(crate) struct Installed(Mutex<Option<Known>>);

/// A table as pepd has left it.
#[derive(Debug)]
struct Known {
    content: Content,
    /// Chains that pepd has changed since, and that the kernel could not list.
    unread: BTreeSet<String>,
}

/// A table's number, which a table of the same name that replaces it does not have, and the number
/// of rules in each chain.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Content {
    handle: u64,
    rules: BTreeMap<String, usize>,
}

impl Content {
    /// Reads the table; `None` if it does not exist, or changes in each reading.
    fn read(table: &str) -> io::Result<Option<Self>> {
        for _ in 0..READINGS {
            let before = generation()?;
            let Some(handle) = table_handle(table)? else {
                return Ok(None);
            };
            let rules = rules_of(table)?;
            if generation()? == before {
                return Ok(Some(Self { handle, rules }));
            }
        }
        Ok(None)
    }
}

impl Known {
    fn new(content: Content) -> Self {
        Self {
            content,
            unread: BTreeSet::new(),
        }
    }

    /// Takes over chains that pepd has changed.
    fn learn(&mut self, now: &Content) {
        for chain in std::mem::take(&mut self.unread) {
            let rules = now.rules.get(&chain).copied().unwrap_or(0);
            self.content.rules.insert(chain, rules);
        }
    }

    /// Returns the number of rules that were added to, or removed from, the known chains; all rules
    /// if another table has replaced this one.
    fn changes(&mut self, now: &Content) -> usize {
        if self.content.handle != now.handle {
            return now.rules.values().sum::<usize>().max(1);
        }
        self.learn(now);
        let changes = self.content.rules.iter().map(|(chain, rules)| {
            let now = now.rules.get(chain).copied().unwrap_or(0);
            now.abs_diff(*rules)
        });
        changes.sum()
    }
}

impl Installed {
    /// Remembers the whole table, which pepd has just installed.
    pub(crate) fn remember(&self, table: &str) {
        *self.0.lock() = Content::read(table).unwrap_or_default().map(Known::new);
    }

    /// Remembers these chains, which pepd has just changed.
    pub(crate) fn remember_chains<'a>(&self, table: &str, chains: impl Iterator<Item = &'a str>) {
        let mut known = self.0.lock();
        let Some(known) = known.as_mut() else {
            return;
        };
        known.unread.extend(chains.map(str::to_owned));
        if let Ok(Some(now)) = Content::read(table) {
            known.learn(&now);
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
        let mut state = self.0.lock();
        let Some(known) = state.as_mut() else {
            *state = Content::read(table).unwrap_or_default().map(Known::new);
            return Ok(Some(0));
        };
        let now = Content::read(table)?;
        Ok(Some(now.map_or(0, |now| known.changes(&now))))
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
        let mut known = Known::new(known);
        let mut changes = |handle, rules: &[(&str, usize)]| known.changes(&content(handle, rules));
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

    #[test]
    fn chains_that_could_not_be_read_are_learnt_at_the_next_look_and_the_others_kept() {
        let mut known = Known::new(content(1, &[("sites", 3), ("gate", 0)]));
        known.unread.insert("gate".to_owned());
        let later = content(1, &[("sites", 4), ("gate", 1)]);
        assert_eq!(known.changes(&later), 1, "of the chain that was known");
        let changed = content(1, &[("sites", 3), ("gate", 0)]);
        assert_eq!(known.changes(&changed), 1, "of the chain learnt since");
    }
}
