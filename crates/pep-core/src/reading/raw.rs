//! Raw layer: a TOML table whose keys are taken one by one; the remaining keys are unknown.
//!
//! Serde stops at the first error; an operator wants all of them, each with its line.

use std::borrow::Cow;

use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use super::{findings::Findings, renamed, values::Reading};

/// Keys that operators look for in the wrong section, by the section that has them.
///
/// For a key that several sections have, the first is named.
const HOMES: [(&str, &[&str]); 5] = [
    (
        "[link]",
        &[
            "interface",
            "rate",
            "rate_down",
            "rtt",
            "contacts",
            "gateway",
            "gateway_every",
            "other_routes",
        ],
    ),
    (
        "[intercept]",
        &[
            "lan",
            "listen_port",
            "table",
            "mark",
            "mark_mask",
            "route_table",
            "rule_priority",
        ],
    ),
    (
        "[[site]]",
        &[
            "congestion",
            "congestion_lan",
            "link_leg",
            "mss",
            "pacing",
            "share",
            "while_down",
            "on_interception_loss",
        ],
    ),
    (
        "[timeouts]",
        &[
            "connect",
            "idle",
            "user_timeout",
            "rto_max",
            "rto_min",
            "keepalive",
            "orphan",
            "drain",
        ],
    ),
    (
        "[limits]",
        &[
            "flows",
            "flows_per_host",
            "held",
            "memory",
            "ring_max",
            "descriptors",
        ],
    ),
];

type Entry<'a> = (&'a Spanned<Cow<'a, str>>, &'a Spanned<DeValue<'a>>);

/// One table of the file.
pub(crate) struct Section<'a> {
    path: String,
    table: Option<&'a DeTable<'a>>,
    known: Vec<&'static str>,
    findings: &'a Findings,
}

impl<'a> Section<'a> {
    /// The whole file.
    pub(crate) fn root(table: &'a DeTable<'a>, findings: &'a Findings) -> Self {
        Self {
            path: String::new(),
            table: Some(table),
            known: Vec::new(),
            findings,
        }
    }

    /// Returns the result of `read` for an absent section: every default.
    pub(crate) fn missing<T>(read: impl FnOnce(&mut Section<'_>) -> T) -> T {
        let findings = Findings::new("");
        read(&mut Section {
            path: String::new(),
            table: None,
            known: Vec::new(),
            findings: &findings,
        })
    }

    /// The dotted path of a key in this table.
    pub(crate) fn path_of(&self, key: &str) -> String {
        if self.path.is_empty() {
            key.to_owned()
        } else {
            format!("{}.{key}", self.path)
        }
    }

    /// Reports whether the file has this table.
    pub(crate) fn is_present(&self) -> bool {
        self.table.is_some()
    }

    /// Reports whether the file has this key, under its current or former name.
    pub(crate) fn has(&self, key: &str) -> bool {
        let former = renamed::former(&self.path, key);
        self.contains(key) || former.is_some_and(|former| self.contains(former))
    }

    fn contains(&self, key: &str) -> bool {
        self.table.is_some_and(|table| table.contains_key(key))
    }

    /// Reports an error at a key of this table.
    pub(crate) fn error(&self, key: &str, message: impl Into<String>) {
        self.findings.error(&self.path_of(key), message);
    }

    /// Reports a warning at a key of this table.
    pub(crate) fn warning(&self, key: &str, message: impl Into<String>) {
        self.findings.warning(&self.path_of(key), message);
    }

    /// Value of a key, if present and valid; reports an error otherwise.
    #[expect(
        clippy::needless_pass_by_value,
        reason = "a reading is made where it is used"
    )]
    pub(crate) fn read<R: Reading>(&mut self, key: &'static str, reading: R) -> Option<R::Value> {
        let value = self.take(key)?;
        self.read_value(&self.path_of(key), value, &reading)
    }

    /// As [`read`](Self::read), or else `default`.
    pub(crate) fn or<R: Reading>(
        &mut self,
        key: &'static str,
        reading: R,
        default: R::Value,
    ) -> R::Value {
        self.read(key, reading).unwrap_or(default)
    }

    /// As [`read`](Self::read); a missing key is an error.
    pub(crate) fn require<R: Reading>(
        &mut self,
        key: &'static str,
        reading: R,
    ) -> Option<R::Value> {
        if self.has(key) {
            return self.read(key, reading);
        }
        self.known.push(key);
        self.error(key, format!("missing; expected {}", reading.expected()));
        None
    }

    /// A list of values; a single value counts as a list of one.
    #[expect(
        clippy::needless_pass_by_value,
        reason = "a reading is made where it is used"
    )]
    pub(crate) fn list<R: Reading>(
        &mut self,
        key: &'static str,
        reading: R,
    ) -> Option<Vec<R::Value>> {
        let value = self.take(key)?;
        let path = self.path_of(key);
        let Some(items) = value.get_ref().as_array() else {
            return Some(Vec::from_iter(self.read_value(&path, value, &reading)));
        };
        let read_item = |(index, item): (usize, &'a Spanned<DeValue<'a>>)| {
            self.read_value(&format!("{path}[{}]", index + 1), item, &reading)
        };
        Some(items.iter().enumerate().filter_map(read_item).collect())
    }

    /// As [`list`](Self::list); a missing key is an error. Also returns whether every item was
    /// valid.
    pub(crate) fn require_list<R: Reading>(
        &mut self,
        key: &'static str,
        reading: R,
        expected: &str,
    ) -> Option<(Vec<R::Value>, bool)> {
        let errors = self.findings.count();
        let list = self.list(key, reading);
        if list.is_none() {
            self.error(key, format!("missing; expected {expected}"));
        }
        list.map(|items| (items, self.findings.count() == errors))
    }

    /// Table under a key; an empty one when missing or not a table.
    pub(crate) fn section(&mut self, key: &'static str) -> Section<'a> {
        let value = self.take(key);
        self.child(self.path_of(key), value)
    }

    /// Table under a key, which may also be `true` for an empty one; `None` where it is `false`,
    /// missing or neither.
    pub(crate) fn switched(&mut self, key: &'static str) -> Option<Section<'a>> {
        let value = self.take(key)?;
        match value.get_ref() {
            DeValue::Boolean(true) => Some(self.child(self.path_of(key), None)),
            DeValue::Boolean(false) => None,
            DeValue::Table(_) => Some(self.child(self.path_of(key), Some(value))),
            _ => {
                let found = kind(value);
                self.error(
                    key,
                    format!("expected true, false or a table, found {found}"),
                );
                None
            }
        }
    }

    /// Reports whether the key holds text. Does not take it.
    pub(crate) fn is_text(&self, key: &str) -> bool {
        let value = self.table.and_then(|table| table.get(key));
        value.is_some_and(|value| value.get_ref().is_str())
    }

    /// Tables of `[[key]]`.
    pub(crate) fn tables(&mut self, key: &'static str) -> Vec<Section<'a>> {
        let Some(value) = self.take(key) else {
            return Vec::new();
        };
        let Some(items) = value.get_ref().as_array() else {
            self.error(
                key,
                format!("expected tables `[[{key}]]`, found {}", kind(value)),
            );
            return Vec::new();
        };
        let items = items.iter().enumerate();
        items
            .map(|(index, item)| self.child(format!("{key}[{}]", index + 1), Some(item)))
            .collect()
    }

    /// Tables under a key, by the names in the file: `[key.NAME]`.
    pub(crate) fn named_tables(&mut self, key: &'static str) -> Vec<(String, Section<'a>)> {
        let parent = self.section(key);
        let entries = parent.table.into_iter().flatten();
        entries
            .map(|(name, value)| {
                let path = parent.path_of(name.get_ref());
                self.findings
                    .met(&path, self.findings.line_at(name.span().start));
                (name.get_ref().to_string(), parent.child(path, Some(value)))
            })
            .collect()
    }

    /// Returns the result of `read`, and reports all keys that it does not take.
    pub(crate) fn whole<T>(mut self, read: impl FnOnce(&mut Self) -> T) -> T {
        let taken = read(&mut self);
        self.finish();
        taken
    }

    /// Reports the keys that were not taken.
    pub(crate) fn finish(self) {
        for (key, _) in self.table.into_iter().flatten() {
            let name = key.get_ref().as_ref();
            let line = self.findings.line_at(key.span().start);
            if let Some(new) = renamed::present(&self.path, name) {
                if self.contains(new) {
                    let message = format!("is the former name of `{new}`, which is set too");
                    self.findings.error_at(line, &self.path_of(name), message);
                }
            } else if !self.known.contains(&name) {
                self.findings
                    .error_at(line, &self.path_of(name), self.unknown(name));
            }
        }
    }

    fn unknown(&self, name: &str) -> String {
        if let Some((home, _)) = HOMES.iter().find(|(_, keys)| keys.contains(&name)) {
            return format!("unknown key; `{name}` belongs to {home}");
        }
        match closest(name, self.known.iter().copied()) {
            Some(meant) => format!("unknown key; did you mean `{meant}`?"),
            None => format!("unknown key; accepted here: {}", self.known.join(", ")),
        }
    }

    fn take(&mut self, key: &'static str) -> Option<&'a Spanned<DeValue<'a>>> {
        self.known.push(key);
        let (name, value) = self
            .table?
            .get_key_value(key)
            .or_else(|| self.under_former_name(key))?;
        self.findings
            .met(&self.path_of(key), self.findings.line_at(name.span().start));
        Some(value)
    }

    /// Returns the key's value under its former name, and warns of that name.
    fn under_former_name(&self, key: &str) -> Option<Entry<'a>> {
        let former = renamed::former(&self.path, key)?;
        let (name, value) = self.table?.get_key_value(former)?;
        let line = self.findings.line_at(name.span().start);
        self.findings.met(&self.path_of(former), line);
        let message = format!(
            "is called `{key}` now, and the next release refuses the former name: \
             `pepd migrate --config FILE` prints the file with the present one"
        );
        self.warning(former, message);
        Some((name, value))
    }

    fn child(&self, path: String, value: Option<&'a Spanned<DeValue<'a>>>) -> Section<'a> {
        let table = value.and_then(|value| {
            let table = value.get_ref().as_table();
            if table.is_none() {
                self.findings
                    .error(&path, format!("expected a table, found {}", kind(value)));
            }
            table
        });
        if let Some(value) = value.filter(|_| path.ends_with(']')) {
            self.findings
                .met(&path, self.findings.line_at(value.span().start));
        }
        Section {
            path,
            table,
            known: Vec::new(),
            findings: self.findings,
        }
    }

    fn read_value<R: Reading>(
        &self,
        path: &str,
        value: &Spanned<DeValue<'_>>,
        reading: &R,
    ) -> Option<R::Value> {
        let line = self.findings.line_at(value.span().start);
        if path.ends_with(']') {
            self.findings.met(path, line);
        }
        let problem = |message: String| self.findings.error_at(line, path, message);
        reading.read(value.get_ref()).map_err(problem).ok()
    }
}

/// Type of a value, with its article.
pub(crate) fn kind(value: &Spanned<DeValue<'_>>) -> &'static str {
    super::values::kind(value.get_ref())
}

/// Returns the candidate that `name` most likely stands for, if one is near.
pub fn closest<'c>(name: &str, candidates: impl Iterator<Item = &'c str>) -> Option<&'c str> {
    let distance = |candidate: &str| strsim::damerau_levenshtein(name, candidate);
    // Up to a third of wrong letters, or one missing part, is a typo; more is another word.
    let near = |candidate: &str| {
        distance(candidate) <= (candidate.len() / 3).max(1)
            || (name.len() >= 3 && candidate.starts_with(name))
    };
    candidates
        .filter(|candidate| near(candidate))
        .min_by_key(|candidate| distance(candidate))
}

#[cfg(test)]
mod tests {
    use super::{HOMES, closest};
    use crate::config::parse;

    /// Errors for a file that has this key in this section.
    fn errors(section: &str, key: &str) -> Vec<String> {
        let errors = parse(&format!("{section}\n{key} = 2020-01-01\n")).expect_err("a date");
        errors.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_key_of_another_section_is_sent_home() {
        for (section, keys) in HOMES {
            for key in keys {
                let errors = errors(section, key);
                let is_unknown = errors.iter().any(|error| error.contains("unknown key"));
                assert!(!is_unknown, "{section} {key}: {errors:?}");
            }
        }
        for (section, key, home) in [
            ("[[site]]", "rate", "[link]"),
            ("[link]", "congestion", "[[site]]"),
            ("[timeouts]", "memory", "[limits]"),
        ] {
            let expected = format!("unknown key; `{key}` belongs to {home}");
            let errors = errors(section, key);
            assert!(
                errors.iter().any(|error| error.ends_with(&expected)),
                "{errors:?}"
            );
        }
    }

    #[test]
    fn slips_are_recognised_and_other_words_are_not() {
        let keys = ["congestion", "congestion_lan", "source", "mss"];
        let guess = |name| closest(name, keys.into_iter());
        assert_eq!(guess("congestoin"), Some("congestion"));
        assert_eq!(guess("congestion-lan"), Some("congestion_lan"));
        assert_eq!(guess("Source"), Some("source"));
        assert_eq!(guess("colour"), None);
    }
}
