//! Read-only check of the custody directory, as a start would find it.

use std::{
    fs::{self, File, Metadata, OpenOptions},
    io,
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::Path,
};

use nix::{
    fcntl::{Flock, FlockArg},
    sys::statvfs,
    unistd::{AccessFlags, eaccess, geteuid},
};
use units::ByteSize;

use super::{
    directory::{DirectoryError, Fault, check_mode, check_place, file_system},
    segments::{is_segment, of_this_version},
};

/// Findings on a directory that a start could use.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Look {
    /// State in a few words.
    pub state: String,
    /// Drawbacks, and obstacles to another user's pepd, with remedies.
    pub warnings: Vec<String>,
    /// Notes for the operator.
    pub notes: Vec<String>,
}

/// File systems without all properties of a local disk (linux/magic.h), with their names.
const ODD: [(u32, &str, Odd); 10] = [
    (0x0102_1994, "tmpfs", Odd::InMemory),
    (0x8584_58f6, "ramfs", Odd::InMemory),
    (0x6969, "NFS", Odd::Remote),
    (0x517b, "SMB", Odd::Remote),
    (0xff53_4d42, "CIFS", Odd::Remote),
    (0xfe53_4d42, "SMB2", Odd::Remote),
    (0x0102_1997, "9p", Odd::Remote),
    (0x00c3_6400, "Ceph", Odd::Remote),
    (0x5346_414f, "AFS", Odd::Remote),
    (0x4d44, "FAT", Odd::WithoutHoles),
];

#[derive(Debug, Clone, Copy)]
enum Odd {
    InMemory,
    Remote,
    WithoutHoles,
}

impl Odd {
    /// Returns the consequence, with the remedy.
    fn means(self) -> &'static str {
        match self {
            Self::InMemory => {
                "its files take memory that `limits.memory` does not count: \
                 configure a directory on a disk"
            }
            Self::Remote => {
                "held bytes depend on its server, and are lost with it: configure a directory \
                 on a local disk"
            }
            Self::WithoutHoles => {
                "room is freed in files of 8.5 MiB only: raise `custody.disk`, or configure \
                 a directory on ext4, XFS or btrfs"
            }
        }
    }
}

/// Checks a directory that may hold up to `most` bytes.
///
/// # Errors
/// If a start as this user would refuse it, as far as that is known without writing.
pub fn inspect(path: &Path, most: u64) -> Result<Look, DirectoryError> {
    try_look(path, most).map_err(|fault| DirectoryError::new(path, fault))
}

fn try_look(path: &Path, most: u64) -> Result<Look, Fault> {
    let mut look = Look::default();
    check_place(path)?;
    match fs::symlink_metadata(path) {
        Ok(data) => look.inspect_directory(path, &data, most)?,
        Err(err) if err.kind() == io::ErrorKind::NotFound => look.at_parent(path, most)?,
        Err(err) => return Err(err.into()),
    }
    Ok(look)
}

/// Returns whether the path is in systemd's state directory for services with dynamic users
/// (`DynamicUser=`, systemd.exec(5)).
fn is_of_a_dynamic_user(path: &Path) -> bool {
    fs::canonicalize(path).is_ok_and(|path| path.starts_with("/var/lib/private"))
}

impl Look {
    fn at_parent(&mut self, path: &Path, most: u64) -> Result<(), Fault> {
        let parent = path.parent().filter(|parent| *parent != Path::new(""));
        let parent = parent.unwrap_or(Path::new("."));
        if !fs::metadata(parent)?.is_dir() {
            return Err(Fault::Parent);
        }
        may_write(parent).map_err(Fault::Unmakeable)?;
        self.state = "will be created".to_owned();
        self.at_file_system(parent, most, 0);
        Ok(())
    }

    fn inspect_directory(&mut self, path: &Path, data: &Metadata, most: u64) -> Result<(), Fault> {
        if !data.is_dir() {
            return Err(Fault::NotADirectory);
        }
        let (owner, us) = (data.uid(), geteuid().as_raw());
        check_mode(data)?;
        self.state = "exists".to_owned();
        if owner != us && is_of_a_dynamic_user(path) {
            // systemd changes the owner at the start.
        } else if owner != us {
            // The checking user may differ from pepd's user.
            self.warnings.push(format!(
                "{}: belongs to user {owner}, and this is user {us}: run pepd as user {owner}, or `chown` it",
                path.display()
            ));
        } else {
            may_write(path).map_err(Fault::Unwritable)?;
        }
        let flags = libc::O_DIRECTORY | libc::O_NOFOLLOW;
        let opened = OpenOptions::new().read(true).custom_flags(flags).open(path);
        let mut taken = 0;
        match opened {
            Ok(directory) => taken = self.at_content(path, directory)?,
            Err(_) if owner != us => {}
            Err(err) => return Err(err.into()),
        }
        self.at_file_system(path, most, taken);
        Ok(())
    }

    /// Returns the bytes of the budget that are in use already.
    fn at_content(&mut self, path: &Path, directory: File) -> Result<u64, Fault> {
        // A shared lock for an instant: a pepd that starts in this moment retries.
        let is_used = Flock::lock(directory, FlockArg::LockSharedNonblock).is_err();
        let (mut files, mut bytes, mut others) = (0_u64, 0, 0_u64);
        for entry in fs::read_dir(path)? {
            let entry = entry?;
            let name = entry.file_name();
            let Some(name) = name.to_str().filter(|name| is_segment(name)) else {
                continue;
            };
            // A running pepd may have removed it.
            let Ok(data) = entry.metadata() else {
                continue;
            };
            if !data.is_file() {
                self.warnings.push(format!(
                    "{}: has the name of a custody file, but is not a regular file: remove it",
                    entry.path().display()
                ));
                continue;
            }
            files += 1;
            bytes += 512 * data.blocks();
            others += u64::from(!name.starts_with(&of_this_version()));
        }
        let size = ByteSize(bytes);
        if is_used {
            self.notes.push(format!(
                "{}: in use by a running pepd, with {files} files of {size}; another pepd needs a directory of its own",
                path.display()
            ));
        } else if files > 0 {
            let version = match others {
                0 => String::new(),
                others => format!(", {others} of them of another version"),
            };
            self.notes.push(format!(
                "{}: an earlier pepd has left {files} files of {size}{version}: the start removes all but \
                 records of resumed flows",
                path.display()
            ));
        }
        Ok(bytes)
    }

    fn at_file_system(&mut self, path: &Path, most: u64, taken: u64) {
        let place = path.display();
        let kind = file_system(path);
        let odd = ODD.iter().find(|(magic, ..)| kind == Some(*magic));
        if let Some((_, name, odd)) = odd {
            let means = odd.means();
            self.warnings
                .push(format!("{place}: on a file system of type {name}: {means}"));
        }
        let Ok(found) = statvfs::statvfs(path) else {
            return;
        };
        let free = pepd_sys::wide(found.fragment_size())
            .saturating_mul(pepd_sys::wide(found.blocks_available()));
        // Rounded to whole MiB for readability.
        let shown = ByteSize(if free < 1 << 20 {
            free
        } else {
            free >> 20 << 20
        });
        self.state = format!("{}, {shown} free", self.state);
        if free.saturating_add(taken) < most {
            self.warnings.push(format!(
                "{place}: {shown} free, but `custody.disk` is {}: hosts wait when it is full; free some room, \
                 or lower `custody.disk`",
                ByteSize(most)
            ));
        }
    }
}

/// Checks access for this user by access(2).
fn may_write(directory: &Path) -> io::Result<()> {
    let needed = AccessFlags::R_OK | AccessFlags::W_OK | AccessFlags::X_OK;
    Ok(eaccess(directory, needed)?)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, chown, symlink};

    use super::{super::directory::claim_within, *};

    const MIB: u64 = 1 << 20;

    fn fault(path: &Path) -> String {
        inspect(path, MIB).unwrap_err().to_string()
    }

    fn directory() -> tempfile::TempDir {
        tempfile::tempdir().unwrap()
    }

    /// Lists a directory with metadata that any change would alter.
    fn seen(path: &Path) -> Vec<(String, u32, i64, u64)> {
        let entries = fs::read_dir(path).unwrap();
        let seen = entries.map(|entry| {
            let entry = entry.unwrap();
            let data = entry.metadata().unwrap();
            let name = entry.file_name().to_string_lossy().into_owned();
            (name, data.mode(), data.ctime_nsec(), data.len())
        });
        let own = fs::metadata(path).unwrap();
        let mut seen: Vec<_> = seen.collect();
        seen.push((".".to_owned(), own.mode(), own.ctime_nsec(), 0));
        seen.sort();
        seen
    }

    #[test]
    fn what_a_start_would_refuse_is_refused_in_the_same_words() {
        let parent = directory();
        let path = parent.path().join("custody");
        fs::create_dir(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o770)).unwrap();
        let file = parent.path().join("file");
        fs::write(&file, "").unwrap();
        let link = parent.path().join("link");
        symlink(parent.path(), &link).unwrap();
        for wrong in [&path, &file, &link, &parent.path().join("no/such")] {
            let start = claim_within(wrong, std::time::Duration::ZERO);
            assert_eq!(fault(wrong), start.unwrap_err().to_string());
        }
        let odd = file.join("within");
        assert!(
            fault(&odd).contains("configure another one"),
            "{}",
            fault(&odd)
        );
    }

    #[test]
    fn looking_makes_and_removes_nothing() {
        let parent = directory();
        let path = parent.path().join("custody");
        let reported = inspect(&path, MIB).unwrap();
        assert!(
            reported.state.starts_with("will be created, "),
            "{reported:?}"
        );
        assert!(!path.exists());

        drop(claim_within(&path, std::time::Duration::ZERO).unwrap());
        fs::write(path.join("pepd-spill-v2-00-1-0.segment"), vec![7; 8192]).unwrap();
        fs::write(path.join("pepd-spill-v1-00-1-0.segment"), "").unwrap();
        fs::write(path.join("notes.txt"), "").unwrap();
        symlink("nowhere", path.join("pepd-spill-x.segment")).unwrap();
        let before = seen(&path);
        let reported = inspect(&path, MIB).unwrap();
        assert_eq!(seen(&path), before);
        assert!(reported.state.starts_with("exists, "), "{reported:?}");
        let [note] = &reported.notes[..] else {
            panic!("{reported:?}")
        };
        assert!(
            note.contains("2 files of 8KiB, 1 of them of another version: the start removes all"),
            "{note}"
        );
        let odd = reported
            .warnings
            .iter()
            .find(|text| text.contains("-x.segment"));
        assert!(
            odd.is_some_and(|text| text.ends_with("remove it")),
            "{reported:?}"
        );
    }

    #[test]
    fn where_the_kernel_shows_its_state_is_no_place_for_files() {
        for (path, kind) in [
            ("/proc", "proc"),
            ("/proc/pepd", "proc"),
            ("/sys/kernel/pepd", "sysfs"),
        ] {
            let reported = [
                fault(Path::new(path)),
                claim_within(Path::new(path), std::time::Duration::ZERO)
                    .unwrap_err()
                    .to_string(),
            ];
            let expected = format!("it is on a pseudo file system ({kind})");
            for reported in reported {
                assert!(
                    reported.contains(&expected)
                        && reported.contains("configure a directory on a disk"),
                    "{reported}"
                );
            }
        }
    }

    #[test]
    fn checking_a_directory_in_use_is_no_error_and_leaves_it_to_its_pepd() {
        let parent = directory();
        let path = parent.path().join("custody");
        let claimed = claim_within(&path, std::time::Duration::ZERO).unwrap();
        let reported = inspect(&path, MIB).unwrap();
        assert!(
            reported.notes[0].contains("in use by a running pepd"),
            "{reported:?}"
        );
        drop(claimed);
        assert_eq!(inspect(&path, MIB).unwrap().notes, [""; 0]);
        claim_within(&path, std::time::Duration::ZERO).unwrap();
    }

    #[test]
    fn too_little_room_and_another_owner_are_warned_of() {
        let path = directory();
        fs::set_permissions(path.path(), fs::Permissions::from_mode(0o700)).unwrap();
        let reported = inspect(path.path(), u64::MAX).unwrap();
        let room = |text: &&String| text.contains("lower `custody.disk`");
        assert_eq!(
            reported.warnings.iter().filter(room).count(),
            1,
            "{reported:?}"
        );
        if chown(path.path(), Some(12_345), None).is_ok() {
            let reported = inspect(path.path(), 0).unwrap();
            let owner = |text: &&String| text.contains("belongs to user 12345");
            assert_eq!(
                reported.warnings.iter().filter(owner).count(),
                1,
                "{reported:?}"
            );
        }
    }

    #[test]
    fn memory_is_not_taken_for_a_disk() {
        let Ok(reported) = inspect(Path::new("/dev/shm/pepd-none"), 0) else {
            return; // no such directory here
        };
        let kind = nix::sys::statfs::statfs("/dev/shm")
            .unwrap()
            .filesystem_type();
        let warned = reported.warnings.iter().any(|text| text.contains("tmpfs"));
        assert_eq!(
            warned,
            kind == nix::sys::statfs::TMPFS_MAGIC,
            "{reported:?}"
        );
    }
}
