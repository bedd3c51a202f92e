//! Sockets in TIME_WAIT, which ended flows leave in the kernel.
//!
//! They carry addresses of hosts and servers, as their flows did. While pepd's rules are installed,
//! a host's SYN from the same port reaches pepd's listener. Without the rules the kernel still
//! finds the socket for the packet (`tcp_v4_early_demux`), and `ip_forward` drops any packet with a
//! socket. For a minute the host would get no answer on that port.

use std::{
    io,
    process::{ExitStatus, Stdio},
    time::Duration,
};

use pepd_sys::marks::MarkSet;
use tokio::{process::Command, time::timeout};
use tracing::warn;

/// Timeout of `ss`, which needs some milliseconds for thousands of sockets.
const PATIENCE: Duration = Duration::from_secs(10);

/// Closes the sockets in TIME_WAIT that carry pepd's marks. If that fails, a warning names the
/// consequence.
pub(super) async fn close_all(marks: MarkSet) {
    match timeout(PATIENCE, run_ss(marks)).await {
        Ok(Ok(status)) if status.success() => {}
        Ok(Ok(status)) => warn_of(&format!("`ss -K`: {status}")),
        Ok(Err(err)) => warn_of(&format!("cannot run `ss` of the package iproute2: {err}")),
        Err(_elapsed) => warn_of("`ss -K` hangs"),
    }
}

async fn run_ss(marks: MarkSet) -> io::Result<ExitStatus> {
    let ours = |mark: u32| format!("{mark:#x}/{:#x}", marks.mask());
    Command::new("ss")
        .args(["-K", "-H", "-t", "-n", "state", "time-wait", "("])
        .args(["fwmark", "=", &ours(marks.client_leg()), "or"])
        .args(["fwmark", "=", &ours(marks.server_leg()), ")"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .status()
        .await
}

fn warn_of(cause: &str) {
    warn!(
        cause,
        "sockets in TIME_WAIT stay: a host that reuses a port within a minute may get no answer"
    );
}
