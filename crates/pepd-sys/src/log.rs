//! Logging to standard error, for people or for programs.

use std::{
    env, fmt as text,
    fs::File,
    io::{self, IsTerminal, Write},
    os::{fd::AsFd, unix::fs::MetadataExt as _},
    sync::atomic::{AtomicU64, Ordering},
};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use pep_core::config::{LogConfig, LogFormat, LogLevel};
use tracing::{Dispatch, Event, Level, Subscriber, level_filters::LevelFilter};
use tracing_subscriber::{
    filter::Targets,
    fmt::{self, FmtContext, FormatEvent, FormatFields, MakeWriter, format::Writer},
    prelude::*,
    registry::LookupSpan,
};

/// Starts logging, once per process. `RUST_LOG` takes precedence over the level, unless `forced`.
///
/// # Panics
/// When logging was started before.
pub fn init(log: LogConfig, forced: bool) {
    let (filter, problem) = filter(log.level, forced);
    let reader = if is_journal() {
        Reader::Journal
    } else if io::stderr().is_terminal() {
        Reader::Terminal
    } else {
        Reader::Other
    };
    dispatch(log.format, filter, || DroppingStderr, reader).init();
    if let Some(problem) = problem {
        tracing::warn!(error = %problem, "cannot parse RUST_LOG: it has no effect");
    }
}

/// Count of dropped lines.
static LOST: AtomicU64 = AtomicU64::new(0);

/// Returns the count of lines dropped because the reader of standard error was too slow.
pub fn lost() -> u64 {
    LOST.load(Ordering::Relaxed)
}

/// A writer to standard error that never blocks. Writes to a full pipe would block the workers, and
/// with them all flows.
struct DroppingStderr;

impl Write for DroppingStderr {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        // One lock for check and write: no other line may use the room.
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

/// Returns whether a line, which is shorter than PIPE_BUF, can be written without blocking. Errors
/// are left to the write.
fn has_room(to: &impl AsFd) -> bool {
    let mut fds = [PollFd::new(to.as_fd(), PollFlags::POLLOUT)];
    !matches!(poll(&mut fds, PollTimeout::ZERO), Ok(0))
}

/// The kind of file that standard error is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reader {
    Terminal,
    Journal,
    Other,
}

/// Returns true if standard error leads to systemd's journal, which adds the time to each line and
/// reads its priority from a prefix: sd-daemon(3), `JOURNAL_STREAM` in systemd.exec(5).
pub fn is_journal() -> bool {
    env::var("JOURNAL_STREAM").is_ok_and(|stream| is_stream(&io::stderr(), &stream))
}

/// Returns true if the file has the device and inode of `stream`, as `DEVICE:INODE`.
fn is_stream(file: &impl AsFd, stream: &str) -> bool {
    let file = file.as_fd().try_clone_to_owned().map(File::from);
    let data = file.and_then(|file| file.metadata());
    data.is_ok_and(|data| stream == format!("{}:{}", data.dev(), data.ino()))
}

/// Returns the line prefix with the journal's priority: a number of syslog(3).
pub const fn priority(level: Level) -> &'static str {
    match level {
        Level::ERROR => "<3>",
        Level::WARN => "<4>",
        Level::INFO => "<6>",
        Level::DEBUG | Level::TRACE => "<7>",
    }
}

/// A wrapper of another format that prefixes each line with its priority.
struct Prioritized<F>(F);

impl<S, N, F> FormatEvent<S, N> for Prioritized<F>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
    F: FormatEvent<S, N>,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> text::Result {
        let mut lines = String::new();
        let Self(format) = self;
        format.format_event(context, Writer::new(&mut lines), event)?;
        let priority = priority(*event.metadata().level());
        let mut lines = lines.lines();
        lines.try_for_each(|line| writeln!(writer, "{priority}{line}"))
    }
}

fn dispatch<W>(format: LogFormat, filter: Targets, writer: W, reader: Reader) -> Dispatch
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let registry = tracing_subscriber::registry().with(filter);
    let lines = fmt::layer().with_writer(writer);
    let json =
        |lines: fmt::Layer<_, _, _, W>| lines.json().flatten_event(true).with_span_list(false);
    match (format, reader) {
        // Programs that read JSON rely on its time stamp.
        (LogFormat::Json, Reader::Journal) => {
            let lines = json(lines).map_event_format(Prioritized);
            registry.with(lines).into()
        }
        (LogFormat::Json, _) => registry.with(json(lines)).into(),
        (LogFormat::Text, Reader::Journal) => {
            let lines = lines.compact().with_target(false).with_ansi(false);
            let lines = lines.without_time().map_event_format(Prioritized);
            registry.with(lines).into()
        }
        (LogFormat::Text, _) => {
            let colour = reader == Reader::Terminal;
            let lines = lines.compact().with_target(false).with_ansi(colour);
            registry.with(lines).into()
        }
    }
}

/// Returns the filter, and the error in `RUST_LOG`, if any.
fn filter(level: LogLevel, forced: bool) -> (Targets, Option<String>) {
    match env::var("RUST_LOG") {
        Ok(text) if !forced && !text.trim().is_empty() => match text.parse() {
            Ok(filter) => (filter, None),
            Err(err) => (targets(level), Some(err.to_string())),
        },
        _ => (targets(level), None),
    }
}

/// Returns a filter for pepd's lines from the level upwards. Libraries log warnings only, since
/// netlink at `debug` drowns all else.
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
    use std::{io::Read, sync::Arc};

    use parking_lot::Mutex;
    use tracing::dispatcher;

    use super::*;

    #[derive(Clone, Default)]
    struct Memory(Arc<Mutex<Vec<u8>>>);

    impl Write for Memory {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn logged(format: LogFormat, level: LogLevel) -> String {
        logged_for(Reader::Other, format, level)
    }

    fn logged_for(reader: Reader, format: LogFormat, level: LogLevel) -> String {
        let memory = Memory::default();
        let writer = memory.clone();
        let dispatch = dispatch(format, targets(level), move || writer.clone(), reader);
        dispatcher::with_default(&dispatch, || {
            let span =
                tracing::info_span!(target: "pepd_relay::flow", "flow", client = "10.0.0.1:1000");
            let _entered = span.enter();
            tracing::info!(target: "pepd_relay::flow", up_bytes = 7, "flow ended");
            tracing::debug!(target: "pepd_relay::flow", "a detail");
            tracing::info!(target: "netlink_proto", "noise");
        });
        let bytes = memory.0.lock().clone();
        String::from_utf8(bytes).expect("text")
    }

    #[test]
    fn a_pipe_without_a_reader_loses_lines_and_never_blocks() {
        let (mut reader, mut writer) = io::pipe().expect("a pipe");
        let lost = AtomicU64::new(0);
        let line = [b'x'; 4096];
        let mut written = 0;
        while lost.load(Ordering::Relaxed) < 3 {
            written += write_or_lose(&mut writer, &line, &lost).expect("an open pipe");
        }
        let mut room = vec![0; written - 3 * line.len()];
        reader
            .read_exact(&mut room)
            .expect("lines that were not dropped");
        write_or_lose(&mut writer, b"again", &lost).expect("an open pipe");
        drop(writer);
        let mut rest = String::new();
        reader.read_to_string(&mut rest).expect("text");
        assert_eq!((rest.as_str(), lost.into_inner()), ("again", 3));
    }

    #[test]
    fn lines_for_the_journal_have_a_priority_and_no_time() {
        let text = logged_for(Reader::Journal, LogFormat::Text, LogLevel::Debug);
        let mut lines = text.lines();
        let first = lines.next().expect("two lines");
        assert!(first.starts_with("<6> INFO flow"), "{text}");
        let second = lines.next().expect("two lines");
        assert!(second.starts_with("<7>DEBUG flow"), "{text}");
        let text = logged_for(Reader::Journal, LogFormat::Json, LogLevel::Info);
        let json = text.trim().strip_prefix("<6>").expect("a priority");
        let value: serde_json::Value = serde_json::from_str(json).expect("one object");
        assert!(value["timestamp"].is_string(), "{text}");
    }

    #[test]
    fn every_line_of_an_event_has_its_priority() {
        let memory = Memory::default();
        let writer = memory.clone();
        let dispatch = dispatch(
            LogFormat::Text,
            targets(LogLevel::Info),
            move || writer.clone(),
            Reader::Journal,
        );
        dispatcher::with_default(&dispatch, || {
            tracing::error!(target: "pepd", "one\ntwo");
        });
        let bytes = memory.0.lock().clone();
        let text = String::from_utf8(bytes).expect("text");
        assert_eq!(text, "<3>ERROR one\n<3>two\n");
    }

    #[test]
    fn the_journal_is_known_by_device_and_inode() {
        let (file, other) = (tempfile::tempfile(), tempfile::tempfile());
        let (file, other) = (file.expect("a file"), other.expect("a file"));
        let data = file.metadata().expect("it is open");
        let stream = format!("{}:{}", data.dev(), data.ino());
        assert!(is_stream(&file, &stream));
        assert!(!is_stream(&other, &stream) && !is_stream(&file, ""));
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
