//! `pepd keygen`.

use std::path::PathBuf;

use clap::Args;

pub(super) const KEYGEN_EXAMPLES: &str = "\
The private key stays in its file, which only its owner may read: `identity.key_file` names it. The public key,
printed as one line, goes into the peer's configuration as `public_key`. Keys are 32 bytes in base64,
as WireGuard's are. A key that two peers share (`psk_file`, optional) has to reach both in a way that nobody reads.

Examples:
  pepd keygen --out /etc/pepd/pepd.key           a key pair; prints the public key
  pepd keygen --public /etc/pepd/pepd.key        the public key of one there is
  pepd keygen --psk /etc/pepd/hub.psk            a key for two peers to share
";

/// Options of `pepd keygen`.
#[derive(Debug, Args)]
pub struct KeygenArgs {
    /// Where to write the private key of a new key pair
    #[arg(
        short,
        long,
        value_name = "FILE",
        default_value = "pepd.key",
        conflicts_with_all = ["psk", "public"]
    )]
    pub out: PathBuf,
    /// Write a new key that two peers share, instead of a key pair
    #[arg(long, value_name = "FILE", conflicts_with = "public")]
    pub psk: Option<PathBuf>,
    /// Print the public key of the private key in this file, and make none
    #[arg(long, value_name = "FILE", conflicts_with = "force")]
    pub public: Option<PathBuf>,
    /// Replace the file where it is there already: the key in it is then gone
    #[arg(long)]
    pub force: bool,
}
