//! What ended flows leave in the kernel: sockets in TIME_WAIT.
//!
//! They carry addresses of others, as their flows did. While our rules stand, a host's SYN from the same
//! port comes to our listener. Without the rules the kernel still finds the socket for the packet
//! (`tcp_v4_early_demux`), and `ip_forward` drops any packet for which it has found one: for a minute
//! the host would get no answer on that port.

use std::{
    io,
    process::{ExitStatus, Stdio},
    time::Duration,
};

use pepd_sys::marks::MarkSet;
use tokio::{process::Command, time::timeout};
use tracing::warn;

/// It takes some milliseconds for thousands of sockets.
const PATIENCE: Duration = Duration::from_secs(10);

/// Closes the sockets in TIME_WAIT that carry our marks. Where that cannot be done, a warning says what
/// follows from it.
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
        "sockets in TIME_WAIT stay: hosts that use a port again within a minute may get no answer on it"
    );
}
