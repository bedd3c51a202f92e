//! Man pages and completions of shells, made of the command line's definition: what packages install.
//!
//!     cargo run -p pepd --example documents -- FOLDER

use std::{env, error::Error, fs, io, path::Path};

use clap::CommandFactory as _;
use clap_complete::{Shell, generate_to};
use clap_mangen::Man;
use pepd::cli::Cli;
use roff::{Roff, roman};

fn main() -> Result<(), Box<dyn Error>> {
    let folder = env::args_os().nth(1).ok_or("which folder?")?;
    let folder = Path::new(&folder);
    let pages = folder.join("man");
    fs::create_dir_all(&pages)?;
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        generate_to(shell, &mut Cli::command(), "pepd", folder)?;
    }
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    write_pages(&command, "pepd", &pages)
}

/// One page for a command, and one for each of those below it, as git has them: `pepd-link(8)`.
fn write_pages(command: &clap::Command, name: &str, folder: &Path) -> Result<(), Box<dyn Error>> {
    fs::write(folder.join(format!("{name}.8")), page(command, name)?)?;
    for below in command
        .get_subcommands()
        .filter(|below| !below.is_hide_set())
    {
        write_pages(below, &format!("{name}-{}", below.get_name()), folder)?;
    }
    Ok(())
}

/// What stands behind a command's options is prose and examples: prose is filled, examples are not.
fn page(command: &clap::Command, name: &str) -> io::Result<Vec<u8>> {
    let help = command.get_after_help().map(ToString::to_string);
    let man = Man::new(command.clone().display_name(name.to_owned()))
        .title(name)
        .section("8")
        .source(format!("pepd {}", env!("CARGO_PKG_VERSION")))
        .manual("pepd");
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if command.has_subcommands() {
        man.render_subcommands_section(&mut page)?;
    }
    let mut notes = Roff::new();
    for part in help.unwrap_or_default().split("\n\n") {
        let (heading, text) = match part.trim_end().split_once(":\n") {
            Some((heading, text)) if !heading.contains('\n') => (heading, text),
            _ => ("Notes", part.trim_end()),
        };
        if text.is_empty() {
            continue;
        }
        notes.control("SH", [heading.to_uppercase().as_str()]);
        let verbatim = heading != "Notes";
        if verbatim {
            notes.control("nf", []);
        }
        for line in text.lines() {
            notes.text([roman(line)]);
        }
        if verbatim {
            notes.control("fi", []);
        }
    }
    notes.to_writer(&mut page)?;
    Ok(page)
}
