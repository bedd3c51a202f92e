//! Man pages and shell completions for packages, generated from the command line's definition and
//! docs/configuration.md.
//!
//! \tcargo run -p pepd --example documents -- DIRECTORY

use std::{env, error::Error, fs, io, path::Path};

use clap::CommandFactory as _;
use clap_complete::{Shell, generate_to};
use clap_mangen::Man;
use pepd_api::exit::ExitStatus;
use pepd_control::cli::Cli;
use roff::{Inline, Roff, bold, italic, roman};

const CONFIGURATION: &str = include_str!("../../../docs/configuration.md");

fn main() -> Result<(), Box<dyn Error>> {
    let directory = env::args_os().nth(1).ok_or("missing argument: directory")?;
    let directory = Path::new(&directory);
    let pages = directory.join("man");
    fs::create_dir_all(&pages)?;
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        generate_to(shell, &mut Cli::command(), "pepd", directory)?;
    }
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    write_pages(&command, "pepd", &pages)?;
    fs::write(pages.join("pepd.toml.5"), configuration())?;
    Ok(())
}

/// Writes a page for a command, and one for each subcommand, named as git's: `pepd-link(8)`.
fn write_pages(
    command: &clap::Command,
    name: &str,
    directory: &Path,
) -> Result<(), Box<dyn Error>> {
    fs::write(directory.join(format!("{name}.8")), page(command, name)?)?;
    for below in command
        .get_subcommands()
        .filter(|below| !below.is_hide_set())
    {
        write_pages(below, &format!("{name}-{}", below.get_name()), directory)?;
    }
    Ok(())
}

/// Returns a page. Text after a command's options is prose and examples; only prose is filled.
fn page(command: &clap::Command, name: &str) -> io::Result<Vec<u8>> {
    let help = command.get_after_help().map(ToString::to_string);
    let help = help.unwrap_or_default();
    // `pepd --help` ends with them; the help of other commands does not.
    let exits = Some(ExitStatus::HELP).filter(|exits| !help.contains(exits));
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
    for part in help.split("\n\n").chain(exits) {
        let (heading, text) = match part.trim_end().split_once(":\n") {
            Some(("Exit codes", text)) => ("Exit status", text),
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

/// Returns pepd.toml(5): docs/configuration.md in the markup of man pages.
///
/// It supports the Markdown that this page uses: headings, paragraphs, lists, tables, fenced
/// examples, and within a line code, emphasis and links, which become their text.
fn configuration() -> String {
    let mut page = Roff::new();
    page.control("TH", ["pepd.toml", "5"]);
    page.control("SH", ["NAME"]);
    page.text([roman("pepd.toml - configuration of pepd(8)")]);
    let body = CONFIGURATION.trim_start_matches("# Configuration\n");
    page.control("SH", ["DESCRIPTION"]);
    let mut verbatim = false;
    for line in body.lines() {
        let numbered = line.split_once(". ");
        let numbered = numbered.filter(|(number, _)| number.parse::<u8>().is_ok());
        if line.starts_with("```") {
            verbatim = !verbatim;
            page.control(if verbatim { "nf" } else { "fi" }, []);
        } else if verbatim {
            page.text([roman(line)]);
        } else if let Some(heading) = line.strip_prefix("## ") {
            page.control("SH", [plain(heading).as_str()]);
        } else if let Some(heading) = line.strip_prefix("### ") {
            page.control("SS", [plain(heading).as_str()]);
        } else if let Some(key) = line.strip_prefix("#### ") {
            page.control("TP", []);
            page.text([bold(plain(key))]);
        } else if line.starts_with("|-") {
            // The separator between a table's header and its rows.
        } else if let Some(row) = line.strip_prefix('|') {
            let cells: Vec<_> = row
                .trim_end_matches('|')
                .split(" | ")
                .map(str::trim)
                .collect();
            page.control("br", []);
            page.text(inlines(&cells.join(": ")));
        } else if let Some(item) = line.strip_prefix("- ") {
            page.control("IP", ["-", "2"]);
            page.text(inlines(item));
        } else if let Some((number, item)) = numbered {
            page.control("IP", [format!("{number}.").as_str(), "3"]);
            page.text(inlines(item));
        } else if line.is_empty() {
            page.control("sp", []);
        } else {
            page.text(inlines(line.trim_start()));
        }
    }
    page.control("SH", ["SEE ALSO"]);
    page.text([roman(
        "pepd(8), pepd-check(8), /usr/share/doc/pepd/README.md",
    )]);
    page.to_roff()
}

/// Formats a line: text in roman, code in bold, emphasis in italic, a link as its text.
fn inlines(line: &str) -> Vec<Inline> {
    let mut parts = Vec::new();
    for (at, part) in linkless(line).split('`').enumerate() {
        if at % 2 == 1 {
            parts.push(bold(part));
            continue;
        }
        for (at, part) in part.split("**").enumerate() {
            parts.push(if at % 2 == 1 {
                italic(part)
            } else {
                roman(part)
            });
        }
    }
    parts
}

/// Returns a heading without markup.
fn plain(text: &str) -> String {
    linkless(text).replace('`', "")
}

/// Replaces `[text](address)` by `text`.
fn linkless(line: &str) -> String {
    let mut text = String::new();
    let mut rest = line;
    while let Some((before, link)) = rest.split_once('[') {
        let parts = link.split_once("](").and_then(|(shown, rest)| {
            let (_, after) = rest.split_once(')')?;
            Some((shown, after)).filter(|_| !shown.contains('['))
        });
        text += before;
        match parts {
            Some((shown, after)) => (text, rest) = (text + shown, after),
            None => (text, rest) = (text + "[", link),
        }
    }
    text + rest
}
