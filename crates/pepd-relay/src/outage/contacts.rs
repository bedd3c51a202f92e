//! Contact plan file.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::SystemTime,
};

use pep_core::outage::Contacts;
use units::contacts::{Plan, PlanError};

/// Maximum size: ten thousand contacts.
const LENGTH_MAX: u64 = 1 << 20;

/// Reason why a plan is rejected.
#[derive(Debug, thiserror::Error)]
pub enum ContactsError {
    /// The file cannot be read.
    #[error("{0}: cannot read the contact plan: {1}")]
    Unreadable(PathBuf, io::Error),
    /// Too long.
    #[error("{0}: contact plan is longer than 1 MiB; remove past contacts")]
    TooLong(PathBuf),
    /// Syntax error in the plan.
    #[error("{0}: {1}")]
    Invalid(PathBuf, PlanError),
    /// Relative times without an epoch.
    #[error(
        "{0}: contact plan has relative times but no reference time; expected a first line \
         `@ yyyy/mm/dd-hh:mm:ss` (UTC)"
    )]
    NoReference(PathBuf),
}

/// Reads a plan.
///
/// # Errors
/// Fails if the file cannot be read, or is no valid plan.
pub fn read(path: &Path) -> Result<Contacts, ContactsError> {
    let unreadable = |err| ContactsError::Unreadable(path.to_owned(), err);
    if fs::metadata(path).map_err(unreadable)?.len() > LENGTH_MAX {
        return Err(ContactsError::TooLong(path.to_owned()));
    }
    let text = fs::read_to_string(path).map_err(unreadable)?;
    let plan = Plan::parse(&text).map_err(|err| ContactsError::Invalid(path.to_owned(), err))?;
    Contacts::new(&plan).ok_or_else(|| ContactsError::NoReference(path.to_owned()))
}

pub(super) fn read_or_warn(path: &Path) -> Option<Contacts> {
    let contacts = read(path);
    let warn = |err: &ContactsError| tracing::warn!(error = %err, "contact plan ignored");
    contacts.inspect_err(warn).ok()
}

/// Contact plan that may be rewritten at any time.
#[derive(Debug)]
pub(super) struct ContactsFile {
    path: PathBuf,
    seen: Option<SystemTime>,
}

impl ContactsFile {
    /// Notes the state of a file that has just been read.
    pub(super) fn new(path: PathBuf) -> Self {
        let seen = modified(&path);
        Self { path, seen }
    }

    /// Returns the plan if the file has changed. An unreadable file is logged once, and the last
    /// plan stays in force.
    pub(super) fn changed(&mut self) -> Option<Contacts> {
        let now = modified(&self.path);
        if now == self.seen || now.is_none() {
            return None;
        }
        self.seen = now;
        let contacts = read_or_warn(&self.path)?;
        tracing::info!(path = %self.path.display(), "contact plan reloaded");
        Some(contacts)
    }
}

fn modified(path: &Path) -> Option<SystemTime> {
    fs::metadata(path).and_then(|data| data.modified()).ok()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_plan_is_read_again_when_it_is_written_and_errors_say_what_to_do() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("plan");
        assert!(matches!(read(&path), Err(ContactsError::Unreadable(..))));
        fs::write(&path, "10,20\n").unwrap();
        let err = read(&path).unwrap_err().to_string();
        assert!(err.contains("yyyy/mm/dd"), "{err}");
        let mut file = ContactsFile::new(path.clone());
        assert_eq!(file.changed(), None);
        fs::write(&path, "@ 1970/01/01-00:00:01\n10,20\n").unwrap();
        let later = SystemTime::now() + Duration::from_secs(5);
        fs::File::options()
            .append(true)
            .open(&path)
            .unwrap()
            .set_modified(later)
            .unwrap();
        let contacts = file.changed().expect("a changed plan");
        assert_eq!(contacts.at(Duration::from_secs(12)), Some(true));
        assert_eq!(file.changed(), None);
    }
}
