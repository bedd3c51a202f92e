//! The packets of one flow: `pepd capture`.

use std::{path::PathBuf, time::Duration};

use clap::Args;
use units::ByteSize;

use super::{SocketArgs, trace::flow};
use crate::capture::Limits;

pub(super) const CAPTURE_EXAMPLES: &str = "\
Writes the packets of one flow into a file that Wireshark and tcpdump read (pcapng): those of its connection with the client, and of
that with the server, each by the interface by which they came or went, from the IP header on. Of a flow in a tunnel one connection
is here; what is between the two ends is encrypted. It ends a second after the flow, by Ctrl-C, or at a limit, and says
which. The file has what hosts send: only you may read it. The command itself sees the packets, which takes CAP_NET_RAW
(root) in the network namespace of pepd; only packets from now on, not those before.

Examples:
  pepd flows --site mail               which flows there are, each with its number
  pepd capture 12-a3f1 --out mail.pcapng
  pepd capture 10.0.0.7:40112 --out mail.pcapng --snaplen 80     headers only
  tcpdump -nr mail.pcapng
";

/// Options of `pepd capture`.
#[derive(Debug, Args)]
pub struct CaptureArgs {
    /// Which flow: its number, as `pepd flows` has it, or its client's ADDRESS:PORT
    #[arg(value_parser = flow)]
    pub flow: String,
    /// Where to write; the file must not be there yet
    #[arg(short, long, value_name = "FILE")]
    pub out: PathBuf,
    /// Even if there is such a file
    #[arg(long)]
    pub force: bool,
    /// For so long at most, such as 10min
    #[arg(long = "for", value_name = "TIME", value_parser = units::duration::parse, default_value = "5min")]
    pub lasting: Duration,
    /// So many packets at most
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub packets: Option<u64>,
    /// The file is so long at most, such as 1GB
    #[arg(long, value_name = "SIZE", default_value = "100MB")]
    pub size: ByteSize,
    /// So many bytes of each packet at most, from the IP header on
    #[arg(long, value_name = "BYTES", default_value_t = 262_144, value_parser = clap::value_parser!(u32).range(1..=262_144))]
    pub snaplen: u32,
    /// Which pepd.
    #[command(flatten)]
    pub which: SocketArgs,
}

impl CaptureArgs {
    /// When it ends.
    pub fn limits(&self) -> Limits {
        Limits {
            lasting: self.lasting,
            packets: self.packets,
            bytes: self.size.bytes(),
            packet_bytes: self.snaplen,
        }
    }
}
