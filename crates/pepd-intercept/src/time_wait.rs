//! Sockets in TIME_WAIT, which ended flows leave in the kernel.
//!
//! They carry addresses of hosts and servers, as their flows did. While pepd's rules are installed,
//! a host's SYN from the same port reaches pepd's listener. Without the rules the kernel still
//! finds the socket for the packet (`tcp_v4_early_demux`), and `ip_forward` drops any packet with a
//! socket. For a minute the host would get no answer on that port.

use pepd_sys::marks::MarkSet;
use tracing::warn;

use crate::program;

/// Closes the sockets in TIME_WAIT that carry pepd's marks. If that fails, a warning names the
/// consequence.
pub(super) async fn close_all(marks: MarkSet) {
    let [client, server] = [marks.client_leg(), marks.server_leg()]
        .map(|mark| format!("{mark:#x}/{:#x}", marks.mask()));
    let (client, server) = (client.as_str(), server.as_str());
    let mut args = vec!["-K", "-H", "-t", "-n", "state", "time-wait", "("];
    args.extend(["fwmark", "=", client, "or", "fwmark", "=", server, ")"]);
    match program::run("ss", &args, None).await {
        Ok(output) if output.status.success() => {}
        Ok(output) => warn_of(&format!("`ss -K`: {}", output.status)),
        Err(err) => warn_of(&format!("cannot run `ss` of the package iproute2: {err}")),
    }
}

fn warn_of(cause: &str) {
    warn!(
        cause,
        "sockets in TIME_WAIT stay: a host that reuses a port within a minute may get no answer"
    );
}
