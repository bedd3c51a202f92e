//! Command line: the tree of commands. Each submodule has the options of its commands.

use std::{env, ffi::OsString, path::PathBuf};

use clap::{
    Args, Error, Parser, Subcommand,
    error::{ContextKind, ContextValue, ErrorKind},
};
use pepd_api::exit::ExitStatus;

mod capture;
mod cc;
mod check;
mod keygen;
mod migrate;
mod run;
mod running;
mod trace;

pub use capture::CaptureArgs;
pub use cc::{CcArgs, CcCommand, ListArgs};
pub use check::{CheckArgs, CleanupArgs, RulesArgs, RulesFormat};
pub use keygen::KeygenArgs;
pub use migrate::MigrateArgs;
pub use run::{FormatArg, LevelArg, RunArgs};
pub use running::{
    AdminArgs, CustodyArgs, DrainArgs, FlowsArgs, LinkArgs, LinkWord, NamedSite, ProbeArgs,
    ReloadArgs, SiteArgs, SiteCommand, SocketArgs, TopArgs,
};
pub use trace::TraceArgs;

const EXAMPLES: &str = "\
Examples:
  pepd check --config /etc/pepd/pepd.toml     check the configuration and this machine
  pepd rules --config /etc/pepd/pepd.toml     print the packet filter rules
  pepd run --config /etc/pepd/pepd.toml       accelerate connections until SIGTERM
  pepd cc list                                list congestion controls
  pepd link down --for 5min                   announce an outage of the link
  pepd status                                 link, sites, peers and use of limits
  pepd top                                    the same, live
  pepd flows                                  round trip and rate of each flow, and its limit
  pepd trace 10.0.0.7:40112                   one flow live, and the causes of its waits
  pepd probe hub                              measure the path to a peer, idle and under load
  pepd capture 10.0.0.7:40112 --out f.pcapng  write the packets of a flow to a file
  pepd custody                                data held for hosts
  pepd keygen                                 create the key of this end of a tunnel

The smallest configuration:
  [intercept]
  lan = [\"eth0\"]            # interfaces on which hosts' connections arrive
";

/// A transparent TCP performance enhancing proxy: splits the connections of the hosts behind it and
/// carries them over an impaired link with settings that suit the link. A site is a policy in the
/// configuration for the connections that it matches.
#[derive(Debug, Parser)]
#[command(name = "pepd", version, after_help = EXAMPLES, after_long_help = format!("{EXAMPLES}\n{}", ExitStatus::HELP))]
pub struct Cli {
    /// Subcommand.
    #[command(subcommand)]
    pub command: Command,
}

impl Cli {
    /// Parses the command line of this process. Ends the process on an error or a request for help.
    pub fn of_process() -> Self {
        let words: Vec<_> = env::args_os().collect();
        Self::from_words(&words).unwrap_or_else(|err| err.exit())
    }

    fn from_words(words: &[OsString]) -> Result<Self, Error> {
        let command = words.get(1).and_then(|word| word.to_str());
        let takes_config = command.is_some_and(|word| BY_CONFIG.contains(&word));
        Self::try_parse_from(words).map_err(|err| if takes_config { with_tip(err) } else { err })
    }
}

/// Commands that take `--config`, which is often forgotten.
const BY_CONFIG: [&str; 4] = ["run", "check", "rules", "cleanup"];

/// Adds a hint if a file was given without `--config`.
fn with_tip(mut err: Error) -> Error {
    let Some(ContextValue::String(word)) = err.get(ContextKind::InvalidArg) else {
        return err;
    };
    if err.kind() == ErrorKind::UnknownArgument && !word.starts_with('-') {
        let tip = format!("pass the configuration with its option: `--config {word}`");
        let tip = ContextValue::StyledStrs(vec![tip.into()]);
        err.insert(ContextKind::Suggested, tip);
    }
    err
}

/// Subcommands of pepd.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Intercept and accelerate connections until a signal
    #[command(after_help = flowed(run::RUN_EXAMPLES))]
    Run(RunArgs),
    /// Check a configuration, this machine and a running pepd, with remedies
    #[command(after_help = flowed(check::CHECK_EXAMPLES))]
    Check(CheckArgs),
    /// Print the packet filter rules and routes of a configuration
    #[command(after_help = flowed(check::RULES_EXAMPLES))]
    Rules(RulesArgs),
    /// Remove rules and routes of a killed pepd
    #[command(after_help = flowed(check::CLEANUP_EXAMPLES))]
    Cleanup(CleanupArgs),
    /// List congestion controls
    #[command(after_help = flowed(cc::CC_EXAMPLES))]
    Cc(CcArgs),
    /// Command that queries a running pepd, or needs none.
    #[command(flatten)]
    Client(ClientCommand),
}

/// Commands that query a running pepd, or need none.
#[derive(Debug, Subcommand)]
pub enum ClientCommand {
    /// Show or set the state of the link
    #[command(after_help = flowed(running::LINK_EXAMPLES))]
    Link(LinkArgs),
    /// Show link, sites, peers and use of limits
    #[command(after_help = flowed(running::STATUS_EXAMPLES))]
    Status(AdminArgs),
    /// Show the status live in the terminal
    #[command(after_help = flowed(running::TOP_EXAMPLES))]
    Top(TopArgs),
    /// List open flows with the kernel's state of their connections
    #[command(after_help = flowed(running::FLOWS_EXAMPLES))]
    Flows(FlowsArgs),
    /// Trace one flow live: progress, causes of waits, end
    #[command(after_help = flowed(trace::TRACE_EXAMPLES))]
    Trace(TraceArgs),
    /// Measure the path to a peer under load
    #[command(after_help = flowed(running::PROBE_EXAMPLES))]
    Probe(ProbeArgs),
    /// Write the packets of one flow to a file
    #[command(after_help = flowed(capture::CAPTURE_EXAMPLES))]
    Capture(CaptureArgs),
    /// List data held for hosts
    #[command(after_help = flowed(running::CUSTODY_EXAMPLES))]
    Custody(CustodyArgs),
    /// Apply a changed configuration without interrupting flows
    #[command(after_help = flowed(running::RELOAD_EXAMPLES))]
    Reload(ReloadArgs),
    /// Switch sites (policies of the configuration) off and on, or list them
    #[command(after_help = flowed(running::SITE_EXAMPLES), args_conflicts_with_subcommands = true)]
    Site(SiteArgs),
    /// Stop accepting new flows, wait for open ones, then exit
    #[command(after_help = flowed(running::DRAIN_EXAMPLES))]
    Drain(DrainArgs),
    /// Create the keys of a tunnel
    #[command(after_help = flowed(keygen::KEYGEN_EXAMPLES))]
    Keygen(KeygenArgs),
    /// Convert a PEPsal setup into a pepd configuration, or rename obsolete configuration keys
    #[command(after_help = flowed(migrate::MIGRATE_EXAMPLES))]
    Migrate(MigrateArgs),
}

/// Default path of the configuration.
pub const CONFIG: &str = "/etc/pepd/pepd.toml";

/// Option for the configuration file.
#[derive(Debug, Args)]
pub struct ConfigArgs {
    /// Configuration file (TOML)
    #[arg(short, long, value_name = "FILE", default_value = CONFIG)]
    pub config: PathBuf,
}

/// Joins the lines of each paragraph, which clap then wraps to the width of the terminal. Lines
/// that begin with spaces or follow a heading stay as they are.
fn flowed(text: &str) -> String {
    let mut flowed = String::new();
    let mut is_prose = false;
    for line in text.lines() {
        let goes_on = is_prose && !line.is_empty() && !line.starts_with(' ');
        flowed.push_str(match (flowed.is_empty(), goes_on) {
            (true, _) => "",
            (_, true) => " ",
            (_, false) => "\n",
        });
        flowed.push_str(line);
        is_prose = !line.is_empty() && !line.starts_with(' ') && !line.ends_with(':');
    }
    flowed
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;
    use pep_core::config::{LogConfig, LogFormat, LogLevel};

    use super::*;

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn options_of_the_command_line_go_before_the_file() {
        let cli = Cli::try_parse_from(["pepd", "run", "-c", "x.toml", "--log-format", "json"]);
        let Ok(Cli {
            command: Command::Run(run),
        }) = cli
        else {
            panic!("{cli:?}")
        };
        let file = LogConfig {
            format: LogFormat::Text,
            level: LogLevel::Warn,
        };
        let expected = LogConfig {
            format: LogFormat::Json,
            level: LogLevel::Warn,
        };
        assert_eq!(run.log(file), expected);
    }

    #[test]
    fn a_file_without_its_option_gets_a_hint() {
        let reported = |words: &str| {
            let words: Vec<_> = words.split(' ').map(OsString::from).collect();
            Cli::from_words(&words).expect_err("wrong").to_string()
        };
        for words in ["pepd check x.toml", "pepd run --log-level debug x.toml"] {
            let reported = reported(words);
            assert!(reported.contains("`--config x.toml`"), "{reported}");
        }
        for words in ["pepd check --x.toml", "pepd status x.toml", "pepd"] {
            let reported = reported(words);
            assert!(!reported.contains("`--config "), "{reported}");
        }
    }

    #[test]
    fn prose_is_broken_once_and_examples_never() {
        let text = "One and\ntwo.\n\nThree.\n\nExamples:\n  pepd run\n  pepd top\n";
        let expected = "One and two.\n\nThree.\n\nExamples:\n  pepd run\n  pepd top";
        assert_eq!(flowed(text), expected);
    }

    #[test]
    fn help_lists_every_exit_code() {
        let help = Cli::command().render_long_help().to_string();
        for code in 0..=7 {
            assert!(help.contains(&format!("\n  {code}  ")), "{help}");
        }
    }
}
