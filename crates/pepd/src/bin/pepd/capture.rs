//! `pepd capture`.

use std::{
    error::Error,
    fs::{self, File},
    io::{self, BufWriter},
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use hyper::Method;
use pepd::{
    admin::client::{self, AskError, Followed},
    capture::{self, Captured, Stopped},
    cli::CaptureArgs,
    exit::ExitStatus,
    observe::{flows::FlowStatus, trace::End},
};

use crate::{
    asking::socket_of,
    output::{complain, print},
    trace::{Shown, Watched, target},
};

/// The last packets of a flow come when it has ended.
const AFTERWARDS: Duration = Duration::from_secs(1);
/// How often it is asked whether the flow is still there, where it cannot be watched.
const ASK_EVERY: Duration = Duration::from_secs(1);

/// How watching the flow has come to an end.
enum Over {
    Ended(Option<End>),
    Interrupted,
}

pub fn capture(args: &CaptureArgs) -> Result<ExitStatus, Box<dyn Error>> {
    let socket = socket_of(&args.which)?;
    let answer = client::ask(&socket, Method::GET, &target(&args.flow), String::new())?;
    let flow: FlowStatus = serde_json::from_slice(&answer)?;
    let connections = capture::connections(&flow);
    if connections.is_empty() {
        return Err("the flow has no connection here any more".into());
    }
    let packets = capture::open(&connections)?;
    let file = create(&args.out, args.force)?;
    if let Some(peer) = &flow.peer {
        complain(format_args!(
            "note: the flow is in a tunnel with {peer}: only its connection here is in the file"
        ));
    } else if flow.server_leg.is_none() || flow.state == "accepted" {
        complain(format_args!(
            "note: its server has not answered yet: of that connection there may be nothing in the file"
        ));
    }
    let over = watch(&socket, flow.flow.id.clone());
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
    let captured = capture::run(&packets, file, &comment, args.limits(), goes_on)?;
    let ended = ended.map(|(over, _)| over);
    Ok(report(args, &captured, ended.as_ref()))
}

fn comment(flow: &FlowStatus) -> String {
    let (id, kind) = (&flow.flow.id, &flow.flow.kind);
    let (client, destination) = (&flow.flow.client, &flow.flow.destination);
    let site = flow.flow.site.as_deref().unwrap_or("(from peers)");
    format!("flow {id}: {client} -> {destination}, {kind}, {site}")
}

/// A file that only we may read.
fn create(path: &Path, force: bool) -> Result<BufWriter<File>, String> {
    let failed = |err: io::Error| match err.kind() {
        io::ErrorKind::AlreadyExists => format!(
            "{}: is there already; choose another name, or --force",
            path.display()
        ),
        _ => format!("{}: {err}", path.display()),
    };
    if let Ok(there) = fs::metadata(path)
        && !there.is_file()
    {
        // A device, which --force would replace for all.
        return Err(format!("{}: is no file: name another", path.display()));
    }
    // Not into one that others may read, or that a link leads to.
    if force
        && let Err(err) = fs::remove_file(path)
        && err.kind() != io::ErrorKind::NotFound
    {
        return Err(failed(err));
    }
    let file = File::options()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .map_err(failed)?;
    Ok(BufWriter::new(file))
}

/// Watches the flow, and for Ctrl-C, on threads that are gone with the program.
fn watch(socket: &Path, flow: String) -> mpsc::Receiver<Over> {
    let (tell, over) = mpsc::channel();
    let interrupted = tell.clone();
    thread::spawn(move || {
        if client::interrupted().is_ok() {
            let _ = interrupted.send(Over::Interrupted);
        }
    });
    let socket = socket.to_owned();
    thread::spawn(move || {
        let mut watched = Watched::new(flow.clone(), Shown::Nothing);
        let over = match watched.until_its_end(&socket, || None) {
            Ok(Followed::Interrupted) => return,
            Ok(_) => Over::Ended(watched.end()),
            // Too many are traced, perhaps.
            Err(_) => {
                wait_until_gone(&socket, &flow);
                Over::Ended(None)
            }
        };
        // Nobody wants to know where a limit was reached before.
        let _ = tell.send(over);
    });
    over
}

/// Returns when pepd says that there is no such flow.
fn wait_until_gone(socket: &Path, flow: &str) {
    let ask = || client::ask(socket, Method::GET, &target(flow), String::new());
    while !matches!(ask(), Err(AskError::Refused(_))) {
        thread::sleep(ASK_EVERY);
    }
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
        (Stopped::Time, _) => "the time is over (--for)".to_owned(),
        (Stopped::Packets, _) => "so many were wanted (--packets)".to_owned(),
        (Stopped::Bytes, _) => "the file may not be longer (--size)".to_owned(),
        (Stopped::Enough, Some(Over::Ended(end))) => {
            let reason = end.as_ref().and_then(|end| end.reason.clone());
            format!(
                "the flow has ended: {}",
                reason.unwrap_or_else(|| "how is not known".to_owned())
            )
        }
        (Stopped::Enough, _) => "interrupted".to_owned(),
    };
    if captured.packets() == 0 {
        complain(format_args!(
            "note: no packet of it was seen: it was silent, or this is not the network namespace of pepd"
        ));
    }
    let by = if by.is_empty() {
        String::new()
    } else {
        format!(" ({})", by.join(", "))
    };
    print(format_args!(
        "{}: {} packets{by}, {bytes} bytes; dropped by the kernel: {dropped}; {why}\n",
        args.out.display(),
        captured.packets(),
    ))
}
