//! Commands that create or read files and need no running pepd: `pepd keygen` and `migrate`.

use std::{
    error::Error,
    fs,
    io::{self, Read as _},
    path::Path,
};

use pep_core::config::with_present_names;
use pepd_api::exit::ExitStatus;
use pepd_sys::keys;

use crate::{
    cli::{KeygenArgs, MigrateArgs},
    migrate::{Draft, options, rules},
    output::{complain, print},
};

/// Creates keys, or prints the public key of a private one.
pub(super) fn keygen(args: &KeygenArgs) -> Result<ExitStatus, Box<dyn Error>> {
    if let Some(path) = &args.public {
        let public = keys::public_key(&keys::read(path)?);
        return Ok(print(format_args!("{public}\n")));
    }
    let path = args.psk.as_ref().unwrap_or(&args.out);
    let key = keys::generate()?;
    keys::write(path, &key, args.force)?;
    if args.psk.is_some() {
        return Ok(ExitStatus::Success);
    }
    Ok(print(format_args!("{}\n", keys::public_key(&key))))
}

/// Settings files of PEPsal's packages; the last one is that of version 2.0.
const PEPSAL_SETTINGS: [&str; 3] = [
    "/etc/pepsal/pepsal.conf",
    "/etc/default/pepsal",
    "/etc/systemd/system/pepsal.service.d/pepsal.conf",
];

pub(super) fn migrate(args: &MigrateArgs) -> Result<ExitStatus, Box<dyn Error>> {
    if let Some(path) = &args.config {
        let renamed = with_present_names(&text_of(path)?)
            .map_err(|err| format!("{}: {}", path.display(), err.to_string().trim_end()))?;
        return Ok(print(format_args!("{renamed}")));
    }
    let mut draft = Draft {
        lan: args.lan.iter().cloned().collect(),
        link: args.link.clone(),
        rate: args.rate.clone(),
        rate_down: args.rate_down.clone(),
        rtt: args.rtt.clone(),
        ..Draft::default()
    };
    for path in &args.settings {
        options::variables(&text_of(path)?, &mut draft);
    }
    if args.settings.is_empty() && args.command.is_none() {
        let usual = PEPSAL_SETTINGS.iter().map(Path::new);
        for path in usual.filter(|path| path.exists()) {
            complain(format_args!("note: reading {}", path.display()));
            options::variables(&text_of(path)?, &mut draft);
        }
    }
    if let Some(command) = &args.command {
        options::command_line(command, &mut draft)?;
    }
    if let Some(path) = &args.rules {
        rules::rules(&text_of(path)?, &mut draft);
    }
    Ok(print(format_args!("{}", draft.to_toml()?)))
}

/// Maximum size of settings or rules.
const TEXT_MAX: u64 = 16 << 20;

fn text_of(path: &Path) -> Result<String, String> {
    let mut text = String::new();
    let read = if path == Path::new("-") {
        io::stdin().take(TEXT_MAX).read_to_string(&mut text)
    } else {
        let file = fs::File::open(path);
        file.and_then(|file| file.take(TEXT_MAX).read_to_string(&mut text))
    };
    match read {
        Ok(length) if length as u64 == TEXT_MAX => {
            let most = units::ByteSize(TEXT_MAX);
            Err(format!("{}: exceeds the maximum of {most}", path.display()))
        }
        Ok(_) => Ok(text),
        Err(err) => Err(format!("{}: {err}", path.display())),
    }
}
