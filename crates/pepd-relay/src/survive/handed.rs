//! The text of a configuration, handed from one process to one that it starts: a file may have been changed since it
//! was read, and what was refused must not take effect by a crash.

use std::{
    fs,
    io::{self, Write as _},
    os::fd::{AsRawFd as _, OwnedFd, RawFd},
};

use nix::{
    sys::memfd::{MFdFlags, memfd_create},
    unistd::close,
};

/// A text on its way to programs that are started while this lives.
#[derive(Debug)]
pub struct Handed(OwnedFd);

impl Handed {
    /// To be made where no other thread could start a program: every one that is started has it open.
    ///
    /// # Errors
    /// Without a descriptor, or memory for it.
    pub fn new(text: &str) -> io::Result<Self> {
        let fd = memfd_create(c"configuration", MFdFlags::empty())?;
        let mut file = fs::File::from(fd);
        file.write_all(text.as_bytes())?;
        Ok(Self(file.into()))
    }

    /// By which the other process [takes](take) it.
    pub fn number(&self) -> String {
        self.0.as_raw_fd().to_string()
    }
}

/// The text that this process was handed by this number, which is free then.
///
/// # Errors
/// When there is none.
pub fn take(number: RawFd) -> io::Result<String> {
    let text = fs::read_to_string(format!("/proc/self/fd/{number}"))?;
    close(number)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_program_that_is_started_can_read_it() {
        let text = "grün ".repeat(50_000);
        let handed = Handed::new(&text).unwrap();
        for _ in 0..2 {
            let path = format!("/proc/self/fd/{}", handed.number());
            let output = Command::new("cat").arg(path).output().unwrap();
            assert!(output.status.success());
            assert!(output.stdout == text.as_bytes());
        }
    }

    #[test]
    fn who_takes_it_has_it_no_more() {
        let handed = Handed::new("lan = 1").unwrap();
        let copy = nix::unistd::dup(&handed.0).unwrap();
        let number = std::os::fd::IntoRawFd::into_raw_fd(copy);
        assert_eq!(take(number).unwrap(), "lan = 1");
        assert!(take(number).is_err());
    }
}
