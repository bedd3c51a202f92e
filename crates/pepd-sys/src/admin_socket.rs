//! The admin socket as a file: its path, creation, replacement after a crash, removal, and choice
//! among several.

use std::{
    env, fs, io,
    os::unix::{
        fs::{FileTypeExt as _, MetadataExt as _},
        net::{UnixListener, UnixStream},
    },
    path::{Path, PathBuf},
    process,
};

use nix::sys::stat::{Mode, umask};
use pep_core::config::{AdminSocket, Config};

/// The default directory of sockets; systemd's RuntimeDirectory= takes precedence.
pub(crate) const DIRECTORY: &str = "/run/pepd";

/// Returns the socket path of a configuration; `None` if the socket is off.
pub fn path(config: &Config) -> Option<PathBuf> {
    match &config.admin.socket {
        AdminSocket::Off => None,
        AdminSocket::Path(path) => Some(path.clone()),
        AdminSocket::Auto => {
            let directories = env::var_os("RUNTIME_DIRECTORY");
            let by_systemd =
                directories.and_then(|directories| env::split_paths(&directories).next());
            let directory = by_systemd.filter(|directory| !directory.as_os_str().is_empty());
            let directory = directory.unwrap_or_else(|| DIRECTORY.into());
            Some(directory.join(format!("{}.sock", config.intercept.table.as_str())))
        }
    }
}

/// Returns the sockets of running pepds, including those of other users: in the default directory,
/// and `configured`.
pub fn answering(configured: Option<&Path>) -> Vec<PathBuf> {
    answering_in(Path::new(DIRECTORY), configured)
}

fn answering_in(directory: &Path, configured: Option<&Path>) -> Vec<PathBuf> {
    let there = fs::read_dir(directory).into_iter().flatten().flatten();
    let there = there.map(|entry| entry.path());
    let sockets = there.filter(|path| path.extension().is_some_and(|end| end == "sock"));
    let mut all: Vec<_> = sockets.chain(configured.map(Path::to_owned)).collect();
    all.sort();
    all.dedup();
    all.retain(|path| match UnixStream::connect(path) {
        Ok(_) => true,
        Err(err) => err.kind() == io::ErrorKind::PermissionDenied,
    });
    all
}

/// Returns the socket to use without `--socket`: that of the default configuration if a pepd
/// answers at it or at none, else the only one that answers.
///
/// # Errors
/// When several answer.
pub fn choose(
    configured: Option<PathBuf>,
    answering: Vec<PathBuf>,
) -> Result<PathBuf, SeveralSockets> {
    let default = || Path::new(DIRECTORY).join("pepd.sock");
    match (configured, &answering[..]) {
        (Some(configured), all) if all.is_empty() || all.contains(&configured) => Ok(configured),
        (None, []) => Ok(default()),
        (_, [only]) => Ok(only.clone()),
        _ => Err(SeveralSockets(answering)),
    }
}

/// Several pepds run on this machine, each with its own socket.
#[derive(Debug, thiserror::Error)]
#[error("several pepds run on this machine: choose one with `--socket`, from {}", listed(.0))]
pub struct SeveralSockets(Vec<PathBuf>);

fn listed(paths: &[PathBuf]) -> String {
    let paths = paths.iter().map(|path| path.display().to_string());
    paths.collect::<Vec<_>>().join(", ")
}

/// The reason why a socket cannot be created.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Another process answers at the path.
    #[error(
        "{0}: another pepd answers at this socket; give each its own (`admin.socket`, or \
         `intercept.table`, which names the default one)"
    )]
    InUse(PathBuf),
    /// The path exists and is no socket.
    #[error("{0}: exists and is no socket; remove it, or choose another path (`admin.socket`)")]
    NoSocket(PathBuf),
    /// The system call failed.
    #[error("{0}: {1}; choose another path (`admin.socket`), or \"off\"")]
    System(PathBuf, io::Error),
}

/// A socket file that is removed on drop, unless it was replaced.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    inode: u64,
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // A file of another process, such as a successor, stays.
        if fs::symlink_metadata(&self.path).is_ok_and(|data| data.ino() == self.inode) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Checks whether a socket could be created, as far as possible without creating it. A socket of a
/// running pepd is no error.
///
/// # Errors
/// When the path is no socket, or its directory is missing.
pub fn check(path: &Path) -> Result<(), BindError> {
    if fs::symlink_metadata(path).is_ok_and(|data| !data.file_type().is_socket()) {
        return Err(BindError::NoSocket(path.to_owned()));
    }
    // A bare file name is relative to the working directory.
    let there =
        |directory: &&Path| *directory != Path::new(DIRECTORY) && *directory != Path::new("");
    let directory = path.parent().filter(there);
    match directory.map(fs::metadata) {
        Some(Err(err)) => Err(BindError::System(path.to_owned(), err)),
        Some(Ok(data)) if !data.is_dir() => {
            let err = io::ErrorKind::NotADirectory.into();
            Err(BindError::System(path.to_owned(), err))
        }
        _ => Ok(()),
    }
}

/// Returns true for the socket of a killed process: it exists, but no process answers.
pub fn is_dead(path: &Path) -> bool {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|data| data.file_type().is_socket());
    let is_refused = |err: io::Error| err.kind() == io::ErrorKind::ConnectionRefused;
    is_socket && UnixStream::connect(path).is_err_and(is_refused)
}

/// Removes a socket at which no process answers; returns false if none exists.
///
/// # Errors
/// When the system call fails.
pub fn remove_dead(path: &Path) -> io::Result<bool> {
    let is_dead = is_dead(path);
    if is_dead {
        fs::remove_file(path)?;
    }
    Ok(is_dead)
}

/// Creates a socket with this mode, and replaces that of a process that has ended.
///
/// # Errors
/// When a process answers at the path, the path is no socket, or a system call fails.
pub fn bind(path: &Path, mode: u32) -> Result<(UnixListener, SocketFile), BindError> {
    let system = |err| BindError::System(path.to_owned(), err);
    match fs::symlink_metadata(path) {
        Ok(data) if !data.file_type().is_socket() => {
            return Err(BindError::NoSocket(path.to_owned()));
        }
        Ok(_) if UnixStream::connect(path).is_ok() => {
            return Err(BindError::InUse(path.to_owned()));
        }
        _ => {}
    }
    if let Some(directory) = path
        .parent()
        .filter(|directory| *directory == Path::new(DIRECTORY))
    {
        fs::create_dir_all(directory).map_err(system)?;
    }
    // Another name first: clients find the earlier socket or this one.
    let name = format!("{}.{}", path.display(), process::id());
    let fresh = Path::new(&name);
    let _ = fs::remove_file(fresh);
    // A running pepd may change no mode (privileges::calls). Other threads create files for the
    // owner only.
    let before = umask(Mode::from_bits_truncate(!mode & 0o777));
    let listener = UnixListener::bind(fresh);
    umask(before);
    let listener = listener.map_err(system)?;
    let placed = listener
        .set_nonblocking(true)
        .and_then(|()| fs::symlink_metadata(fresh))
        .and_then(|data| fs::rename(fresh, path).map(|()| data.ino()));
    match placed {
        Ok(inode) => Ok((
            listener,
            SocketFile {
                path: path.to_owned(),
                inode,
            },
        )),
        Err(err) => {
            let _ = fs::remove_file(fresh);
            Err(system(err))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_socket_has_its_mode_and_goes_with_its_owner() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.sock");
        let (_listener, file) = bind(&path, 0o600).unwrap();
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        drop(file);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    #[test]
    fn the_pepd_that_runs_is_found() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        let (dead, _file) = bind(&path("dead.sock"), 0o600).unwrap();
        drop(dead);
        fs::write(path("text"), "no socket").unwrap();
        assert!(answering_in(directory.path(), None).is_empty());
        let (_one, _file) = bind(&path("one.sock"), 0o600).unwrap();
        let one = [path("one.sock")];
        assert_eq!(answering_in(directory.path(), None), one);
        assert_eq!(answering_in(directory.path(), Some(&one[0])), one);
        let (_other, _file) = bind(&path("apart"), 0o600).unwrap();
        let both = answering_in(directory.path(), Some(&path("apart")));
        assert_eq!(both, [path("apart"), path("one.sock")]);
    }

    #[test]
    fn one_that_answers_is_meant_unless_there_are_several() {
        let [a, b] = ["a", "b"].map(PathBuf::from);
        let chosen = |configured: Option<&PathBuf>, answering: &[&PathBuf]| {
            let answering = answering.iter().map(|path| (*path).clone());
            choose(configured.cloned(), answering.collect()).ok()
        };
        assert_eq!(chosen(Some(&a), &[]).as_ref(), Some(&a));
        assert_eq!(chosen(Some(&a), &[&a, &b]).as_ref(), Some(&a));
        assert_eq!(chosen(Some(&a), &[&b]).as_ref(), Some(&b));
        assert_eq!(chosen(None, &[&b]).as_ref(), Some(&b));
        assert_eq!(chosen(None, &[&a, &b]), None);
        assert_eq!(chosen(None, &[]), Some("/run/pepd/pepd.sock".into()));
    }

    #[test]
    fn that_of_the_dead_is_replaced_and_that_of_the_living_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.sock");
        let (dead, file) = bind(&path, 0o600).unwrap();
        assert!(matches!(bind(&path, 0o600), Err(BindError::InUse(_))));
        drop(dead);
        let (_listener, _file) = bind(&path, 0o660).unwrap();
        drop(file);
        assert!(path.exists(), "it is the successor's");
        let other = directory.path().join("text");
        fs::write(&other, "precious").unwrap();
        assert!(matches!(bind(&other, 0o600), Err(BindError::NoSocket(_))));
        assert_eq!(fs::read_to_string(&other).unwrap(), "precious");
    }

    #[test]
    fn only_a_socket_of_the_dead_is_removed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.sock");
        assert!(!remove_dead(&path).unwrap(), "there is none");
        let (listener, _file) = bind(&path, 0o600).unwrap();
        assert!(!remove_dead(&path).unwrap() && path.exists(), "it answers");
        drop(listener);
        assert!(remove_dead(&path).unwrap() && !path.exists());
        fs::write(&path, "precious").unwrap();
        assert!(!remove_dead(&path).unwrap() && path.exists(), "no socket");
    }

    #[test]
    fn looking_finds_what_binding_would() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.sock");
        check(&path).unwrap();
        check(Path::new("of-a-name-alone.sock")).unwrap();
        let (_listener, _file) = bind(&path, 0o600).unwrap();
        check(&path).unwrap();
        let other = directory.path().join("text");
        fs::write(&other, "precious").unwrap();
        for wrong in [
            &other,
            &other.join("a.sock"),
            &directory.path().join("no/a.sock"),
        ] {
            let message = check(wrong).unwrap_err().to_string();
            assert!(
                message.contains("choose another path (`admin.socket`)"),
                "{message}"
            );
            assert!(bind(wrong, 0o600).is_err());
        }
    }
}
