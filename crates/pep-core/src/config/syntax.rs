//! Text that is not TOML: parser errors with the line and key that an operator looks for.

use super::ConfigError;
use crate::reading::Findings;

/// Reports one error per line, as the parser guesses after the first.
pub(super) fn errors(
    text: &str,
    findings: &Findings,
    errors: &[toml::de::Error],
) -> Vec<ConfigError> {
    let mut found: Vec<ConfigError> = Vec::new();
    for error in errors {
        let line = findings.line_at(error.span().map_or(0, |span| span.start));
        if found.iter().all(|other| other.line != line) {
            found.push(ConfigError {
                line,
                key: key_at(text, line),
                message: message(error),
            });
        }
    }
    found.sort_by_key(|error| error.line);
    found
}

fn message(error: &toml::de::Error) -> String {
    let message = error.message().lines().collect::<Vec<_>>().join("; ");
    // A frequent mistake: a rate or duration without quotes.
    match message.strip_prefix("string values must be quoted") {
        Some(_) => "not TOML: text, rates, sizes and durations must be in quotes".to_owned(),
        None => format!("not TOML: {message}"),
    }
}

/// Key that a line seems to set, with its section. A guess, as the line is broken.
fn key_at(text: &str, line: usize) -> String {
    let lines: Vec<&str> = text.lines().take(line).map(str::trim).collect();
    let header = lines.iter().rev().find(|line| line.starts_with('['));
    let section = header.map_or("", |line| section_of(line));
    let own = lines.last().copied().unwrap_or_default();
    let is_key = !own.starts_with(['#', '[']);
    match own.split_once('=') {
        Some((key, _)) if is_key && section.is_empty() => key.trim().to_owned(),
        Some((key, _)) if is_key => format!("{section}.{}", key.trim()),
        _ if section.is_empty() => "(no key)".to_owned(),
        _ => section.to_owned(),
    }
}

/// Name in a header, without brackets and trailing comment.
fn section_of(header: &str) -> &str {
    let name = header.trim_start_matches('[');
    let end = name.find([']', '#']).unwrap_or(name.len());
    name[..end].trim()
}

#[cfg(test)]
mod tests {
    use super::{super::parse, *};

    #[test]
    fn a_header_is_cut_at_its_bracket() {
        for (header, name) in [
            ("[link]", "link"),
            ("[link]   # optional, [sic]", "link"),
            ("[[site]] # a = b", "site"),
            ("[ site.boost.fec ]", "site.boost.fec"),
            ("[link # not closed", "link"),
            ("[", ""),
        ] {
            assert_eq!(section_of(header), name, "{header}");
        }
    }

    #[test]
    fn an_error_names_section_and_key_without_comments() {
        let text =
            "[intercept]\nlan = [\"eth0\"]\n[link]   # optional, but see below\nrtt = 600ms\n";
        let errors = parse(text).expect_err("not TOML");
        let found: Vec<_> = errors
            .iter()
            .map(|error| (error.line, &*error.key))
            .collect();
        assert_eq!(found, [(4, "link.rtt")]);
        let errors = parse("[link # rate = 1\n").expect_err("not TOML");
        assert_eq!(errors[0].key, "link");
    }
}
