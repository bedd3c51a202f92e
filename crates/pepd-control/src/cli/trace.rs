//! Command line of `pepd trace`.

use std::{
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

use clap::Args;
use units::ByteSize;

use super::AdminArgs;

pub(super) const TRACE_EXAMPLES: &str = "\
Shows one flow live: bytes received and held in each direction, round trip, congestion window and
retransmitted segments of its local connections, and for each direction the cause of a wait (sender,
receiver, link, tunnel). A line appears after a change, at most four times a second, and
every ten seconds (event `look` in JSON). The trace ends when the flow ends, and prints the reason,
or on Ctrl-C. It continues when another process takes over the flow. docs/operating.md explains
each figure.

With --qlog it records the flow in detail to a file in qlog format (JSON text sequences), for
viewers such as https://qvis.quictools.info: states of its connections, and each step of the relay
between them. For a flow in a tunnel it records each packet of the tunnel with its frames (its
parts), losses and their causes, round trips and rates. With --peer it records all traffic to a
peer until Ctrl-C or the end of pepd, including boosters of mode packet. The file contains no
payload.

Examples:
  pepd flows --site mail               list flows with their numbers
  pepd trace 12-a3f1
  pepd trace 10.0.0.7:40112            the flow of this client address and port
  pepd trace 10.0.0.7                  the flow of a host, or a list if it has several
  pepd trace 12-a3f1 --qlog mail.sqlog
  pepd trace --peer hub --qlog hub.sqlog --for 30s
  pepd trace 12-a3f1 --for 1min --json | jq 'select(.event == \"look\") | .up'
";

/// Options of `pepd trace`.
#[derive(Debug, Args)]
pub struct TraceArgs {
    /// Flow: its number from `pepd flows` (12-a3f1), or its client's ADDRESS:PORT or ADDRESS
    #[arg(value_parser = flow, required_unless_present = "peer")]
    pub flow: Option<String>,
    /// Record all traffic to this peer, instead of a flow
    #[arg(long, value_name = "NAME", requires = "qlog", conflicts_with = "flow")]
    pub peer: Option<String>,
    /// Record detailed events to this new file, as qlog; `-` is standard output
    #[arg(long, value_name = "FILE", conflicts_with = "json")]
    pub qlog: Option<PathBuf>,
    /// Overwrite an existing file
    #[arg(long, requires = "qlog")]
    pub force: bool,
    /// Maximum size of the file of --qlog, such as 50MB
    #[arg(long, value_name = "SIZE", default_value = "1GB", requires = "qlog")]
    pub size: ByteSize,
    /// Maximum duration, such as 1min
    #[arg(long = "for", value_name = "TIME", value_parser = lasting)]
    pub lasting: Option<Duration>,
    /// Running pepd to query; with `--json`, prints an object per line.
    #[command(flatten)]
    pub admin: AdminArgs,
}

/// Parses a duration greater than zero.
pub(super) fn lasting(text: &str) -> Result<Duration, String> {
    match units::duration::parse(text) {
        Ok(Duration::ZERO) => Err("expected more than 0, such as 10s or 5min".to_owned()),
        Ok(lasting) => Ok(lasting),
        Err(err) => Err(err.to_string()),
    }
}

/// Parses the number of a flow, or an address with or without port.
pub(super) fn flow(text: &str) -> Result<String, String> {
    let is_number = text.split_once('-').is_some_and(|(slot, part)| {
        slot.parse::<u32>().is_ok() && u16::from_str_radix(part, 16).is_ok()
    });
    if is_number {
        return Ok(text.to_owned());
    }
    let client = text.parse::<SocketAddr>().map(|client| client.to_string());
    let host = |_| text.parse::<IpAddr>().map(|host| host.to_string());
    client.or_else(host).map_err(|_| {
        "expected a flow number such as 12-a3f1, or a client's address with or without port: see `pepd flows`"
            .to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flow_is_a_number_or_an_address() {
        for right in [
            "0-0000",
            "4294967295-ffff",
            "10.0.0.7:1",
            "[2001:db8::1]:80",
            "10.0.0.7",
            "2001:db8::1",
        ] {
            assert_eq!(flow(right).as_deref(), Ok(right));
        }
        for wrong in [
            "", "12", "12-", "-00ff", "12-a3f1x", "10.0.0", "host:80", "1/../2",
        ] {
            let reported = flow(wrong).expect_err(wrong);
            assert!(reported.contains("such as 12-a3f1"), "{reported}");
        }
    }
}
