//! Logs: to standard error, for people or for programs.

use std::{
    env,
    io::{self, IsTerminal, Write},
    os::fd::AsFd,
    sync::atomic::{AtomicU64, Ordering},
};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use pep_core::config::{LogConfig, LogFormat, LogLevel};
use tracing::{Dispatch, level_filters::LevelFilter};
use tracing_subscriber::{
    filter::Targets,
    fmt::{self, MakeWriter},
    prelude::*,
};

/// Starts logging, once per process. `RUST_LOG`, where it is set and `forced` is not, decides
/// what is logged instead of the level.
///
/// # Panics
/// When logging was started before.
pub fn init(log: LogConfig, forced: bool) {
    let (filter, problem) = filter(log.level, forced);
    let colour = io::stderr().is_terminal();
    dispatch(log.format, filter, || Impatient, colour).init();
    if let Some(problem) = problem {
        tracing::warn!(error = %problem, "RUST_LOG is not understood and has no effect");
    }
}

/// Lines that nobody read in time.
static LOST: AtomicU64 = AtomicU64::new(0);

/// How many lines were lost so far because nobody read those before them.
pub fn lost() -> u64 {
    LOST.load(Ordering::Relaxed)
}

/// Standard error for as long as somebody reads it. A full pipe would stop whoever writes: the
/// workers, and with them all flows.
struct Impatient;

impl Write for Impatient {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        // Locked from the question to the answer: no other line may take the room.
        write_or_lose(&mut io::stderr().lock(), line, &LOST)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn write_or_lose(to: &mut (impl Write + AsFd), line: &[u8], lost: &AtomicU64) -> io::Result<usize> {
    if has_room(to) {
        to.write_all(line)?;
    } else {
        lost.fetch_add(1, Ordering::Relaxed);
    }
    Ok(line.len())
}

/// Whether a line, which is shorter than PIPE_BUF, can be written without waiting. An error is for
/// the write to find.
fn has_room(to: &impl AsFd) -> bool {
    let mut fds = [PollFd::new(to.as_fd(), PollFlags::POLLOUT)];
    !matches!(poll(&mut fds, PollTimeout::ZERO), Ok(0))
}

fn dispatch<W>(format: LogFormat, filter: Targets, writer: W, colour: bool) -> Dispatch
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let registry = tracing_subscriber::registry().with(filter);
    let lines = fmt::layer().with_writer(writer);
    match format {
        LogFormat::Json => {
            let lines = lines.json().flatten_event(true).with_span_list(false);
            registry.with(lines).into()
        }
        LogFormat::Text => {
            let lines = lines.compact().with_target(false).with_ansi(colour);
            registry.with(lines).into()
        }
    }
}

/// The filter, and what is wrong with `RUST_LOG`.
fn filter(level: LogLevel, forced: bool) -> (Targets, Option<String>) {
    match env::var("RUST_LOG") {
        Ok(text) if !forced && !text.trim().is_empty() => match text.parse() {
            Ok(filter) => (filter, None),
            Err(err) => (targets(level), Some(err.to_string())),
        },
        _ => (targets(level), None),
    }
}

/// Our own lines from the level upwards; of the libraries no more than warnings, since netlink
/// at `debug` drowns everything else.
fn targets(level: LogLevel) -> Targets {
    let own = match level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    };
    Targets::new()
        .with_default(own.min(LevelFilter::WARN))
        .with_targets([("pepd", own), ("pep_core", own)])
}

#[cfg(test)]
mod tests {
    use std::{
        io::Read,
        sync::{Arc, Mutex},
    };

    use tracing::dispatcher;

    use super::*;

    #[derive(Clone, Default)]
    struct Memory(Arc<Mutex<Vec<u8>>>);

    impl Write for Memory {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().expect("not poisoned").write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn logged(format: LogFormat, level: LogLevel) -> String {
        let memory = Memory::default();
        let writer = memory.clone();
        let dispatch = dispatch(format, targets(level), move || writer.clone(), false);
        dispatcher::with_default(&dispatch, || {
            let span = tracing::info_span!(target: "pepd::flow", "flow", client = "10.0.0.1:1000");
            let _entered = span.enter();
            tracing::info!(target: "pepd::flow", up_bytes = 7, "flow ended");
            tracing::debug!(target: "pepd::flow", "a detail");
            tracing::info!(target: "netlink_proto", "noise");
        });
        let bytes = memory.0.lock().expect("not poisoned").clone();
        String::from_utf8(bytes).expect("text")
    }

    #[test]
    fn a_pipe_that_nobody_reads_loses_lines_and_waits_for_none() {
        let (mut reader, mut writer) = io::pipe().expect("a pipe");
        let lost = AtomicU64::new(0);
        let line = [b'x'; 4096];
        let mut written = 0;
        while lost.load(Ordering::Relaxed) < 3 {
            written += write_or_lose(&mut writer, &line, &lost).expect("an open pipe");
        }
        let mut room = vec![0; written - 3 * line.len()];
        reader.read_exact(&mut room).expect("what was not lost");
        write_or_lose(&mut writer, b"again", &lost).expect("an open pipe");
        drop(writer);
        let mut rest = String::new();
        reader.read_to_string(&mut rest).expect("text");
        assert_eq!((rest.as_str(), lost.into_inner()), ("again", 3));
    }

    #[test]
    fn json_is_one_object_a_line_with_the_fields_of_the_span() {
        let text = logged(LogFormat::Json, LogLevel::Info);
        let value: serde_json::Value = serde_json::from_str(text.trim()).expect("one object");
        assert_eq!(value["message"], "flow ended");
        assert_eq!(value["up_bytes"], 7);
        assert_eq!(value["span"]["client"], "10.0.0.1:1000");
        assert_eq!(value["span"]["name"], "flow");
    }

    #[test]
    fn text_is_one_line_with_the_fields_of_the_span() {
        let text = logged(LogFormat::Text, LogLevel::Info);
        assert_eq!(text.lines().count(), 1, "{text}");
        assert!(
            text.contains("INFO") && text.contains("flow ended up_bytes=7"),
            "{text}"
        );
        assert!(text.contains("client=\"10.0.0.1:1000\""), "{text}");
    }

    #[test]
    fn levels_let_through_what_they_say() {
        assert_eq!(logged(LogFormat::Text, LogLevel::Warn), "");
        assert_eq!(logged(LogFormat::Text, LogLevel::Debug).lines().count(), 2);
    }
}
