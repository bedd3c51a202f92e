//! Configuration text handed from one process to a child. The file may have changed since it was
//! read, and a rejected change must not take effect through a crash.

use std::{
    fs,
    io::{self, Write as _},
    os::fd::{AsRawFd as _, OwnedFd, RawFd},
};

use nix::{
    sys::memfd::{MFdFlags, memfd_create},
    unistd::close,
};

/// Text for programs that are started while this lives.
#[derive(Debug)]
pub struct InheritedText(OwnedFd);

impl InheritedText {
    /// Creates the text. Call it where no other thread can start a program: every child inherits
    /// the descriptor.
    ///
    /// # Errors
    /// Fails without a descriptor, or memory for it.
    pub fn new(text: &str) -> io::Result<Self> {
        let fd = memfd_create(c"configuration", MFdFlags::empty())?;
        let mut file = fs::File::from(fd);
        file.write_all(text.as_bytes())?;
        Ok(Self(file.into()))
    }

    /// Returns the number by which the child [takes](take) it.
    pub fn number(&self) -> String {
        self.0.as_raw_fd().to_string()
    }
}

/// Takes the text handed to this process by this descriptor number, and takes ownership of the
/// number.
///
/// # Errors
/// Fails if there is none.
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
        let inherited_text = InheritedText::new(&text).unwrap();
        for _ in 0..2 {
            let path = format!("/proc/self/fd/{}", inherited_text.number());
            let output = Command::new("cat").arg(path).output().unwrap();
            assert!(output.status.success());
            assert!(output.stdout == text.as_bytes());
        }
    }

    #[test]
    fn who_takes_it_has_it_no_more() {
        let inherited_text = InheritedText::new("lan = 1").unwrap();
        let copy = nix::unistd::dup(&inherited_text.0).unwrap();
        let number = std::os::fd::IntoRawFd::into_raw_fd(copy);
        assert_eq!(take(number).unwrap(), "lan = 1");
        assert!(take(number).is_err());
    }
}
