//! winkemu: an exact and repeatable link emulator, and a lab around it.
//!
//! - [`link`]: pure link engine; packets and the time in, packets and a deadline out
//! - [`presets`]: named links
//! - [`shell`]: link between TUN interfaces, on a thread of its own
//! - [`netns`]: network namespaces with their programs and interfaces
//! - [`lab`]: topologies of namespaces, scenarios on them, and their reports
#![deny(unsafe_code)]

pub mod lab;
pub use winkemu_link as link;
pub mod netns;
pub mod presets;
pub mod shell;

/// Writes a text to standard output. A reader that has gone away, such as `head`, is no error.
///
/// # Errors
/// A failed write, such as on a full disk.
pub fn write_stdout(text: &str) -> std::io::Result<()> {
    use std::io::{ErrorKind, Write as _};
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(err) if err.kind() == ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}
