//! Key files.

use std::{
    env,
    ffi::OsString,
    fs::{self, File, OpenOptions},
    io::{self, Read as _, Write as _},
    os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

use pep_core::key::{KeyError, SecretKey};
use zeroize::Zeroizing;

/// The reason why a key file cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum KeyFileError {
    /// The file exists already.
    #[error("{}: exists already; --force replaces it, and the old key is lost", .0.display())]
    Exists(PathBuf),
    /// The file cannot be opened or read.
    #[error("{}: cannot be read: {err}", path.display())]
    Unreadable {
        /// The path.
        path: PathBuf,
        /// The error.
        err: io::Error,
    },
    /// The file cannot be created or written.
    #[error("{}: cannot be written: {err}", path.display())]
    Unwritable {
        /// The path.
        path: PathBuf,
        /// The error.
        err: io::Error,
    },
    /// The file holds no key.
    #[error("{}: {err}", path.display())]
    NoKey {
        /// The path.
        path: PathBuf,
        /// The error in its content.
        err: KeyError,
    },
}

/// The prefix of credential names in pepd's systemd unit.
const CREDENTIALS: &str = "pepd_";

/// The maximum length of a key file.
const LENGTH_MAX: u64 = 64 << 10;

/// Reads the key of a file.
///
/// # Errors
/// When the file cannot be read, or is not one line of base64 besides comments.
pub fn read(path: &Path) -> Result<SecretKey, KeyFileError> {
    let unreadable = |err| KeyFileError::Unreadable {
        path: path.to_owned(),
        err,
    };
    let no_key = |err| KeyFileError::NoKey {
        path: path.to_owned(),
        err,
    };
    let file = match File::open(path) {
        Err(err) if err.kind() == io::ErrorKind::PermissionDenied => credential(path).ok_or(err),
        opened => opened,
    };
    let file = file.map_err(unreadable)?;
    let mut bytes = Zeroizing::new(Vec::new());
    let read = file.take(LENGTH_MAX + 1).read_to_end(&mut bytes);
    if read.map_err(unreadable)? as u64 > LENGTH_MAX {
        return Err(no_key(KeyError::Form));
    }
    let text = str::from_utf8(&bytes).map_err(|_| no_key(KeyError::Form))?;
    only_line(text).parse().map_err(no_key)
}

/// Opens systemd's copy of a file that this user may not read. The unit names the configuration
/// directory in `LoadCredential=` (systemd.exec(5)), so its files can belong to root.
fn credential(path: &Path) -> Option<File> {
    let directory = env::var_os("CREDENTIALS_DIRECTORY")?;
    let mut name = OsString::from(CREDENTIALS);
    name.push(path.file_name()?);
    File::open(Path::new(&directory).join(name)).ok()
}

/// Returns the only significant line; an empty one if there are several.
fn only_line(text: &str) -> &str {
    let lines = text.lines().map(str::trim);
    let mut lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
    match (lines.next(), lines.next()) {
        (Some(line), None) => line,
        _ => "",
    }
}

/// Returns whether users other than the owner may read or write the file; false if it is missing.
pub fn is_open_to_others(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|metadata| metadata.permissions().mode() & 0o077 != 0)
}

/// Writes a key to a file that only its owner may read. With `force` an existing file is replaced
/// atomically.
///
/// # Errors
/// When the file exists and `force` is not given, or when it cannot be written.
pub fn write(path: &Path, key: &SecretKey, force: bool) -> Result<(), KeyFileError> {
    if !force {
        return create(path, key).map_err(|err| match err.kind() {
            io::ErrorKind::AlreadyExists => KeyFileError::Exists(path.to_owned()),
            _ => unwritable(path, err),
        });
    }
    let beside = beside(path);
    create(&beside, key).map_err(|err| unwritable(&beside, err))?;
    fs::rename(&beside, path).map_err(|err| {
        let _ = fs::remove_file(&beside);
        unwritable(path, err)
    })
}

fn unwritable(path: &Path, err: io::Error) -> KeyFileError {
    KeyFileError::Unwritable {
        path: path.to_owned(),
        err,
    }
}

/// Returns an unused name in the same directory.
fn beside(path: &Path) -> PathBuf {
    let mut name = path
        .file_name()
        .map_or_else(OsString::new, std::ffi::OsStr::to_owned);
    name.push(format!(".new-{}", std::process::id()));
    path.with_file_name(name)
}

fn create(path: &Path, key: &SecretKey) -> io::Result<()> {
    let mut options = OpenOptions::new();
    let mut file = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    let written = writeln!(file, "{}", *key.reveal()).and_then(|()| file.sync_all());
    written.inspect_err(|_| {
        let _ = fs::remove_file(path);
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::generate;

    #[test]
    fn a_key_is_written_for_its_owner_only_and_read_back() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("a.key");
        let key = generate().expect("randomness");
        write(&path, &key, false).expect("writable");
        assert_eq!(read(&path).expect("readable"), key);
        assert!(!is_open_to_others(&path));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).expect("ours");
        assert!(is_open_to_others(&path));
    }

    #[test]
    fn a_key_is_replaced_only_when_that_is_asked_for() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("a.key");
        let (first, second) = (generate().expect("random"), generate().expect("random"));
        write(&path, &first, false).expect("writable");
        let err = write(&path, &second, false).expect_err("is there");
        assert!(matches!(err, KeyFileError::Exists(_)), "{err}");
        assert_eq!(read(&path).expect("readable"), first);
        write(&path, &second, true).expect("writable");
        assert_eq!(read(&path).expect("readable"), second);
        let files = fs::read_dir(directory.path()).expect("readable").count();
        assert_eq!(files, 1, "no temporary file is left");
    }

    #[test]
    fn comments_do_not_count_and_anything_else_is_no_key() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("a.key");
        let key = generate().expect("random");
        let line = key.reveal().to_string();
        fs::write(&path, format!("# the hub's\n\n  {line}  \n")).expect("writable");
        assert_eq!(read(&path).expect("a key"), key);
        for text in [
            String::new(),
            format!("{line}\n{line}\n"),
            "AAAA".to_owned(),
        ] {
            fs::write(&path, &text).expect("writable");
            let err = read(&path).expect_err("no key");
            assert!(matches!(err, KeyFileError::NoKey { .. }), "{err}");
        }
    }
}
