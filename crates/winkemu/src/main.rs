//! Command line of winkemu.

mod cli;

fn main() -> std::process::ExitCode {
    cli::run()
}
