//! Command line of `pepd cc`.

use clap::{Args, Subcommand};

pub(super) const CC_EXAMPLES: &str = "\
Examples:
  pepd cc list             controls of the kernel and of pepd, and why any is missing
  pepd cc list --json      the same as JSON
";

pub(super) const CC_LIST_EXAMPLES: &str = "\
Sources:
  kernel             built into the kernel
  kernel module      loaded by the kernel when a site names it
  eBPF               loaded by pepd when a site names it
  eBPF, name taken   loaded by pepd under another name, as another process uses this name
  another's eBPF     registered by another process; disappears when that process removes it
  missing            eBPF of pepd that cannot be loaded here; the reason is below the table

Changes nothing. Without CAP_BPF and CAP_PERFMON, the eBPF controls of pepd show as missing.

Examples:
  pepd cc list
  pepd cc list --json | jq -r '.[] | select(.kind == \"missing\") | .name + \": \" + .why'
";

/// Options of `pepd cc`.
#[derive(Debug, Args)]
pub struct CcArgs {
    /// Subcommand.
    #[command(subcommand)]
    pub command: CcCommand,
}

/// Subcommands of `pepd cc`.
#[derive(Debug, Subcommand)]
pub enum CcCommand {
    /// List the congestion controls of the kernel and of pepd, and why any is missing
    #[command(after_help = super::flowed(CC_LIST_EXAMPLES))]
    List(ListArgs),
}

/// Options of `pepd cc list`.
#[derive(Debug, Args)]
pub struct ListArgs {
    /// Print JSON: objects with name, kind (kernel, module, ebpf, taken, other_process, missing:
    /// the sources below in this order), about, and if applicable registered_as and why
    #[arg(long)]
    pub json: bool,
}
