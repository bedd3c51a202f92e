//! Collects errors while a file is read, so that pepd reports all of them at once.

use std::{cell::RefCell, collections::BTreeMap};

use super::{ConfigError, ConfigWarning};

/// Line, from 1, of each key of the file.
///
/// All values compare equal: lines are no part of the meaning of a configuration.
#[derive(Debug, Clone, Default)]
pub(crate) struct Lines(BTreeMap<String, usize>);

impl PartialEq for Lines {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Lines {
    /// Line of `key` or of the nearest enclosing key; 1 for the file as a whole.
    pub(crate) fn line_of(&self, mut key: &str) -> usize {
        loop {
            if let Some(line) = self.0.get(key) {
                return *line;
            }
            match key.rfind(['.', '[']) {
                Some(end) => key = &key[..end],
                None => return 1,
            }
        }
    }
}

/// Errors and warnings so far, and the line of every key met.
#[derive(Debug)]
pub(crate) struct Findings {
    line_starts: Vec<usize>,
    errors: RefCell<Vec<ConfigError>>,
    warnings: RefCell<Vec<ConfigWarning>>,
    lines: RefCell<Lines>,
}

impl Findings {
    pub(crate) fn new(text: &str) -> Self {
        let newlines = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n');
        Self {
            line_starts: newlines.map(|(offset, _)| offset + 1).collect(),
            errors: RefCell::default(),
            warnings: RefCell::default(),
            lines: RefCell::default(),
        }
    }

    /// Line, from 1, of a byte of the text.
    pub(crate) fn line_at(&self, offset: usize) -> usize {
        1 + self.line_starts.partition_point(|start| *start <= offset)
    }

    /// Records the line of a key for later findings.
    pub(crate) fn met(&self, key: &str, line: usize) {
        self.lines.borrow_mut().0.insert(key.to_owned(), line);
    }

    /// Line of a key, or of the nearest enclosing section in the file.
    pub(crate) fn line_of(&self, key: &str) -> usize {
        self.lines.borrow().line_of(key)
    }

    pub(crate) fn error_at(&self, line: usize, key: &str, message: impl Into<String>) {
        self.errors.borrow_mut().push(ConfigError {
            line,
            key: key.to_owned(),
            message: message.into(),
        });
    }

    pub(crate) fn error(&self, key: &str, message: impl Into<String>) {
        self.error_at(self.line_of(key), key, message);
    }

    pub(crate) fn warning(&self, key: &str, message: impl Into<String>) {
        self.warnings.borrow_mut().push(ConfigWarning {
            line: self.line_of(key),
            key: key.to_owned(),
            message: message.into(),
        });
    }

    /// Number of errors so far.
    pub(crate) fn count(&self) -> usize {
        self.errors.borrow().len()
    }

    /// Returns warnings and lines, or all errors in the order of the file.
    pub(crate) fn finish(self) -> Result<(Vec<ConfigWarning>, Lines), Vec<ConfigError>> {
        let mut errors = self.errors.into_inner();
        errors.sort_by_key(|error| error.line);
        if errors.is_empty() {
            Ok((self.warnings.into_inner(), self.lines.into_inner()))
        } else {
            Err(errors)
        }
    }
}
