//! winkemu: an exact and repeatable link emulator, and a lab around it.
//!
//! - [`link`]: the link itself, pure: packets and the time in, packets and a deadline out
//! - [`presets`]: links by name
//! - [`shell`]: a link between TUN interfaces, on a thread of its own
//! - [`netns`]: network namespaces, and programs and interfaces in them
//! - [`lab`]: topologies of namespaces, scenarios on them, and their reports
#![deny(unsafe_code)]

pub mod lab;
pub use winkemu_link as link;
pub mod netns;
pub mod presets;
pub mod shell;

/// Writes to standard output, all of it; that nobody reads any more, as after `head`, is no error.
///
/// # Errors
/// When it cannot be written: a full disk.
pub fn write_stdout(text: &str) -> std::io::Result<()> {
    use std::io::{ErrorKind, Write as _};
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(err) if err.kind() == ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}
