//! What the lab may do here, and how it gets the rest without being root.

use std::{fs, io, path::Path};

use nix::{
    errno::Errno,
    sched::{CloneFlags, unshare},
    unistd::{getegid, geteuid},
};

use super::Netns;

/// Why namespaces cannot be made here.
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
        /// The file that refused.
        path: &'static str,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A link needs a TUN device.
    #[error(
        "cannot open /dev/net/tun for reading and writing ({0}): links need it; run as root, or \
         `chmod 0666 /dev/net/tun`, the mode that udev gives it"
    )]
    Tun(#[source] io::Error),
}

/// Sees to it that network namespaces can be made: as they are, or in a new user namespace of
/// which the caller becomes root.
///
/// Call it first in `main`: the kernel refuses it once there is a second thread.
///
/// # Errors
/// [`PrivilegeError`] says what the system forbids and what would allow it.
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
    // Where a policy such as AppArmor's strips the capabilities, only using them shows it.
    match Netns::new() {
        Ok(_) => Ok(()),
        Err(_) => Err(refused(Errno::EPERM)),
    }
}

/// Whether TUN devices can be opened; a user namespace does not help where their file is closed.
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
