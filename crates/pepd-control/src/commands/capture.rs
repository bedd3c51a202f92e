//! Command `pepd capture`.

use std::{
    error::Error,
    fs::{self, File},
    io::{self, IsTerminal as _},
    os::{fd::AsFd as _, unix::fs::OpenOptionsExt as _},
    path::Path,
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use hyper::Method;
use pepd_api::{exit::ExitStatus, flows::FlowStatus, trace::End};

use super::{
    requests::socket_of,
    trace::{Shown, Watched, target},
};
use crate::{
    capture::{self, CaptureError, Captured, Stopped},
    cli::CaptureArgs,
    client::{self, AskError, Followed, Follower},
    output::{complain, print},
};

/// Time for the last packets of a flow that has ended.
const AFTERWARDS: Duration = Duration::from_secs(1);
/// Interval of queries for a flow that cannot be traced.
const ASK_EVERY: Duration = Duration::from_secs(1);

/// End of the wait for a flow.
enum Over {
    Ended(Option<End>),
    Interrupted,
}

pub(super) fn capture(args: &CaptureArgs) -> Result<ExitStatus, Box<dyn Error>> {
    let socket = socket_of(&args.which)?;
    let answer = client::ask(&socket, Method::GET, &target(&args.flow), String::new())?;
    let flow: FlowStatus = serde_json::from_slice(&answer)?;
    let connections = capture::connections(&flow);
    if connections.is_empty() {
        return Err("the flow has no open connection here".into());
    }
    let packets = capture::open(&connections)?;
    // Signals end the capture in order from the moment on when the file exists.
    let follower = Follower::new(&socket)?;
    let mut file = create(args)?;
    if let Some(peer) = &flow.peer {
        complain(format_args!(
            "note: the flow is in a tunnel with {peer}: the file has only its local connection"
        ));
    } else if flow.server_leg.is_none() || flow.state == "accepted" {
        complain(format_args!(
            "note: the server has not answered yet: the file may lack that connection"
        ));
    }
    let over = watch(follower, &socket, flow.flow.id.clone());
    let mut ended = None;
    let goes_on = || {
        if let Ok(over) = over.try_recv() {
            ended = Some((over, Instant::now()));
        }
        match &ended {
            None => true,
            Some((Over::Interrupted, _)) => false,
            Some((Over::Ended(_), at)) => at.elapsed() < AFTERWARDS,
        }
    };
    let comment = comment(&flow);
    let captured = capture::run(&packets, &mut file, &comment, args.limits(), goes_on);
    match captured {
        Ok(captured) => {
            let ended = ended.map(|(over, _)| over);
            Ok(report(args, &captured, ended.as_ref()))
        }
        Err(err) => cut_short(args, &file, err),
    }
}

/// Reports a failed write: packets in the file stay readable, and a reader of standard output may
/// have stopped reading.
fn cut_short(
    args: &CaptureArgs,
    file: &File,
    err: CaptureError,
) -> Result<ExitStatus, Box<dyn Error>> {
    let CaptureError::Write { bytes, source, .. } = &err else {
        return Err(err.into());
    };
    if args.is_streamed() && source.kind() == io::ErrorKind::BrokenPipe {
        return Ok(ExitStatus::Success);
    }
    if args.is_streamed() {
        return Err(err.into());
    }
    let path = args.out.display();
    let whole = match file.set_len(*bytes) {
        Ok(()) => "these are complete".to_owned(),
        Err(err) => format!("the last one is truncated: {err}"),
    };
    Err(format!("{path}: {err}; {whole}. Free some space, or choose another file system").into())
}

fn comment(flow: &FlowStatus) -> String {
    let (id, kind) = (&flow.flow.id, &flow.flow.kind);
    let (client, destination) = (&flow.flow.client, &flow.flow.destination);
    let site = flow.flow.site.as_deref().unwrap_or("(from peers)");
    format!("flow {id}: {client} -> {destination}, {kind}, {site}")
}

/// Creates a file that only its owner may read, or opens standard output.
fn create(args: &CaptureArgs) -> Result<File, String> {
    if !args.is_streamed() {
        return create_file(&args.out, args.force);
    }
    if io::stdout().is_terminal() {
        return Err(
            "standard output is a terminal: pipe it (`--out - | wireshark -k -i -`), or name a file"
                .to_owned(),
        );
    }
    standard_output()
}

/// Returns standard output as an unbuffered file.
pub(super) fn standard_output() -> Result<File, String> {
    let file = io::stdout().as_fd().try_clone_to_owned();
    file.map(File::from)
        .map_err(|err| format!("standard output: {err}"))
}

/// Creates a file that only its owner may read.
pub(super) fn create_file(path: &Path, force: bool) -> Result<File, String> {
    let failed = |err: io::Error| match err.kind() {
        io::ErrorKind::AlreadyExists => format!(
            "{}: exists already; choose another name, or use --force",
            path.display()
        ),
        _ => format!("{}: {err}", path.display()),
    };
    if let Ok(there) = fs::metadata(path)
        && !there.is_file()
    {
        // Removing a device with --force would affect all users.
        return Err(format!(
            "{}: not a regular file; choose another name",
            path.display()
        ));
    }
    // An existing file may be readable by others, or a symbolic link.
    if force
        && let Err(err) = fs::remove_file(path)
        && err.kind() != io::ErrorKind::NotFound
    {
        return Err(failed(err));
    }
    File::options()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .map_err(failed)
}

/// Watches the flow and signals on a detached thread.
fn watch(mut follower: Follower, socket: &Path, flow: String) -> mpsc::Receiver<Over> {
    let (tell, over) = mpsc::channel();
    let socket = socket.to_owned();
    thread::spawn(move || {
        let mut watched = Watched::new(flow.clone(), Shown::Nothing);
        let over = match watched.until_its_end(&mut follower, || None) {
            Ok(Followed::Interrupted) => Over::Interrupted,
            Ok(_) => Over::Ended(watched.end()),
            // The limit of traces may be reached.
            Err(_) => wait_until_gone(&mut follower, &socket, &flow),
        };
        // The receiver is gone if a limit ended the capture.
        let _ = tell.send(over);
    });
    over
}

/// Returns when pepd no longer knows the flow, or on a signal.
fn wait_until_gone(follower: &mut Follower, socket: &Path, flow: &str) -> Over {
    let ask = || client::ask(socket, Method::GET, &target(flow), String::new());
    while !matches!(ask(), Err(AskError::Refused(_))) {
        if follower.pause(ASK_EVERY) {
            return Over::Interrupted;
        }
    }
    Over::Ended(None)
}

fn report(args: &CaptureArgs, captured: &Captured, over: Option<&Over>) -> ExitStatus {
    let Captured {
        interfaces,
        bytes,
        dropped,
        stopped,
    } = captured;
    let by: Vec<_> = interfaces
        .iter()
        .map(|(name, packets)| format!("{name} {packets}"))
        .collect();
    let why = match (stopped, over) {
        (Stopped::Time, _) => "time limit reached (--for)".to_owned(),
        (Stopped::Packets, _) => "packet limit reached (--packets)".to_owned(),
        (Stopped::Bytes, _) => "size limit reached (--size)".to_owned(),
        (Stopped::Enough, Some(Over::Ended(end))) => {
            let reason = end.as_ref().and_then(|end| end.reason.clone());
            format!(
                "the flow has ended: {}",
                reason.unwrap_or_else(|| "reason unknown".to_owned())
            )
        }
        (Stopped::Enough, _) => "interrupted".to_owned(),
    };
    if captured.packets() == 0 {
        complain(format_args!(
            "note: no packet captured: the flow was silent, or this is not the network namespace of pepd"
        ));
    }
    let by = if by.is_empty() {
        String::new()
    } else {
        format!(" ({})", by.join(", "))
    };
    let said = format!(
        "{}: {} packets{by}, {bytes} bytes; dropped by the kernel: {dropped}; {why}",
        args.out.display(),
        captured.packets(),
    );
    if args.is_streamed() {
        complain(format_args!("{said}"));
        return ExitStatus::Success;
    }
    print(format_args!("{said}\n"))
}
