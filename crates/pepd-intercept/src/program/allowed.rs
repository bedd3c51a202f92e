//! Orders that pepd gives. Others would come from a worker that an attacker controls.

use std::{ffi::OsStr, os::unix::ffi::OsStrExt as _};

use super::{Order, PEPD};

/// Directories of programs; without one, those of `PATH`.
const PLACES: [&str; 4] = ["", "/usr/sbin/", "/sbin/", "/usr/local/sbin/"];

/// Arguments: a word as it is, a word that begins so, or any further words but options.
#[derive(Debug, Clone, Copy)]
enum Word {
    Is(&'static str),
    Begins(&'static str),
    Names,
}

use Word::{Begins, Is, Names};

/// Name of the input of nft, which has no name.
const INPUT: &str = "/proc/self/fd/0";

const NFT: &[&[Word]] = &[
    &[Is("--version")],
    &[Is("-f"), Is(INPUT)],
    &[Is("-c"), Is("-f"), Is(INPUT)],
    &[Is("-j"), Is("list"), Names],
    &[Is("-j"), Is("-t"), Is("list"), Names],
];
const RESTORE: &[&[Word]] = &[&[Is("--version")], &[Is("-w"), Is("2"), Is("--noflush")]];
const SAVE: &[&[Word]] = &[&[], &[Is("-c"), Is("-t"), Names]];
const SS: &[&[Word]] = &[
    &[Is("--version")],
    &[
        Is("-K"),
        Is("-H"),
        Is("-t"),
        Is("-n"),
        Is("state"),
        Is("time-wait"),
        Names,
    ],
];
const CHECK: &[&[Word]] = &[&[Is("check"), Is("--config-only"), Begins("--config=")]];

/// Returns what a program of this name may be asked; `None` for another program.
fn orders(name: &str) -> Option<&'static [&'static [Word]]> {
    let of_iptables = || {
        let rest = name.strip_prefix("ip6").or(name.strip_prefix("ip"))?;
        let rest = rest.strip_prefix("tables")?;
        let rest = ["-legacy", "-nft"]
            .iter()
            .find_map(|backend| rest.strip_prefix(backend))
            .unwrap_or(rest);
        match rest {
            "-restore" => Some(RESTORE),
            "-save" => Some(SAVE),
            _ => None,
        }
    };
    match name {
        "nft" => Some(NFT),
        "ss" => Some(SS),
        _ => of_iptables(),
    }
}

fn fits(args: &[impl AsRef<OsStr>], words: &[Word]) -> bool {
    let is_option = |arg: &&OsStr| arg.as_bytes().starts_with(b"-");
    let args: Vec<&OsStr> = args.iter().map(AsRef::as_ref).collect();
    match (args.split_first(), words.split_first()) {
        (None, None) => true,
        (_, Some((Names, _))) => !args.iter().any(is_option),
        (Some((arg, args)), Some((word, words))) => {
            let is = match word {
                Is(text) => *arg == *text,
                Begins(text) => arg.as_bytes().starts_with(text.as_bytes()),
                Names => false,
            };
            is && fits(args, words)
        }
        _ => false,
    }
}

/// Returns whether pepd gives such orders.
pub(super) fn is_allowed(order: &Order) -> bool {
    let Some(program) = order.program.to_str() else {
        return false;
    };
    let words = if program == PEPD {
        Some(CHECK)
    } else {
        let name = PLACES
            .iter()
            .filter_map(|place| program.strip_prefix(place));
        name.filter(|name| !name.contains('/')).find_map(orders)
    };
    words.is_some_and(|words| words.iter().any(|words| fits(&order.args, words)))
}

/// Returns whether the input of a program may make it run another one: iptables-restore has an
/// option for it, `--modprobe` or `-M`, also in the lines that it reads.
///
/// Its versions disagree on quotes and backslashes within words, and on long lines. pepd writes
/// none, and what contains them may be anything.
pub(super) fn runs_another(input: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(input) else {
        return true;
    };
    let is_short = |line: &str| line.len() < LINE_MAX;
    !text
        .split('\n')
        .all(|line| is_short(line) && is_plain(line))
}

/// Longest line, in bytes, that each version of iptables-restore reads as one.
const LINE_MAX: usize = 4000;

/// Returns whether a line consists of words, and of quotations between spaces, none of which leads
/// to another program.
fn is_plain(mut line: &str) -> bool {
    loop {
        line = line.trim_start_matches([' ', '\t']);
        let word = match line.strip_prefix('"') {
            Some(quoted) => quoted.split_once('"'),
            None => line.split_once([' ', '\t']).or(Some((line, ""))),
        };
        let is_quoted = line.starts_with('"');
        let Some((word, rest)) = word else {
            return false;
        };
        let leads = word.split([' ', '\t']).any(leads_elsewhere);
        let is_strange = |character: char| match character {
            '\'' => !is_quoted,
            '"' | '\\' => true,
            _ => character.is_control(),
        };
        let is_joined = is_quoted && !rest.is_empty() && !rest.starts_with([' ', '\t']);
        if leads || is_joined || word.contains(is_strange) {
            return false;
        }
        if rest.is_empty() {
            return true;
        }
        line = rest;
    }
}

/// Returns whether a word may be the option for another program.
fn leads_elsewhere(word: &str) -> bool {
    match word.strip_prefix('-') {
        Some(option) if option.starts_with('-') => word.starts_with("--mo"),
        Some(options) => options.contains('M'),
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(line: &str) -> Order {
        let mut words = line.split(' ').map(Into::into);
        Order {
            program: words.next().unwrap(),
            args: words.collect(),
        }
    }

    #[test]
    fn orders_of_pepd_are_allowed() {
        for line in [
            "nft --version",
            "/usr/sbin/nft -c -f /proc/self/fd/0",
            "/sbin/nft -j -t list table inet pepd",
            "nft -j list ruleset",
            "ip6tables-restore --version",
            "/usr/sbin/iptables-legacy-restore -w 2 --noflush",
            "ip6tables-nft-save -c -t raw",
            "/usr/local/sbin/iptables-nft-save",
            "ss -K -H -t -n state time-wait ( fwmark = 0x1/0xff or fwmark = 0x2/0xff )",
            "pepd check --config-only --config=/etc/pepd/pepd.toml",
        ] {
            assert!(is_allowed(&order(line)), "{line}");
        }
        let iptables = Order {
            program: "iptables-save".into(),
            args: Vec::new(),
        };
        assert!(is_allowed(&iptables));
    }

    #[test]
    fn others_are_not() {
        for line in [
            "sh -c true",
            "/tmp/nft --version",
            "/usr/sbin/../../tmp/nft --version",
            "nft -f /etc/shadow",
            "nft -i",
            "nft -j list ruleset -f /etc/shadow",
            "nft -I /tmp -f /proc/self/fd/0",
            "nft",
            "iptables-restore -M /tmp/x",
            "iptables-restore -w 2 --noflush --modprobe=/tmp/x",
            "iptables -F",
            "iptables-save -c -t raw -f /etc/passwd",
            "iptables-apply x",
            "ss -K",
            "ss -K -H -t -n state time-wait -F /etc/shadow",
            "pepd check --config-only",
            "pepd run --config=/tmp/x",
            "/usr/sbin/pepd check --config-only --config=x",
        ] {
            assert!(!is_allowed(&order(line)), "{line}");
        }
    }

    #[test]
    fn lines_that_make_iptables_run_a_program_are_found() {
        for line in [
            "-A x -M /tmp/x -j ACCEPT",
            "-A x --modprobe=/tmp/x",
            "-A x \"--modp\" /tmp/x",
            "-A x -\"M\"/tmp/x",
            "*raw\n-nM/tmp/x -A x",
            "-A\tx\t--mo\\dprobe /tmp/x",
            "-A x --comment \"y\"--modprobe=/tmp/x",
            "-A x --comment \"y\"-M/tmp/x",
            "-A x --comment y\"-M\" /tmp/x",
            "-A x --comment \"y -M /tmp/x",
            "-A x \u{b}-M /tmp/x",
            "-A x --comment \" -A y -M/tmp/x \"",
        ] {
            assert!(runs_another(line.as_bytes()), "{line}");
        }
        let long = format!("-A x{:10000}-A y", "");
        assert!(runs_another(long.as_bytes()));
        for line in [
            "-A PEPD_M -m mark --mark 1",
            "-A x -j MARK --set-xmark M-M",
            "*raw\n:PEPD - [0:0]\n-A x -m comment --comment \"a host's M\" -j ACCEPT\nCOMMIT\n",
        ] {
            assert!(!runs_another(line.as_bytes()), "{line}");
        }
    }
}
