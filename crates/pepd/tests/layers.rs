//! Order of the layers: crates by their dependencies, and within each crate its modules.
//!
//! Cargo rejects circles of crates. This test enforces the rest: a module may use those of its own
//! group and of groups above it in [`LAYERS`], and no others. All modules may use items at the root
//! of their crate. Tests may use anything.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

/// Modules of each crate, from those that use none to those that use the others. Modules of one
/// group may use one another.
const LAYERS: &[(&str, &[&str])] = &[
    (
        "units",
        &["contacts", "number", "duration", "rate", "ratio", "size"],
    ),
    ("trace", &["event", "qlog"]),
    (
        "fec",
        &[
            "gf256", "kernel", "code", "theory", "overhead", "wire", "scheme", "symbol", "serial",
            "block", "control", "testing", "window",
        ],
    ),
    (
        "boosters",
        &[
            "ip",
            "checksum",
            "ecn",
            "packet",
            "rule",
            "booster",
            "flow",
            "queue",
            "tcp",
            "ack_filter",
            "wire",
            "ack_reconstruction",
            "arq",
            "joined",
            "pieces",
            "stack",
            "chain",
            "compress",
            "congestion",
            "data_filter",
            "divacks",
            "fec",
            "jitter",
            "snoop",
            "udp_checksum",
            "settings",
            "exchange",
        ],
    ),
    (
        "winkemu-link",
        &[
            "trace",
            "config",
            "decision",
            "random",
            "delay",
            "stats",
            "loss",
            "outage",
            "queue",
            "serialiser",
            "path",
            "engine",
            "history",
            "options",
            "predict",
            "sim",
        ],
    ),
    (
        "bpf-cc",
        &[
            "control",
            "error",
            "kernel",
            "leftovers",
            "requirements",
            "load",
        ],
    ),
    ("winkemu", &["cli", "netns", "shell", "lab", "presets"]),
    (
        "pep-core",
        &[
            "expiring",
            "budget fair round_robin rounds ring chunks key hosts stream_header pace redirection stats syn history lookups parties receive",
            "fragments midway relay",
            "arena outage reading",
            "site",
            "reach",
            "config custody share",
        ],
    ),
    (
        "tunnel",
        &[
            "class ecn ranges window wire",
            "arrival crypto coding cause path stream schedule delivery",
            "outage rate store",
            "session",
            "endpoint compression",
        ],
    ),
    (
        "pepd-api",
        &[
            "exit text change history link sites",
            "custody probe status",
            "flows",
            "trace",
        ],
    ),
    (
        "pepd-sys",
        &[
            "family gate marks threads netlink_bytes crash_point stats keys log cgroup load admin_socket",
            "privileges",
            "clock descriptors interface packet passing process reactor socket",
            "sockets",
            "datagrams ethtool keeper memory notices packet_log places tun unanswered unix_names",
            "congestion site_counters",
            "leg",
            "held",
        ],
    ),
    (
        "pepd-intercept",
        &[
            "rules program",
            "nft netlink hop hops",
            "filter iptables lan setup",
            "other_marks icmp route",
            "clear_hold near raw rule_watch watcher",
            "defer forwarding full_hosts lost midway neigh tun",
            "bypass render time_wait upkeep",
        ],
    ),
    (
        "pepd-relay",
        &["arena", "survive limits", "outage share", "flow"],
    ),
    (
        "pepd-tunnel",
        &[
            "batch company custody leg shards",
            "udp",
            "table",
            "credit packets peers",
            "core far flow name near paths probe recover setup tap tcp",
            "driver",
            "boosted",
        ],
    ),
    (
        "pepd-control",
        &[
            "capture client migrate output",
            "cli top waiting",
            "commands",
        ],
    ),
    (
        "pepd",
        &[
            "page service",
            "admin",
            "kernel switches accept",
            "workers",
            "observe",
            "change probe cleanup",
            "diagnose summary",
            "daemon supervisor",
        ],
    ),
];

fn directory(krate: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("..")
        .join(krate)
        .join("src")
}

/// A source file and its module, as path within the crate.
struct File {
    module: Vec<String>,
    text: String,
}

/// Returns the source files of a crate, as compiled without its tests.
fn files(krate: &str) -> Vec<File> {
    let root = directory(krate);
    let text = fs::read_to_string(root.join("lib.rs")).expect("a crate");
    let mut files = vec![File {
        module: Vec::new(),
        text: code(&text),
    }];
    let mut next = 0;
    while let Some(file) = files.get(next) {
        next += 1;
        let found: Vec<File> = submodules(&file.text)
            .into_iter()
            .map(|name| {
                let module = [&file.module[..], &[name]].concat();
                let path = root.join(module.join("/"));
                let path = [path.with_extension("rs"), path.join("mod.rs")]
                    .into_iter()
                    .find(|path| path.exists())
                    .unwrap_or_else(|| panic!("{krate}: no file of {module:?}"));
                let text = code(&fs::read_to_string(path).expect("a file"));
                File { module, text }
            })
            .collect();
        files.extend(found);
    }
    files
}

/// Returns the code of a file without comments and tests.
fn code(text: &str) -> String {
    let mut code = String::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let line = line.split("//").next().unwrap_or_default();
        let is_test = line.trim_start().starts_with("#[cfg(")
            && line.contains("test")
            && !line.contains("not(");
        if !is_test {
            code.push_str(line);
            code.push('\n');
            continue;
        }
        skip_item(&mut lines);
    }
    code
}

/// Skips the item that follows an attribute: up to its semicolon, or its closing brace.
fn skip_item<'a>(lines: &mut impl Iterator<Item = &'a str>) {
    let mut depth = 0;
    for line in lines {
        let line = line.split("//").next().unwrap_or_default();
        let open = line.matches('{').count();
        depth += open;
        depth -= line.matches('}').count().min(depth);
        let ends = line.ends_with([';', ',']) || (line.contains('}') && !line.starts_with('#'));
        if depth == 0 && ends {
            return;
        }
    }
}

/// Returns the names of the modules that a file declares without a body.
fn submodules(code: &str) -> Vec<String> {
    let declared = code.lines().filter_map(|line| {
        let line = line.trim_end().strip_suffix(';')?;
        let (before, name) = line.rsplit_once("mod ")?;
        let is_declaration = before.is_empty() || before.trim_end().starts_with("pub");
        (is_declaration && !name.contains(' ')).then(|| name.to_owned())
    });
    declared.collect()
}

/// Returns the whole paths that begin with `crate`, `super` or `self`; each import separately.
fn paths(code: &str) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    let mut rest = code;
    while let Some((at, word)) = ["crate::", "super::", "self::"]
        .iter()
        .filter_map(|word| Some((rest.find(word)?, *word)))
        .min()
    {
        let is_within = rest[..at].ends_with(|last: char| last.is_alphanumeric() || last == '_')
            || rest[..at].ends_with(':');
        rest = &rest[at..];
        if is_within {
            rest = &rest[word.len()..];
            continue;
        }
        let end = tree(rest, &mut Vec::new(), &mut found);
        rest = &rest[end..];
    }
    found
}

/// Parses a path, or a tree of paths in braces; returns its length.
fn tree(text: &str, before: &mut Vec<String>, found: &mut Vec<Vec<String>>) -> usize {
    let depth = before.len();
    let mut at = 0;
    loop {
        let rest = &text[at..];
        let blank = rest.len() - rest.trim_start().len();
        let rest = &rest[blank..];
        if let Some(inner) = rest.strip_prefix('{') {
            let mut end = at + blank + 1;
            let mut inner = inner;
            while !inner.trim_start().starts_with('}') && !inner.is_empty() {
                let mut length = tree(inner, before, found);
                let behind = inner[length..].trim_start();
                length = inner.len() - behind.strip_prefix(',').unwrap_or(behind).len();
                // No part of a tree: the braces belong to other code.
                if length == 0 {
                    break;
                }
                end += length;
                inner = &inner[length..];
            }
            before.truncate(depth);
            return end + inner.len() - inner.trim_start().strip_prefix('}').unwrap_or(inner).len();
        }
        let is_name = |c: char| c.is_alphanumeric() || c == '_' || c == '*';
        let length = rest.find(|c| !is_name(c)).unwrap_or(rest.len());
        at += blank + length;
        before.push(rest[..length].to_owned());
        match text[at..].strip_prefix("::") {
            Some(_) if length > 0 => at += 2,
            _ => break,
        }
    }
    found.push(before.clone());
    before.truncate(depth);
    // `as` and another name.
    let rest = text[at..].trim_start();
    match rest.strip_prefix("as ") {
        Some(name) => {
            let is_name = |c: char| c.is_alphanumeric() || c == '_';
            let behind = name.trim_start_matches(is_name);
            text.len() - behind.len()
        }
        None => at,
    }
}

/// Returns the module at the root of the crate that a path leads to; `None` for an item at the
/// root.
fn target<'a>(path: &'a [String], module: &[String], tops: &BTreeSet<&str>) -> Option<&'a str>
where
{
    let supers = path.iter().take_while(|part| *part == "super").count();
    let name = match path.first().map(String::as_str) {
        Some("crate") => path.get(1),
        // For modules at the root `super` is the root.
        Some("super") if supers == module.len() => path.get(supers),
        _ => None,
    }?;
    tops.contains(name.as_str()).then_some(name)
}

#[test]
fn no_module_uses_one_below_it() {
    let mut wrong = Vec::new();
    for (krate, groups) in LAYERS {
        let mut place = BTreeMap::new();
        for (index, group) in groups.iter().enumerate() {
            place.extend(group.split(' ').map(|module| (module, index)));
        }
        let files = files(krate);
        let tops: BTreeSet<&str> = files
            .iter()
            .filter(|file| file.module.len() == 1)
            .map(|file| file.module[0].as_str())
            .collect();
        for module in &tops {
            assert!(
                place.contains_key(module),
                "{krate}: {module} has no place in LAYERS"
            );
        }
        for file in files.iter().filter(|file| !file.module.is_empty()) {
            let own = file.module[0].as_str();
            for path in paths(&file.text) {
                let Some(used) = target(&path, &file.module, &tops) else {
                    continue;
                };
                if place[used] > place[own] {
                    wrong.push(format!(
                        "{krate}: {} uses {}",
                        file.module.join("::"),
                        path.join("::")
                    ));
                }
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "against the order of LAYERS:\n{}",
        wrong.join("\n")
    );
}

#[test]
fn imports_are_read_as_rust_does() {
    let code = "use crate::{\n    a::{self, b as c, d::*},\n    e,\n};\nfn f() -> crate::g::H { super::i() }\n\
                mycrate::x();";
    let found: Vec<_> = paths(code).iter().map(|path| path.join("::")).collect();
    assert_eq!(
        found,
        [
            "crate::a::self",
            "crate::a::b",
            "crate::a::d::*",
            "crate::e",
            "crate::g::H",
            "super::i"
        ]
    );
}

#[test]
fn what_only_tests_have_is_not_looked_at() {
    let text = "mod a;\n#[cfg(test)]\nmod b;\npub(crate) mod c;\n#[cfg(test)]\nmod tests {\n    \
                use crate::z;\n}\nuse crate::y; // crate::x\n";
    let code = code(text);
    assert_eq!(submodules(&code), ["a", "c"]);
    assert_eq!(paths(&code), [["crate", "y"]]);
}
