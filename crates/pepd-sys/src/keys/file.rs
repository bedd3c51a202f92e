//! Files with a key.

use std::{
    env,
    ffi::OsString,
    fs::{self, File, OpenOptions},
    io::{self, Read as _, Write as _},
    os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

use pep_core::key::{KeyError, SecretKey};

/// Why a key file cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum KeyFileError {
    /// It is there already.
    #[error("{}: is there already; --force replaces it, and the key in it is then gone", .0.display())]
    Exists(PathBuf),
    /// It cannot be opened or read.
    #[error("{}: cannot be read: {err}", path.display())]
    Unreadable {
        /// Which file.
        path: PathBuf,
        /// Why.
        err: io::Error,
    },
    /// It cannot be made or written.
    #[error("{}: cannot be written: {err}", path.display())]
    Unwritable {
        /// Which file.
        path: PathBuf,
        /// Why.
        err: io::Error,
    },
    /// It has no key in it.
    #[error("{}: {err}", path.display())]
    NoKey {
        /// Which file.
        path: PathBuf,
        /// What it has instead.
        err: KeyError,
    },
}

/// What the names of credentials begin with, as our unit has it.
const CREDENTIALS: &str = "pepd_";

/// No key file is longer.
const LENGTH_MAX: u64 = 64 << 10;

/// The key in a file.
///
/// # Errors
/// When it cannot be read, or is not one line of base64 besides comments.
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
    let mut bytes = Vec::new();
    let read = file.take(LENGTH_MAX + 1).read_to_end(&mut bytes);
    if read.map_err(unreadable)? as u64 > LENGTH_MAX {
        return Err(no_key(KeyError::Form));
    }
    let text = String::from_utf8(bytes).map_err(|_| no_key(KeyError::Form))?;
    only_line(&text).parse().map_err(no_key)
}

/// What systemd has read for us of a file that this user may not read: our unit names the folder of the configuration, so that only root
/// has to own what is in it (`LoadCredential=`, systemd.exec(5)).
fn credential(path: &Path) -> Option<File> {
    let folder = env::var_os("CREDENTIALS_DIRECTORY")?;
    let mut name = OsString::from(CREDENTIALS);
    name.push(path.file_name()?);
    File::open(Path::new(&folder).join(name)).ok()
}

/// The only line that counts; nothing where there are several.
fn only_line(text: &str) -> &str {
    let lines = text.lines().map(str::trim);
    let mut lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
    match (lines.next(), lines.next()) {
        (Some(line), None) => line,
        _ => "",
    }
}

/// Whether others than its owner may read or write the file. A file that is not there is not.
pub fn is_open_to_others(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|metadata| metadata.permissions().mode() & 0o077 != 0)
}

/// Writes a key to a file that only its owner may read. With `force` an old one is replaced, at once or not
/// at all.
///
/// # Errors
/// When the file is there and `force` is not given, or when it cannot be written.
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

/// A name in the same folder that nobody else has.
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
    let written = writeln!(file, "{}", key.reveal()).and_then(|()| file.sync_all());
    written.inspect_err(|_| {
        let _ = fs::remove_file(path);
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::generate;

    #[test]
    fn a_key_is_written_for_its_owner_only_and_read_again() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a.key");
        let key = generate().expect("randomness");
        write(&path, &key, false).expect("writable");
        assert_eq!(read(&path).expect("readable"), key);
        assert!(!is_open_to_others(&path));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).expect("ours");
        assert!(is_open_to_others(&path));
    }

    #[test]
    fn a_key_is_replaced_only_when_that_is_asked_for() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a.key");
        let (first, second) = (generate().expect("random"), generate().expect("random"));
        write(&path, &first, false).expect("writable");
        let err = write(&path, &second, false).expect_err("is there");
        assert!(matches!(err, KeyFileError::Exists(_)), "{err}");
        assert_eq!(read(&path).expect("readable"), first);
        write(&path, &second, true).expect("writable");
        assert_eq!(read(&path).expect("readable"), second);
        let files = fs::read_dir(folder.path()).expect("readable").count();
        assert_eq!(files, 1, "nothing is left beside it");
    }

    #[test]
    fn comments_do_not_count_and_anything_else_is_no_key() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a.key");
        let key = generate().expect("random");
        let line = key.reveal();
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
