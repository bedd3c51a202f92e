//! Mistakes in a scenario, with their places.

use std::{fmt, io, ops::Range, path::PathBuf};

/// Failure to load a scenario.
#[derive(Debug, thiserror::Error)]
pub enum ScenarioError {
    /// Unreadable file.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// Cause.
        #[source]
        source: io::Error,
    },
    /// File with mistakes.
    #[error("{0}")]
    Mistakes(Mistakes),
}

/// All mistakes found in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mistakes {
    /// Path of the file.
    pub path: PathBuf,
    /// Mistakes; never empty.
    pub list: Vec<Mistake>,
}

/// Mistake in a scenario.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mistake {
    /// Line number, from 1.
    pub line: usize,
    /// Dotted key.
    pub key: String,
    /// Problem, and the accepted form.
    pub message: String,
}

impl fmt::Display for Mistakes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, Mistake { line, key, message }) in self.list.iter().enumerate() {
            let separator = if index == 0 { "" } else { "\n" };
            write!(
                f,
                "{separator}{}:{line}: {key}: {message}",
                self.path.display()
            )?;
        }
        Ok(())
    }
}

/// Collector of mistakes while a scenario is checked.
#[derive(Debug)]
pub(super) struct Findings<'a> {
    text: &'a str,
    list: Vec<Mistake>,
}

impl<'a> Findings<'a> {
    pub fn new(text: &'a str) -> Self {
        Self {
            text,
            list: Vec::new(),
        }
    }

    /// Records a mistake at a place in the text.
    pub fn add(&mut self, span: Range<usize>, key: impl Into<String>, message: impl fmt::Display) {
        let line = line_of(self.text, span.start);
        self.list.push(Mistake {
            line,
            key: key.into(),
            message: message.to_string(),
        });
    }

    /// Returns the value, or records the error.
    pub fn take<T>(
        &mut self,
        span: Range<usize>,
        key: &str,
        value: Result<T, impl fmt::Display>,
    ) -> Option<T> {
        value.map_err(|err| self.add(span, key, err)).ok()
    }

    pub fn into_list(self) -> Vec<Mistake> {
        let mut list = self.list;
        list.sort_by_key(|mistake| mistake.line);
        list
    }
}

/// Converts an error of the TOML reader into a mistake, with its key.
pub(super) fn syntax(text: &str, err: &toml::de::Error) -> Mistake {
    let span = err.span().unwrap_or(0..0);
    let line_start = text[..span.start]
        .rfind('\n')
        .map_or(0, |newline| newline + 1);
    let line = text[line_start..].lines().next().unwrap_or("");
    let place = line.split('=').next().unwrap_or("");
    let place = place.trim().trim_matches(['[', ']']);
    let message = err.message().trim_end().replace('\n', "; ");
    // Use the words of TOML instead of those of the reader.
    let message = message
        .replace(
            "expected a sequence",
            "expected a list in brackets, such as [1, 2]",
        )
        .replace("expected a map", "expected a table, such as { key = 1 }");
    let missing = message.strip_prefix("missing field `");
    let (key, message) = match missing.and_then(|rest| rest.split('`').next()) {
        // For a missing field, the span is that of its table or of the whole text.
        Some(field) if span == (0..text.len()) => (field.to_owned(), "is missing".to_owned()),
        Some(field) => (format!("{place}.{field}"), "is missing".to_owned()),
        None if place.is_empty() => ("(file)".to_owned(), message),
        None => (place.to_owned(), message),
    };
    Mistake {
        line: line_of(text, span.start),
        key,
        message,
    }
}

fn line_of(text: &str, offset: usize) -> usize {
    text[..offset.min(text.len())].matches('\n').count() + 1
}
