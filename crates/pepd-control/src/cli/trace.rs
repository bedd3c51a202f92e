//! One flow, watched: `pepd trace`.

use std::{
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

use clap::Args;
use units::ByteSize;

use super::AdminArgs;

pub(super) const TRACE_EXAMPLES: &str = "\
Shows one flow for as long as it lasts: bytes that have come each way and those that pepd holds, round trip, window and segments
sent again of its connections here, and what each direction waits for: its sender, its receiver, the link, the tunnel. A
line comes when something has changed, four times a second at most, and every ten seconds. It ends when the flow has ended, and says
how; Ctrl-C ends it before. When another process takes over the flow, it goes on with that. pepd looks at a flow so
closely only while somebody watches it. docs/operating.md says what each means.

With --qlog it writes a file instead, which qvis and other readers of qlog take (JSON text sequences): states of the
flow's connections, and each step of its relay, or, of a flow in a tunnel, each packet of the tunnel with what it
carries, losses and their causes, round trips and rates. With --peer it does so for all that goes to a peer,
boosters of mode \"packet\" included, until Ctrl-C or the end of pepd. No bytes of hosts are in it.

Examples:
  pepd flows --site mail               which flows there are, each with its number
  pepd trace 12-a3f1
  pepd trace 10.0.0.7:40112            by its client's address, where that has one flow
  pepd trace 10.0.0.7                  the one flow of a host, or which it has
  pepd trace 12-a3f1 --qlog mail.sqlog
  pepd trace --peer hub --qlog hub.sqlog --for 30s
  pepd trace 12-a3f1 --for 1min --json | jq 'select(.event == \"look\") | .up'
";

/// Options of `pepd trace`.
#[derive(Debug, Args)]
pub struct TraceArgs {
    /// Which flow: its number, as `pepd flows` has it, or its client's ADDRESS:PORT, or ADDRESS
    #[arg(value_parser = flow, required_unless_present = "peer")]
    pub flow: Option<String>,
    /// All that goes to this peer, instead of a flow
    #[arg(long, value_name = "NAME", requires = "qlog", conflicts_with = "flow")]
    pub peer: Option<String>,
    /// Write events in detail to this file, as qlog; it must not be there yet. `-` is standard output
    #[arg(long, value_name = "FILE", conflicts_with = "json")]
    pub qlog: Option<PathBuf>,
    /// Overwrite an existing file
    #[arg(long, requires = "qlog")]
    pub force: bool,
    /// The length of the file of --qlog at most, such as 50MB
    #[arg(long, value_name = "SIZE", default_value = "1GB", requires = "qlog")]
    pub size: ByteSize,
    /// For so long at most, such as 1min
    #[arg(long = "for", value_name = "TIME", value_parser = lasting)]
    pub lasting: Option<Duration>,
    /// Which pepd; with `--json`, an object a line.
    #[command(flatten)]
    pub admin: AdminArgs,
}

/// A time that is not over at once.
pub(super) fn lasting(text: &str) -> Result<Duration, String> {
    match units::duration::parse(text) {
        Ok(Duration::ZERO) => Err("in no time there is nothing to see: 10s, 5min".to_owned()),
        Ok(lasting) => Ok(lasting),
        Err(err) => Err(err.to_string()),
    }
}

/// A number of a flow, or an address, with a port or without.
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
        "expected the number of a flow, such as 12-a3f1, or a client's address, with its port or without: `pepd flows` lists both"
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
            let told = flow(wrong).expect_err(wrong);
            assert!(told.contains("such as 12-a3f1"), "{told}");
        }
    }
}
