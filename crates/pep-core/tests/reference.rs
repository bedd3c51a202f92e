//! Agreement of `docs/configuration.md` with the code: the same keys, the stated defaults, and
//! examples that are accepted and have an effect. Also checks that links between pages resolve.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use pep_core::config::{self, Config, ConfigError};

/// A file with every section, to which a key of any section can be added.
const BASE: [(&str, &str); 24] = [
    ("[intercept]", "lan = [\"eth0\"]"),
    ("[link]", "interface = \"eth0\""),
    ("[limits]", ""),
    ("[timeouts]", ""),
    ("[custody]", ""),
    ("[admin]", ""),
    ("[log]", ""),
    (
        "[peer.NAME]",
        "public_key = \"ISIjJCUmJygpKissLS4vMDEyMzQ1Njc4OTo7PD0+P0A=\"",
    ),
    ("[identity]", "key_file = \"a\""),
    ("[[site]]", "name = \"a\""),
    ("[site.match]", ""),
    (
        "[[site]] # of packets",
        "name = \"p\"\nmode = \"packet\"\npeer = \"NAME\"",
    ),
    ("[site.packet]", ""),
    ("[site.boost]", ""),
    ("[site.boost.NAME]", ""),
    ("[site.boost.fec]", ""),
    ("[site.boost.arq]", ""),
    ("[site.boost.ack_reconstruction]", ""),
    ("[site.boost.ack_filter]", ""),
    ("[site.boost.snoop]", ""),
    ("[site.boost.divacks]", ""),
    ("[site.boost.jitter]", ""),
    ("[site.boost.compress]", ""),
    ("[site.boost.congestion]", ""),
];

/// A booster with only the common keys, which have a section of their own.
const PLAIN: (&str, &str) = ("[site.boost.NAME]", "[site.boost.checksum]");

/// A key that is an error without another: section, key, the other.
const NEEDS: (&str, &str, &str) = ("[site.boost.fec]", "code", "scheme = \"block\"");

/// Keys whose page states more than a number range: bits of another key.
const OF_BITS: [&str; 2] = ["mark", "mark_mask"];

struct Entry {
    section: String,
    key: String,
    body: String,
    default: Option<String>,
    example: Option<String>,
    required: bool,
}

fn parse_with(section: &str, key: &str, value: Option<&str>) -> Result<Config, Vec<ConfigError>> {
    let mut text = String::new();
    for (name, content) in BASE {
        // A booster is on where its section is present.
        if name.starts_with("[site.boost.") && name != section {
            continue;
        }
        let header = if name == PLAIN.0 { PLAIN.1 } else { name };
        let replaced = name == section && content.starts_with(&format!("{key} ="));
        text += &format!("{header}\n{}\n", if replaced { "" } else { content });
        if (name, section, key) == (NEEDS.0, NEEDS.0, NEEDS.1) {
            text += &format!("{}\n", NEEDS.2);
        }
        if let Some(value) = value.filter(|_| name == section) {
            text += &format!("{key} = {value}\n");
        }
    }
    // Warnings have line numbers, and an additional key moves them.
    config::parse(&text).map(|mut config| {
        config.warnings.clear();
        config
    })
}

/// Returns the configuration without a key, but with the other that it needs.
fn without(section: &str, key: &str) -> Config {
    let key = if key == NEEDS.1 { key } else { "" };
    parse_with(section, key, None).expect("valid")
}

/// Returns the backquoted text after a word.
fn quoted_after(text: &str, word: &str) -> Option<String> {
    let rest = text.split_once(&format!("{word} `"))?.1;
    Some(rest.split_once('`')?.0.to_owned())
}

fn entries() -> Vec<Entry> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/configuration.md");
    let text = fs::read_to_string(path).expect("the page exists");
    let mut entries = Vec::new();
    for section in text.split("\n## `").skip(1) {
        let name = section.split_once('`').expect("a closing backquote").0;
        for entry in section.split("\n#### `").skip(1) {
            let (key, body) = entry.split_once("`\n").expect("a key alone on its line");
            let body = body.replace('\n', " ");
            entries.push(Entry {
                section: name.to_owned(),
                key: key.to_owned(),
                default: quoted_after(&body, "Default"),
                example: quoted_after(&body, "Example"),
                required: body.contains("Required."),
                body,
            });
        }
    }
    entries
}

/// Returns the known keys, from the error for an unknown one.
fn known_keys(section: &str) -> BTreeSet<String> {
    let known_in = |key: &str, value: &str| -> BTreeSet<String> {
        let errors = parse_with(section, key, Some(value)).expect_err("an unknown key");
        let accepted = errors
            .iter()
            .find_map(|error| error.message.split_once("accepted here: "));
        let (_, accepted) = accepted.unwrap_or_else(|| panic!("{section}: {errors:?}"));
        accepted.split(", ").map(str::to_owned).collect()
    };
    let mut keys = known_in("zzzzzzzz", "1");
    if section == "[timeouts]" {
        let nested = known_in("keepalive", "{ zzzzzzzz = 1 }");
        keys.extend(nested.iter().map(|key| format!("keepalive.{key}")));
    }
    keys
}

#[test]
fn the_page_has_exactly_the_keys_of_the_code() {
    let entries = entries();
    for (section, _) in BASE.into_iter().filter(|(name, _)| !name.contains('#')) {
        let of_section = entries.iter().filter(|entry| entry.section == section);
        let documented: BTreeSet<_> = of_section.map(|entry| entry.key.clone()).collect();
        let mut known = known_keys(section);
        if section.starts_with("[site.boost.") && section != PLAIN.0 {
            let common = known_keys(PLAIN.0);
            assert!(common.is_subset(&known), "{section}");
            known.retain(|key| !common.contains(key));
        }
        assert_eq!(
            documented, known,
            "{section}: left documented, right known to the code"
        );
    }
}

#[test]
fn stated_defaults_change_nothing() {
    let entries = entries();
    let stated: Vec<_> = entries
        .iter()
        .filter(|entry| entry.default.is_some())
        .collect();
    assert!(stated.len() > 40, "only {} defaults found", stated.len());
    for entry in stated {
        let config = parse_with(&entry.section, &entry.key, entry.default.as_deref());
        let config = config.unwrap_or_else(|errors| panic!("{}: {errors:?}", entry.key));
        let base = without(&entry.section, &entry.key);
        assert_eq!(config, base, "{} {}", entry.section, entry.key);
    }
}

#[test]
fn examples_are_accepted_and_have_an_effect() {
    let entries = entries();
    let shown: Vec<_> = entries
        .iter()
        .filter(|entry| entry.example.is_some())
        .collect();
    assert!(shown.len() > 50, "only {} examples found", shown.len());
    for entry in shown {
        let Entry {
            section,
            key,
            example,
            ..
        } = entry;
        let config = parse_with(section, key, example.as_deref());
        let config = config.unwrap_or_else(|errors| panic!("{section} {key}: {errors:?}"));
        let base = without(section, key);
        assert_ne!(config, base, "{section} {key} = {example:?}");
    }
}

/// Returns the minimum and the maximum that the code accepts, from its error for a date, as the
/// page writes them: "1 s" for `"1s"`.
fn range(section: &str, key: &str) -> Option<(String, String)> {
    let (parent, nested) = key.split_once('.').unwrap_or((key, ""));
    let date = match nested {
        "" => "2020-01-01".to_owned(),
        nested => format!("{{ {nested} = 2020-01-01 }}"),
    };
    let errors = parse_with(section, parent, Some(&date)).expect_err("a date");
    let expected = errors.iter().find_map(|error| {
        let (expected, _) = error.message.split_once(", found a date")?;
        error.key.ends_with(key).then_some(expected)
    });
    let (_, range) = expected?.rsplit_once(" from ")?;
    let (minimum, most) = range.split_once(" to ")?;
    let written = |bound: &str| {
        let bound = bound.split([',', ' ']).next().unwrap_or_default();
        let bound = bound.trim_matches('"');
        let unit = bound.find(|c: char| c.is_ascii_alphabetic() && c != 'e');
        let (number, unit) = bound.split_at(unit.unwrap_or(bound.len()));
        format!("{number} {unit}").trim_end().to_owned()
    };
    Some((written(minimum), written(most)))
}

#[test]
fn the_page_states_the_ranges_of_the_code() {
    let mut found = 0;
    let mut missing = Vec::new();
    for entry in entries() {
        let (section, key, body) = (&entry.section, &entry.key, &entry.body);
        let Some((minimum, most)) = range(section, key) else {
            continue;
        };
        found += 1;
        let stated = format!("{minimum} to {most}");
        let ends = |rest: &str| !rest.starts_with(|c: char| c.is_ascii_alphanumeric());
        let is_stated = body.split(&stated).skip(1).any(ends);
        // A bound may be another key's value.
        let of_key = [format!("{minimum} to `"), format!("` to {most}")];
        let is_of_key = of_key.iter().any(|range| body.contains(range));
        if !is_stated && !is_of_key && !OF_BITS.contains(&key.as_str()) {
            missing.push(format!("{section} {key}: {stated}"));
        }
    }
    assert!(found > 60, "only {found} ranges found");
    assert!(missing.is_empty(), "not on the page: {missing:#?}");
}

#[test]
fn keys_are_required_or_have_a_default() {
    for entry in entries() {
        let Entry {
            section,
            key,
            required,
            default,
            body,
            ..
        } = entry;
        let content = BASE
            .iter()
            .find(|(name, _)| *name == section)
            .expect("a known section")
            .1;
        assert_eq!(
            required,
            content.starts_with(&format!("{key} =")),
            "{section} {key}"
        );
        assert!(
            !(required && default.is_some()),
            "{section} {key} is required and has a default"
        );
        assert!(
            required || body.contains("Default"),
            "{section} {key}: what is its default?"
        );
    }
}

/// Pages of the repository: those at its root, in docs/, and of the crates.
fn pages() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let entries = |path: &Path| fs::read_dir(path).expect("a directory of the repository");
    let paths = |path: &Path| entries(path).map(|entry| entry.expect("an entry").path());
    let crates = paths(&root.join("crates"));
    let directories = crates.chain([root.clone(), root.join("docs")]);
    let files = directories.flat_map(|directory| paths(&directory));
    files
        .filter(|path| path.extension().is_some_and(|ending| ending == "md"))
        .collect()
}

/// Link targets of a page within the repository, outside examples.
fn links(page: &str) -> Vec<&str> {
    let prose = page.split("\n```").step_by(2);
    let links = prose.flat_map(|prose| prose.split("](").skip(1));
    let addresses = links.filter_map(|link| link.split_once(')').map(|(address, _)| address));
    addresses
        .filter(|address| !address.contains("://") && !address.contains(' '))
        .collect()
}

/// Anchors of a page's headings, as GitHub makes them; a second one of the same text ends with
/// `-1`.
fn anchors(page: &str) -> BTreeSet<String> {
    let mut anchors = BTreeSet::new();
    let prose: String = page.split("\n```").step_by(2).collect();
    for heading in prose.lines().filter(|line| line.starts_with('#')) {
        let text = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = |c: &char| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_');
        let name: String = text.chars().filter(kept).collect();
        let name = name.replace(' ', "-");
        let numbered = (1..).map(|number| format!("{name}-{number}"));
        let mut names = std::iter::once(name.clone()).chain(numbered);
        anchors.extend(names.find(|name| !anchors.contains(name)));
    }
    anchors
}

#[test]
fn links_between_pages_lead_somewhere() {
    let mut dead = Vec::new();
    let pages = pages();
    assert!(pages.len() > 20, "{pages:?}");
    for path in pages {
        let page = fs::read_to_string(&path).unwrap();
        for link in links(&page) {
            let (file, heading) = link.split_once('#').unwrap_or((link, ""));
            let target = if file.is_empty() {
                path.clone()
            } else {
                path.with_file_name(file)
            };
            let is_there = target.exists()
                && (heading.is_empty()
                    || anchors(&fs::read_to_string(&target).unwrap()).contains(heading));
            if !is_there {
                dead.push(format!("{}: {link}", path.display()));
            }
        }
    }
    assert!(dead.is_empty(), "dead links: {dead:#?}");
}
