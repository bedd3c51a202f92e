//! PEPsal's options: on its command line, and as variables of its service.

use std::{iter::Peekable, net::IpAddr};

use super::{Draft, MigrateError};

/// What PEPsal serves at one time when it is not told.
const CONNECTIONS: &str = "2112";

/// Options that take a value. `s` is another thing in 1.9 (an address) than in 2.0 (an interface).
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

/// Variables that hold a command line: of 1.8's init script.
const COMMAND_LINES: [&str; 2] = ["DAEMON_OPTS", "DAEMON_ARGS"];

/// Variables of `/etc/default/pepsal` and `/etc/pepsal/pepsal.conf`, and the options that they become.
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

/// Takes over a command line, with or without the program's name.
///
/// # Errors
/// When a quote is missing.
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

/// Takes `--conns 512` or `--conns=512`, shortened as far as getopt(3) allows.
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
    draft.remark(format!("`{word}`: not an option of PEPsal's; left out"));
}

/// As getopt(3) reads them: `-dvp5000`, `-d -v -p 5000`.
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

/// Takes over a settings file, as systemd reads it: lines `NAME=VALUE`, quoted or not.
///
/// A unit or a drop-in of one (2.0's `pepsal.conf`) has sections: of these only the service's
/// `Environment=` and a plain `ExecStart=` are settings.
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

/// Takes over a unit's command, unless a shell puts it together from the variables.
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
        // The name of the program, which an option cannot be taken for.
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
        None => draft.remark(format!("`{name}`: not a setting of PEPsal's; left out")),
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
            "{said} is PEPsal's default; pepd's is 8192 flows (`limits.flows`). Beyond it PEPsal refused connections, pepd lets \
             them pass unaccelerated"
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
            "{said}: which of this machine's addresses servers see (`source = \"self\"`), routing decides: to have that one, \
             give it to the route (`ip route change ... src {value}`)"
        )),
        's' => draft.remark(format!(
            "{said}: not needed; the DSCP of a client's SYN is on both legs (`dscp = \"keep\"`), whatever the interface"
        )),
        'l' => draft.remark(format!(
            "{said}: a line for each flow that ends is in the log; `pepd custody` lists those that run"
        )),
        'g' => draft.remark(format!("{said}: not needed; flows that have ended are gone at once")),
        't' => draft.remark(format!(
            "{said}: `timeouts.connect` (130 s) bounds how long a server may take to answer, `timeouts.idle` how long a flow may \
             be silent"
        )),
        'T' => draft.remark(format!("{said}: not needed; there is a thread for each processor")),
        'a' => draft.remark(format!(
            "{said}: not needed; pepd listens on loopback, where the rules lead to, and nobody else reaches it"
        )),
        'M' => draft.remark(format!(
            "{said}: nobody is signalled; when the limit is reached the log says so (`gate_closed`), and new connections \
             pass unaccelerated"
        )),
        // A queue for SYNs: 1.8 and before.
        _ => {
            draft.binds_clients = true;
            draft.remark(format!("{said}: not needed; SYNs are not queued to pepd"));
        }
    }
}

fn flag(letter: char, draft: &mut Draft) {
    match letter {
        'v' => draft.remark(
            "`-v`: pepd logs a line for each flow that ends; `log.level = \"debug\"` says more",
        ),
        'f' => draft.remark("`-f`: TCP Fast Open is not used: a SYN with data may arrive twice"),
        'k' => draft.remark(
            "`-k`: not needed; what has arrived is sent at once, in full segments where there is enough",
        ),
        'n' => draft.remark("`-n`: TCP_NODELAY is on by default (`nodelay_lan`, `nodelay_link`)"),
        'q' => draft.remark("`-q`: not needed; ACKs on the host's side are the kernel's matter"),
        // In the background, help, version: the service manager's, or nothing that lasts.
        _ => {}
    }
}
