//! Options of PEPsal: on its command line, and as variables of its service.

use std::{iter::Peekable, net::IpAddr};

use super::{Draft, MigrateError};

/// PEPsal's default of the maximum number of connections.
const CONNECTIONS: &str = "2112";

/// Options that take a value. `s` is an address in 1.9 and an interface in 2.0.
const VALUED: &str = "pclgtCmMsTaq";
const FLAGS: &str = "dvhVfnqk";

/// Long options of 2.0 and their letters. Some of its versions write `_` for `-`, and `corck`.
const LONG: [(&str, char); 19] = [
    ("daemon", 'd'),
    ("verbose", 'v'),
    ("help", 'h'),
    ("version", 'V'),
    ("fastopen", 'f'),
    ("nodelay", 'n'),
    ("quickack", 'q'),
    ("cork", 'k'),
    ("corck", 'k'),
    ("port", 'p'),
    ("logfile", 'l'),
    ("gc-interval", 'g'),
    ("plifetime", 't'),
    ("conns", 'c'),
    ("threads", 'T'),
    ("congestion-algo", 'C'),
    ("max-segment-size", 'm'),
    ("monitoring-pid", 'M'),
    ("sniff-interface", 's'),
];

/// Variables with a command line, in the init script of 1.8.
const COMMAND_LINES: [&str; 2] = ["DAEMON_OPTS", "DAEMON_ARGS"];

/// Variables of `/etc/default/pepsal` and `/etc/pepsal/pepsal.conf`, and their options.
const VARIABLES: [(&str, char); 17] = [
    ("port", 'p'),
    ("max_conns", 'c'),
    ("log_file", 'l'),
    ("gc_interval", 'g'),
    ("gcc_interval", 'g'),
    ("pending_lifetime", 't'),
    ("congestion_control", 'C'),
    ("mss", 'm'),
    ("interface", 's'),
    ("snat", 's'),
    ("threads", 'T'),
    ("ip_address", 'a'),
    ("debug", 'v'),
    ("fastopen", 'f'),
    ("nodelay", 'n'),
    ("quickack", 'q'),
    ("cork", 'k'),
];

/// Reads a command line, with or without the program's name.
///
/// # Errors
/// If a quote is missing.
pub fn command_line(text: &str, draft: &mut Draft) -> Result<(), MigrateError> {
    let words = shlex::split(text).ok_or_else(|| MigrateError::Quotes(text.to_owned()))?;
    let named = words.first().is_some_and(|word| !word.starts_with('-'));
    let mut words = words.into_iter().skip(usize::from(named)).peekable();
    while let Some(word) = words.next() {
        if let Some(long) = word.strip_prefix("--") {
            long_option(long, &mut words, draft);
        } else if let Some(letters) = word.strip_prefix('-') {
            cluster(letters, &mut words, draft);
        } else {
            unknown(&word, draft);
        }
    }
    Ok(())
}

/// Reads `--conns 512` or `--conns=512`, abbreviated as getopt(3) allows.
fn long_option(text: &str, words: &mut impl Iterator<Item = String>, draft: &mut Draft) {
    let (name, value) = match text.split_once('=') {
        Some((name, value)) => (name, Some(value.to_owned())),
        None => (text, None),
    };
    let dashed = name.replace('_', "-");
    let begins = |(long, _): &&(&str, char)| long.starts_with(&dashed);
    let exact = LONG.iter().find(|(long, _)| *long == dashed);
    let mut shortened = LONG.iter().filter(begins);
    let found = exact.or_else(|| shortened.next().filter(|_| shortened.next().is_none()));
    match found {
        Some(&(_, letter)) if letter != 'q' && VALUED.contains(letter) => {
            match value.or_else(|| words.next()) {
                Some(value) => option(letter, &value, draft),
                None => draft.remark(format!("`--{name}`: its value is missing; left out")),
            }
        }
        Some(&(_, letter)) => flag(letter, draft),
        None => unknown(&format!("--{name}"), draft),
    }
}

fn unknown(word: &str, draft: &mut Draft) {
    draft.remark(format!("`{word}`: not an option of PEPsal; left out"));
}

/// Reads short options as getopt(3) does: `-dvp5000`, `-d -v -p 5000`.
fn cluster(letters: &str, words: &mut Peekable<impl Iterator<Item = String>>, draft: &mut Draft) {
    for (at, letter) in letters.char_indices() {
        let rest = &letters[at + letter.len_utf8()..];
        // 1.8 took a queue's number after -q, 2.0 takes nothing.
        let is_number = |text: &str| text.parse::<u16>().is_ok();
        let is_flag = letter == 'q'
            && !is_number(rest)
            && !(rest.is_empty() && words.peek().is_some_and(|word| is_number(word)));
        if VALUED.contains(letter) && !is_flag {
            let value = if rest.is_empty() {
                words.next()
            } else {
                Some(rest.to_owned())
            };
            match value {
                Some(value) => option(letter, &value, draft),
                None => draft.remark(format!("`-{letter}`: its value is missing; left out")),
            }
            return;
        }
        if FLAGS.contains(letter) {
            flag(letter, draft);
        } else {
            unknown(&format!("-{letter}"), draft);
        }
    }
}

/// Reads a settings file as systemd does: lines `NAME=VALUE`, quoted or not.
///
/// In a unit or its drop-in (`pepsal.conf` of 2.0), which have sections, only the `Environment=`
/// and a plain `ExecStart=` of the service are settings.
pub fn variables(text: &str, draft: &mut Draft) {
    let mut of_a_unit = false;
    for line in text.lines().map(str::trim) {
        of_a_unit |= line.starts_with('[');
        if line.is_empty() || line.starts_with(['#', ';', '[']) {
            continue;
        }
        if let Some(settings) = line.strip_prefix("Environment=") {
            for setting in shlex::split(settings).unwrap_or_default() {
                variable(&setting, draft);
            }
            continue;
        }
        if of_a_unit {
            if let Some(command) = line.strip_prefix("ExecStart=") {
                started_by(command, draft);
            }
            continue;
        }
        match shlex::split(line).unwrap_or_default().first() {
            Some(setting) => variable(setting, draft),
            None => draft.remark(format!("`{line}`: not a setting; left out")),
        }
    }
}

/// Reads the command of a unit, unless a shell builds it from the variables.
fn started_by(command: &str, draft: &mut Draft) {
    let program = command.split_whitespace().next().unwrap_or_default();
    if program.ends_with("pepsal") && command_line(command, draft).is_err() {
        draft.remark(format!(
            "`ExecStart={command}`: a quote is missing; left out"
        ));
    }
}

fn variable(setting: &str, draft: &mut Draft) {
    let Some((name, value)) = setting.split_once('=') else {
        draft.remark(format!("`{setting}`: not a setting; left out"));
        return;
    };
    if COMMAND_LINES.contains(&name) {
        // The name of the program ensures that the first option is not taken for it.
        if command_line(&format!("pepsal {value}"), draft).is_err() {
            draft.remark(format!("`{setting}`: a quote is missing; left out"));
        }
        return;
    }
    let known = VARIABLES.iter().find(|(known, _)| *known == name);
    match known.map(|&(_, letter)| letter) {
        Some(letter) if "vfnqk".contains(letter) => {
            if value == "true" {
                flag(letter, draft);
            }
        }
        Some(_) if value.is_empty() => {}
        Some(letter) => option(letter, value, draft),
        None => draft.remark(format!("`{name}`: not a setting of PEPsal; left out")),
    }
}

fn option(letter: char, value: &str, draft: &mut Draft) {
    let said = format!("`-{letter} {value}`");
    match letter {
        'p' => match value.parse() {
            Ok(port) => draft.listen_port = Some(port),
            Err(_) => draft.remark(format!("{said}: not a port; left out")),
        },
        'c' if value == CONNECTIONS => draft.remark(format!(
            "{said} is PEPsal's default; pepd's is 8192 flows (`limits.flows`). Beyond it PEPsal \
             refused connections; pepd forwards them unaccelerated"
        )),
        'c' => match value.parse() {
            Ok(flows) => draft.flows = Some(flows),
            Err(_) => draft.remark(format!("{said}: not a number; left out")),
        },
        'C' => draft.congestion = Some(value.to_owned()),
        'm' => match value.parse() {
            Ok(mss) => draft.mss = Some(mss),
            Err(_) => draft.remark(format!("{said}: not a number; left out")),
        },
        's' if value.parse::<IpAddr>().is_ok() => draft.remark(format!(
            "{said}: with `source = \"self\"`, routing selects the address that servers see; to use \
             this one, set it on the route (`ip route change ... src {value}`)"
        )),
        's' => draft.remark(format!(
            "{said}: not needed; both legs have the DSCP of the client's SYN (`dscp = \"keep\"`)"
        )),
        'l' => draft.remark(format!(
            "{said}: the log has a line for each flow that ends; `pepd flows` lists open flows"
        )),
        'g' => draft.remark(format!("{said}: not needed; ended flows are freed at once")),
        't' => draft.remark(format!(
            "{said}: `timeouts.connect` (130 s) bounds the wait for a server, `timeouts.idle` the \
             silence of a flow"
        )),
        'T' => draft.remark(format!("{said}: not needed; pepd runs one thread per CPU")),
        'a' => draft.remark(format!(
            "{said}: not needed; pepd listens on loopback only, where the rules redirect to"
        )),
        'M' => draft.remark(format!(
            "{said}: pepd signals no process; at the limit it logs `gate_closed`, and new connections \
             pass unaccelerated"
        )),
        // `q`: a queue for SYNs, in 1.8 and earlier.
        _ => {
            draft.binds_clients = true;
            draft.remark(format!("{said}: not needed; SYNs are not queued to pepd"));
        }
    }
}

fn flag(letter: char, draft: &mut Draft) {
    match letter {
        'v' => draft.remark(
            "`-v`: pepd logs a line for each flow that ends; `log.level = \"debug\"` logs more",
        ),
        'f' => {
            draft.remark("`-f`: pepd does not use TCP Fast Open: a SYN with data may arrive twice");
        }
        'k' => draft.remark(
            "`-k`: not needed; pepd sends received data at once, in full segments if it suffices",
        ),
        'n' => draft.remark("`-n`: TCP_NODELAY is on by default (`nodelay_lan`, `nodelay_link`)"),
        'q' => draft.remark("`-q`: not needed; the kernel controls ACKs on the host's side"),
        // Daemon mode belongs to the service manager; help and version are no settings.
        _ => {}
    }
}
