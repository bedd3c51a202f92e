//! The admin socket as a file: where it is, made, replaced when its owner is dead, removed; and
//! which of several is meant.

use std::{
    env, fs, io,
    os::unix::{
        fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _},
        net::{UnixListener, UnixStream},
    },
    path::{Path, PathBuf},
    process,
};

use pep_core::config::{AdminSocket, Config};

/// Where sockets are by default, unless systemd says so.
const FOLDER: &str = "/run/pepd";

/// Where the socket of a configuration is; `None` where there is none.
pub fn path(config: &Config) -> Option<PathBuf> {
    match &config.admin.socket {
        AdminSocket::Off => None,
        AdminSocket::Path(path) => Some(path.clone()),
        AdminSocket::Auto => {
            let folders = env::var_os("RUNTIME_DIRECTORY");
            let by_systemd = folders.and_then(|folders| env::split_paths(&folders).next());
            let folder = by_systemd.filter(|folder| !folder.as_os_str().is_empty());
            let folder = folder.unwrap_or_else(|| FOLDER.into());
            Some(folder.join(format!("{}.sock", config.intercept.table.as_str())))
        }
    }
}

/// Sockets at which a pepd answers, or might answer another user: those at the usual place, and
/// `configured`.
pub fn answering(configured: Option<&Path>) -> Vec<PathBuf> {
    answering_in(Path::new(FOLDER), configured)
}

fn answering_in(folder: &Path, configured: Option<&Path>) -> Vec<PathBuf> {
    let there = fs::read_dir(folder).into_iter().flatten().flatten();
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

/// The socket of the pepd that is meant where nothing was said of it: that of the usual
/// configuration, where that answers or none does, or else the only one that answers.
///
/// # Errors
/// When there are several.
pub fn choose(
    configured: Option<PathBuf>,
    answering: Vec<PathBuf>,
) -> Result<PathBuf, SeveralSockets> {
    let default = || Path::new(FOLDER).join("pepd.sock");
    match (configured, &answering[..]) {
        (Some(configured), all) if all.is_empty() || all.contains(&configured) => Ok(configured),
        (None, []) => Ok(default()),
        (_, [only]) => Ok(only.clone()),
        _ => Err(SeveralSockets(answering)),
    }
}

/// Several pepds run here, each with a socket.
#[derive(Debug, thiserror::Error)]
#[error("several pepds run here: say which by `--socket`, one of {}", listed(.0))]
pub struct SeveralSockets(Vec<PathBuf>);

fn listed(paths: &[PathBuf]) -> String {
    let paths = paths.iter().map(|path| path.display().to_string());
    paths.collect::<Vec<_>>().join(", ")
}

/// Why there is no socket.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Another process answers there.
    #[error(
        "{0}: another pepd answers there; give each a socket of its own (`admin.socket`, or `intercept.table`, after which it \
         is named)"
    )]
    InUse(PathBuf),
    /// What is there is not ours to replace.
    #[error(
        "{0}: is there already and is no socket; remove it, or choose another path (`admin.socket`)"
    )]
    NoSocket(PathBuf),
    /// The system does not let us.
    #[error("{0}: {1}; choose another path (`admin.socket`), or \"off\"")]
    System(PathBuf, io::Error),
}

/// A socket that is removed with this, if it is still there.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    inode: u64,
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Somebody else's, a successor's perhaps, stays.
        if fs::symlink_metadata(&self.path).is_ok_and(|data| data.ino() == self.inode) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Whether a socket could be made there, as far as can be told without making it. One that another pepd has may be that
/// of the configuration.
///
/// # Errors
/// When what is there is no socket, or there is no folder for it.
pub fn look(path: &Path) -> Result<(), BindError> {
    if fs::symlink_metadata(path).is_ok_and(|data| !data.file_type().is_socket()) {
        return Err(BindError::NoSocket(path.to_owned()));
    }
    // Of a name alone, the folder in which we are.
    let there = |folder: &&Path| *folder != Path::new(FOLDER) && *folder != Path::new("");
    let folder = path.parent().filter(there);
    match folder.map(fs::metadata) {
        Some(Err(err)) => Err(BindError::System(path.to_owned(), err)),
        Some(Ok(data)) if !data.is_dir() => {
            let err = io::ErrorKind::NotADirectory.into();
            Err(BindError::System(path.to_owned(), err))
        }
        _ => Ok(()),
    }
}

/// True where a socket is left of a process that was killed, and no process answers at it.
pub fn is_dead(path: &Path) -> bool {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|data| data.file_type().is_socket());
    let is_refused = |err: io::Error| err.kind() == io::ErrorKind::ConnectionRefused;
    is_socket && UnixStream::connect(path).is_err_and(is_refused)
}

/// Removes a socket at which no process answers; false where there is none.
///
/// # Errors
/// When the system does not let us.
pub fn remove_dead(path: &Path) -> io::Result<bool> {
    let is_dead = is_dead(path);
    if is_dead {
        fs::remove_file(path)?;
    }
    Ok(is_dead)
}

/// Makes a socket with this mode. That of a process that is gone is replaced.
///
/// # Errors
/// When somebody answers there, what is there is no socket, or the system does not let us.
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
    if let Some(folder) = path.parent().filter(|folder| *folder == Path::new(FOLDER)) {
        fs::create_dir_all(folder).map_err(system)?;
    }
    // Under another name until its mode is right, so that there is no moment at which others may use it.
    let name = format!("{}.{}", path.display(), process::id());
    let fresh = Path::new(&name);
    let _ = fs::remove_file(fresh);
    let listener = UnixListener::bind(fresh).map_err(system)?;
    let placed = fs::set_permissions(fresh, fs::Permissions::from_mode(mode))
        .and_then(|()| listener.set_nonblocking(true))
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
    use super::*;

    #[test]
    fn a_socket_has_its_mode_and_goes_with_its_owner() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.sock");
        let (_listener, file) = bind(&path, 0o600).unwrap();
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        drop(file);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn the_pepd_that_runs_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let (dead, _file) = bind(&path("dead.sock"), 0o600).unwrap();
        drop(dead);
        fs::write(path("text"), "no socket").unwrap();
        assert!(answering_in(folder.path(), None).is_empty());
        let (_one, _file) = bind(&path("one.sock"), 0o600).unwrap();
        let one = [path("one.sock")];
        assert_eq!(answering_in(folder.path(), None), one);
        assert_eq!(answering_in(folder.path(), Some(&one[0])), one);
        let (_other, _file) = bind(&path("apart"), 0o600).unwrap();
        let both = answering_in(folder.path(), Some(&path("apart")));
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
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.sock");
        let (dead, file) = bind(&path, 0o600).unwrap();
        assert!(matches!(bind(&path, 0o600), Err(BindError::InUse(_))));
        drop(dead);
        let (_listener, _file) = bind(&path, 0o660).unwrap();
        drop(file);
        assert!(path.exists(), "it is the successor's");
        let other = folder.path().join("text");
        fs::write(&other, "precious").unwrap();
        assert!(matches!(bind(&other, 0o600), Err(BindError::NoSocket(_))));
        assert_eq!(fs::read_to_string(&other).unwrap(), "precious");
    }

    #[test]
    fn only_a_socket_of_the_dead_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.sock");
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
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.sock");
        look(&path).unwrap();
        look(Path::new("of-a-name-alone.sock")).unwrap();
        let (_listener, _file) = bind(&path, 0o600).unwrap();
        look(&path).unwrap();
        let other = folder.path().join("text");
        fs::write(&other, "precious").unwrap();
        for wrong in [
            &other,
            &other.join("a.sock"),
            &folder.path().join("no/a.sock"),
        ] {
            let told = look(wrong).unwrap_err().to_string();
            assert!(
                told.contains("choose another path (`admin.socket`)"),
                "{told}"
            );
            assert!(bind(wrong, 0o600).is_err());
        }
    }
}
