//! `pepd cc`.

use clap::{Args, Subcommand};

pub(super) const CC_EXAMPLES: &str = "\
Examples:
  pepd cc list             those of the kernel, those that pepd can load, and why others are missing
  pepd cc list --json      the same for programs
";

pub(super) const CC_LIST_EXAMPLES: &str = "\
Where they are from:
  kernel             the kernel has it
  kernel module      the kernel loads it when a site names it
  eBPF               pepd loads it when a site names it
  eBPF, name taken   the same, under another name: another process has this one
  another's eBPF     a program of another process; gone with that
  missing            pepd's own, which cannot be loaded here; the reason stands below the table

Changes nothing. Without CAP_BPF and CAP_PERFMON pepd's own show as missing.

Examples:
  pepd cc list
  pepd cc list --json | jq -r '.[] | select(.kind == \"missing\") | .name + \": \" + .why'
";

/// Options of `pepd cc`.
#[derive(Debug, Args)]
pub struct CcArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: CcCommand,
}

/// What to do with congestion controls.
#[derive(Debug, Subcommand)]
pub enum CcCommand {
    /// List those of the kernel and of pepd, and say why any is missing
    #[command(after_help = super::flowed(CC_LIST_EXAMPLES))]
    List(ListArgs),
}

/// Options of `pepd cc list`.
#[derive(Debug, Args)]
pub struct ListArgs {
    /// As JSON: a list of objects with name, kind (kernel, module, ebpf, taken, foreign, missing), about, and
    /// where they apply registered_as and why
    #[arg(long)]
    pub json: bool,
}
