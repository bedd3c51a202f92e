//! Command line of `pepd capture`.

use std::{path::PathBuf, time::Duration};

use clap::Args;
use units::ByteSize;

use super::{
    SocketArgs,
    trace::{flow, lasting},
};
use crate::capture::{FILE_MIN, Limits};

pub(super) const CAPTURE_EXAMPLES: &str = "\
Writes the packets of one flow to a pcapng file for Wireshark and tcpdump: both of its
connections, each packet with its interface, from the IP header on. Of a flow in a tunnel the file
has only the connection to the local host: the tunnel's packets are encrypted.

The capture ends a second after the flow, on Ctrl-C, SIGTERM or SIGHUP, or at a limit, and prints
the cause. The file contains the hosts' data; only its owner may read it. The command itself opens
the interfaces, not the running pepd: it needs CAP_NET_RAW (root) in pepd's network namespace.
Earlier packets are not included.

Examples:
  pepd flows --site mail               list flows with their numbers
  pepd capture 12-a3f1 --out mail.pcapng
  pepd capture 10.0.0.7:40112 --out mail.pcapng --snaplen 80     headers only
  tcpdump -nr mail.pcapng
  ssh root@boat pepd capture 12-a3f1 --out - | wireshark -k -i -         live
";

/// Options of `pepd capture`.
#[derive(Debug, Args)]
pub struct CaptureArgs {
    /// Flow: its number from `pepd flows` (12-a3f1), or its client's ADDRESS:PORT or ADDRESS
    #[arg(value_parser = flow)]
    pub flow: String,
    /// File to create; `-` is standard output
    #[arg(short, long, value_name = "FILE")]
    pub out: PathBuf,
    /// Overwrite an existing file
    #[arg(long)]
    pub force: bool,
    /// Maximum duration, such as 10min
    #[arg(long = "for", value_name = "TIME", value_parser = lasting, default_value = "5min")]
    pub lasting: Duration,
    /// Maximum number of packets
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub packets: Option<u64>,
    /// Maximum size of the file, such as 1GB
    #[arg(long, value_name = "SIZE", value_parser = size, default_value = "100MB")]
    pub size: ByteSize,
    /// Maximum length of each packet, from the IP header on
    #[arg(long, value_name = "BYTES", default_value_t = 262_144, value_parser = clap::value_parser!(u32).range(1..=262_144))]
    pub snaplen: u32,
    /// Running pepd to query.
    #[command(flatten)]
    pub which: SocketArgs,
}

/// Parses a size with room for a packet.
fn size(text: &str) -> Result<ByteSize, String> {
    let size: ByteSize = text.parse().map_err(|err| format!("{err}"))?;
    if size.bytes() < FILE_MIN {
        return Err(format!("expected {FILE_MIN} bytes or more"));
    }
    Ok(size)
}

impl CaptureArgs {
    /// Returns true if packets go to standard output.
    pub fn is_streamed(&self) -> bool {
        self.out.as_os_str() == "-"
    }

    /// Returns the limits of the capture.
    pub fn limits(&self) -> Limits {
        Limits {
            lasting: self.lasting,
            packets: self.packets,
            bytes: self.size.bytes(),
            packet_bytes: self.snaplen,
        }
    }
}
