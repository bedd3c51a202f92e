//! The packets of one flow: `pepd capture`.

use std::{path::PathBuf, time::Duration};

use clap::Args;
use units::ByteSize;

use super::{
    SocketArgs,
    trace::{flow, lasting},
};
use crate::capture::{FILE_MIN, Limits};

pub(super) const CAPTURE_EXAMPLES: &str = "\
Writes the packets of one flow into a file that Wireshark and tcpdump read (pcapng): those of its connection with the client, and of
that with the server, each by the interface by which they came or went, from the IP header on. Of a flow in a tunnel one connection
is here; what is between the two ends is encrypted. It ends a second after the flow, by Ctrl-C, or at a limit, and says
which; SIGTERM and SIGHUP are as Ctrl-C. The file has what hosts send: only you may read it. The command itself sees the packets, which takes CAP_NET_RAW
(root) in the network namespace of pepd; only packets from now on, not those before.

Examples:
  pepd flows --site mail               which flows there are, each with its number
  pepd capture 12-a3f1 --out mail.pcapng
  pepd capture 10.0.0.7:40112 --out mail.pcapng --snaplen 80     headers only
  tcpdump -nr mail.pcapng
  ssh root@boat pepd capture 12-a3f1 --out - | wireshark -k -i -         live
";

/// Options of `pepd capture`.
#[derive(Debug, Args)]
pub struct CaptureArgs {
    /// Which flow: its number, as `pepd flows` has it, or its client's ADDRESS:PORT, or ADDRESS
    #[arg(value_parser = flow)]
    pub flow: String,
    /// Where to write; the file must not be there yet. `-` is standard output
    #[arg(short, long, value_name = "FILE")]
    pub out: PathBuf,
    /// Overwrite an existing file
    #[arg(long)]
    pub force: bool,
    /// For so long at most, such as 10min
    #[arg(long = "for", value_name = "TIME", value_parser = lasting, default_value = "5min")]
    pub lasting: Duration,
    /// So many packets at most
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub packets: Option<u64>,
    /// The file is so long at most, such as 1GB
    #[arg(long, value_name = "SIZE", value_parser = size, default_value = "100MB")]
    pub size: ByteSize,
    /// So many bytes of each packet at most, from the IP header on
    #[arg(long, value_name = "BYTES", default_value_t = 262_144, value_parser = clap::value_parser!(u32).range(1..=262_144))]
    pub snaplen: u32,
    /// Which pepd.
    #[command(flatten)]
    pub which: SocketArgs,
}

/// One that has room for a packet.
fn size(text: &str) -> Result<ByteSize, String> {
    let size: ByteSize = text.parse().map_err(|err| format!("{err}"))?;
    if size.bytes() < FILE_MIN {
        return Err(format!("a file has {FILE_MIN} bytes at least"));
    }
    Ok(size)
}

impl CaptureArgs {
    /// Whether packets go to standard output.
    pub fn is_streamed(&self) -> bool {
        self.out.as_os_str() == "-"
    }

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
