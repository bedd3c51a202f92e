//! The command line: the tree of commands here, the options of each where it is.

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
  pepd check --config /etc/pepd/pepd.toml     is the file right, and what does it come to?
  pepd rules --config /etc/pepd/pepd.toml     what would be installed in the kernel?
  pepd run --config /etc/pepd/pepd.toml       accelerate, until SIGTERM
  pepd cc list                                which congestion controls are there?
  pepd link down --for 5min                   the link will be away
  pepd status                                 link, sites, peers and use of limits
  pepd top                                    the same, live
  pepd flows                                  each flow: round trip, rate, what holds it up
  pepd trace 10.0.0.7:40112                   what one flow does, live, and what it waits for
  pepd probe hub                              what is the path to that peer like, idle and full?
  pepd capture 10.0.0.7:40112 --out f.pcapng  its packets, as a file
  pepd custody                                what is held for hosts
  pepd keygen                                 a key, by which peers of tunnels know this pepd

The smallest configuration:
  [intercept]
  lan = [\"eth0\"]            # interfaces on which hosts' connections arrive
";

/// A transparent TCP performance enhancing proxy: splits the connections of the hosts behind it
/// and carries them over a bad link in a way that fits the link.
#[derive(Debug, Parser)]
#[command(name = "pepd", version, after_help = EXAMPLES, after_long_help = format!("{EXAMPLES}\n{}", ExitStatus::HELP))]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

impl Cli {
    /// The command line of this process. One that is wrong, or asks for help, ends the process.
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

/// Commands that are about a configuration, which is often given without its option.
const BY_CONFIG: [&str; 4] = ["run", "check", "rules", "cleanup"];

/// Adds how a file is given, where one was given without `--config`.
fn with_tip(mut err: Error) -> Error {
    let Some(ContextValue::String(word)) = err.get(ContextKind::InvalidArg) else {
        return err;
    };
    if err.kind() == ErrorKind::UnknownArgument && !word.starts_with('-') {
        let tip = format!("name the configuration by its option: `--config {word}`");
        let tip = ContextValue::StyledStrs(vec![tip.into()]);
        err.insert(ContextKind::Suggested, tip);
    }
    err
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Intercept and accelerate connections until a signal
    #[command(after_help = flowed(run::RUN_EXAMPLES))]
    Run(RunArgs),
    /// Check a configuration, this machine and a pepd that runs, and say what to do
    #[command(after_help = flowed(check::CHECK_EXAMPLES))]
    Check(CheckArgs),
    /// Print what would be installed in the kernel
    #[command(after_help = flowed(check::RULES_EXAMPLES))]
    Rules(RulesArgs),
    /// Remove rules and routes that nobody uses any more
    #[command(after_help = flowed(check::CLEANUP_EXAMPLES))]
    Cleanup(CleanupArgs),
    /// List congestion controls
    #[command(after_help = flowed(cc::CC_EXAMPLES))]
    Cc(CcArgs),
    /// A command that asks a running pepd, or needs none.
    #[command(flatten)]
    Client(ClientCommand),
}

/// Commands that ask a running pepd, or need none.
#[derive(Debug, Subcommand)]
pub enum ClientCommand {
    /// Show or set the state of the link
    #[command(after_help = flowed(running::LINK_EXAMPLES))]
    Link(LinkArgs),
    /// Show link, sites, peers and use of limits
    #[command(after_help = flowed(running::STATUS_EXAMPLES))]
    Status(AdminArgs),
    /// Show a running pepd in the terminal, live
    #[command(after_help = flowed(running::TOP_EXAMPLES))]
    Top(TopArgs),
    /// List the flows that are open, with what the kernel says of each
    #[command(after_help = flowed(running::FLOWS_EXAMPLES))]
    Flows(FlowsArgs),
    /// Show one flow, live: what moves, what it waits for, how it ends
    #[command(after_help = flowed(trace::TRACE_EXAMPLES))]
    Trace(TraceArgs),
    /// Measure the path to a peer under load
    #[command(after_help = flowed(running::PROBE_EXAMPLES))]
    Probe(ProbeArgs),
    /// Write the packets of one flow into a file
    #[command(after_help = flowed(capture::CAPTURE_EXAMPLES))]
    Capture(CaptureArgs),
    /// List bytes that pepd holds for hosts
    #[command(after_help = flowed(running::CUSTODY_EXAMPLES))]
    Custody(CustodyArgs),
    /// Give a running pepd another configuration, with all flows
    #[command(after_help = flowed(running::RELOAD_EXAMPLES))]
    Reload(ReloadArgs),
    /// Switch sites off and on, or list them
    #[command(after_help = flowed(running::SITE_EXAMPLES), args_conflicts_with_subcommands = true)]
    Site(SiteArgs),
    /// Stop taking new flows, wait for open ones, then exit
    #[command(after_help = flowed(running::DRAIN_EXAMPLES))]
    Drain(DrainArgs),
    /// Make the keys by which the two ends of a tunnel know each other
    #[command(after_help = flowed(keygen::KEYGEN_EXAMPLES))]
    Keygen(KeygenArgs),
    /// Convert a PEPsal setup into a pepd configuration
    #[command(after_help = flowed(migrate::MIGRATE_EXAMPLES))]
    Migrate(MigrateArgs),
}

/// Path of the configuration where none is given.
pub const CONFIG: &str = "/etc/pepd/pepd.toml";

/// Where the configuration is.
#[derive(Debug, Args)]
pub struct ConfigArgs {
    /// The configuration file (TOML)
    #[arg(short, long, value_name = "FILE", default_value = CONFIG)]
    pub config: PathBuf,
}

/// Paragraphs of prose as a line each, which clap breaks as wide as the terminal is; other lines, which begin with spaces or follow a
/// heading, as they are.
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
    fn a_file_without_its_option_is_told_with_it() {
        let told = |words: &str| {
            let words: Vec<_> = words.split(' ').map(OsString::from).collect();
            Cli::from_words(&words).expect_err("wrong").to_string()
        };
        for words in ["pepd check x.toml", "pepd run --log-level debug x.toml"] {
            let told = told(words);
            assert!(told.contains("`--config x.toml`"), "{told}");
        }
        for words in ["pepd check --x.toml", "pepd status x.toml", "pepd"] {
            let told = told(words);
            assert!(!told.contains("`--config "), "{told}");
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
