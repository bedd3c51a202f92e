//! Privileges of the lab, and how it obtains them without root.

use std::{fs, io, path::Path};

use nix::{
    errno::Errno,
    sched::{CloneFlags, unshare},
    unistd::{getegid, geteuid},
};

use super::Netns;

/// Missing privilege for namespaces or TUN devices.
#[derive(Debug, thiserror::Error)]
pub enum PrivilegeError {
    /// The kernel or its policy refuses user namespaces.
    #[error(
        "network namespaces need root, or user namespaces, which this system refuses ({0}); \
         run as root, or allow them: `sysctl user.max_user_namespaces` must not be 0, nor \
         `kernel.unprivileged_userns_clone` or, on Ubuntu, \
         `kernel.apparmor_restrict_unprivileged_userns` 1"
    )]
    UserNamespace(#[source] io::Error),
    /// The ids could not be mapped into the user namespace.
    #[error("cannot become root of a user namespace ({path}): {source}")]
    Map {
        /// File that refused the mapping.
        path: &'static str,
        /// Cause.
        #[source]
        source: io::Error,
    },
    /// No access to the TUN device that a link needs.
    #[error(
        "cannot open /dev/net/tun for reading and writing ({0}): links need it; run as root, or \
         `chmod 0666 /dev/net/tun`, the mode that udev gives it"
    )]
    Tun(#[source] io::Error),
}

/// Ensures that this process can create network namespaces, if necessary by entering a new user
/// namespace as its root.
///
/// Call it first in `main`: the kernel refuses it once there is a second thread.
///
/// # Errors
/// [`PrivilegeError`] names the refusal and the remedy.
pub fn ensure_privileges() -> Result<(), PrivilegeError> {
    if Netns::new().is_ok() {
        return Ok(());
    }
    let (uid, gid) = (geteuid(), getegid());
    let flags = CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWNET;
    unshare(flags).map_err(refused)?;
    write("/proc/self/setgroups", "deny")?;
    write("/proc/self/uid_map", &format!("0 {uid} 1"))?;
    write("/proc/self/gid_map", &format!("0 {gid} 1"))?;
    // A policy such as AppArmor's may strip the capabilities; only their use shows it.
    match Netns::new() {
        Ok(_) => Ok(()),
        Err(_) => Err(refused(Errno::EPERM)),
    }
}

/// Checks that this process can open TUN devices. A user namespace does not help if the device file
/// is closed to the user.
///
/// # Errors
/// [`PrivilegeError::Tun`].
pub fn check_tun() -> Result<(), PrivilegeError> {
    let open = fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(Path::new("/dev/net/tun"));
    open.map(drop).map_err(PrivilegeError::Tun)
}

fn refused(errno: Errno) -> PrivilegeError {
    PrivilegeError::UserNamespace(errno.into())
}

fn write(path: &'static str, text: &str) -> Result<(), PrivilegeError> {
    fs::write(path, text).map_err(|source| PrivilegeError::Map { path, source })
}
