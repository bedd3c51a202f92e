//! Link options in a scenario, set key by key so that mistakes have their line.

use std::path::Path;

use super::{error::Findings, raw::Table};
use crate::link::{LinkOptions, OptionError, PathOptions};

/// Reads a table of link options.
pub(super) fn options(
    table: &Table<toml::Value>,
    name: &str,
    findings: &mut Findings<'_>,
) -> LinkOptions {
    let mut options = LinkOptions::default();
    for (key, value) in table {
        let dotted = format!("{name}.{}", key.get_ref());
        let set = set(&mut options, key.get_ref(), value.get_ref());
        findings.take(value.span(), &dotted, set);
    }
    options
}

/// Sets one option: of both directions, or of one by `ab.KEY`, `ba.KEY` or a table. A text `"AB |
/// BA"` has a value for each direction.
pub(super) fn set(options: &mut LinkOptions, key: &str, value: &toml::Value) -> Result<(), String> {
    try_set(options, key, value).map_err(|err| match err {
        // The key is already the last part of the key before this message.
        OptionError::Value { message, .. } => message,
        other => other.to_string(),
    })
}

fn try_set(options: &mut LinkOptions, key: &str, value: &toml::Value) -> Result<(), OptionError> {
    let (direction, rest) = match key.split_once('.') {
        Some((direction, rest)) => (direction, Some(rest)),
        None => (key, None),
    };
    let path = match direction {
        "ab" => options.ab.get_or_insert_default(),
        "ba" => options.ba.get_or_insert_default(),
        _ => return set_both(options, key, &text(value)),
    };
    match (rest, value) {
        (Some(rest), _) => path.set(rest, &text(value)),
        (None, toml::Value::Table(table)) => set_all(path, table),
        (None, _) => Err(OptionError::NoKey { text: text(value) }),
    }
}

fn set_both(options: &mut LinkOptions, key: &str, text: &str) -> Result<(), OptionError> {
    let Some((ab, ba)) = text.split_once('|') else {
        return options.both.set(key, text);
    };
    options.ab.get_or_insert_default().set(key, ab.trim())?;
    options.ba.get_or_insert_default().set(key, ba.trim())
}

fn set_all(path: &mut PathOptions, table: &toml::Table) -> Result<(), OptionError> {
    table
        .iter()
        .try_for_each(|(key, value)| path.set(key, &text(value)))
}

/// Converts a value to text; a table, such as `wink = { p = 0.4, i = "100ms" }`, becomes a list.
pub(super) fn text(value: &toml::Value) -> String {
    match value {
        toml::Value::String(text) => text.clone(),
        toml::Value::Table(table) => {
            let pairs: Vec<_> = table
                .iter()
                .map(|(k, v)| format!("{k}={}", text(v)))
                .collect();
            pairs.join(",")
        }
        other => other.to_string(),
    }
}

/// Checks the trace files named by options, relative to the scenario's directory.
pub(super) fn check_files(options: &LinkOptions, scenario: &Path) -> Result<(), OptionError> {
    options
        .resolve(&mut |path| std::fs::read_to_string(beside(scenario, path)))
        .map(drop)
}

/// Path relative to the scenario's directory.
pub(super) fn beside(scenario: &Path, path: &Path) -> std::path::PathBuf {
    scenario.parent().unwrap_or(Path::new("")).join(path)
}
