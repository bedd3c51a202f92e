//! Command line of `pepd keygen`.

use std::path::PathBuf;

use clap::Args;

pub(super) const KEYGEN_EXAMPLES: &str = "\
The private key stays in its file (`identity.key_file`), which only its owner may read. The public
key is printed as one line, for `public_key` in the peer's configuration. Keys are 32 bytes in
base64, as in WireGuard. A preshared key (`psk_file`, optional) must reach both ends by a
confidential channel.

Examples:
  pepd keygen --out /etc/pepd/pepd.key           create a key pair; print the public key
  pepd keygen --public /etc/pepd/pepd.key        print the public key of an existing key pair
  pepd keygen --psk /etc/pepd/hub.psk            create a preshared key
";

/// Options of `pepd keygen`.
#[derive(Debug, Args)]
pub struct KeygenArgs {
    /// File for the private key of a new key pair, for `identity.key_file`
    #[arg(
        short,
        long,
        value_name = "FILE",
        default_value = "pepd.key",
        conflicts_with_all = ["psk", "public"]
    )]
    pub out: PathBuf,
    /// Create a preshared key in this file, instead of a key pair
    #[arg(long, value_name = "FILE", conflicts_with = "public")]
    pub psk: Option<PathBuf>,
    /// Print the public key of the private key in this file
    #[arg(long, value_name = "FILE", conflicts_with = "force")]
    pub public: Option<PathBuf>,
    /// Overwrite an existing file; the key in it is lost
    #[arg(long)]
    pub force: bool,
}
