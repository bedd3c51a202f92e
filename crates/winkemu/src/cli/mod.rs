//! Commands, their options, and exit codes.

mod common;
mod exit;
mod link;
mod predict;
mod run;
mod values;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use exit::Failure;

/// Exact and repeatable emulator of bad links between network namespaces.
#[derive(Debug, Parser)]
#[command(version, after_help = exit::HELP, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Emulate a link between two namespaces until SIGINT, SIGTERM or the end of --duration
    #[command(after_help = link::HELP)]
    Link(Box<link::LinkCommand>),
    /// Run a command whose network lies behind an emulated link
    #[command(after_help = run::HELP, after_long_help = run::long_help())]
    Run(Box<run::RunCommand>),
    /// Predict the duration of a transfer over a link with short outages
    #[command(after_help = predict::HELP)]
    Predict(predict::PredictCommand),
    /// Run a scenario: real programs over emulated links, with tables and plots
    Lab(winkemu::lab::cli::LabArgs),
}

/// Runs the command given on the command line.
pub fn run() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Link(command) => command.execute(),
        Command::Run(command) => command.execute(),
        Command::Predict(command) => command.execute(),
        Command::Lab(args) => return winkemu::lab::cli::main(&args),
    };
    outcome.unwrap_or_else(|failure: Failure| failure.report())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn links_are_described_as_the_manual_says() {
        let text = "winkemu link --a sat/l0=10.0.0.1/24 --b 1234/l0 --delay 264ms --rate 10mbit \
            --queue 100%bdp --loss 1% --ber 1e-6 --gilbert 0.01,0.3 --wink p=0.4,i=100ms --seed 7 \
            --duration 30s --ab rate=1mbit,wink=p=0.1,i=40ms --ba loss=2%,delay=1s";
        let cli = Cli::try_parse_from(text.split_whitespace()).unwrap();
        let Command::Link(command) = cli.command else {
            panic!("expected the command `link`");
        };
        let options = command.common.options();
        let config = options.resolve_without_files().unwrap();
        assert_eq!(config.ab.rate.mean().unwrap().bits_per_second(), 1_000_000);
        assert_eq!(config.ba.rate.mean().unwrap().bits_per_second(), 10_000_000);
        assert_eq!(config.ba.loss.packet.get(), 0.02);
        assert_eq!(config.round_trip().as_millis(), 1264);
        assert_ne!(config.ab.outages, config.ba.outages);
    }

    #[test]
    fn errors_name_the_option_and_what_it_takes() {
        let error = |text: &str| {
            let text = format!("winkemu link --a x/l0 --b y/l0 {text}");
            let outcome = Cli::try_parse_from(text.split_whitespace());
            outcome.unwrap_err().to_string()
        };
        let text = error("--rate fast");
        assert!(
            text.contains("--rate") && text.contains("10Mbit/s"),
            "{text}"
        );
        let text = error("--wink p=2,i=1ms");
        assert!(text.contains("p from 0 to 0.999"), "{text}");
        let text = error("--ab speed=1mbit");
        assert!(
            text.contains("`speed`") && text.contains("rate, overhead"),
            "{text}"
        );
    }
}
