//! The paper for which a scenario stands.

use serde::Serialize;
use toml::Spanned;

use super::{error::Findings, raw::RawScenario};

/// Papers for which scenarios can stand, by their short names.
const PAPERS: [&str; 5] = [
    "reynolds2006",
    "urke2011",
    "ramakrishnan2000",
    "ciminieri2013",
    "paul2006",
];

/// Figures and tables of a paper that a scenario repeats.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Source {
    /// Short name of the paper: first author and year.
    pub paper: String,
    /// Figures as `6.4`, tables as `table 6.2`, sections as `section 5.3`; never empty.
    pub figures: Vec<String>,
    /// Remark for readers, such as the reason why a value of the paper is not met.
    pub remark: String,
}

/// Reads `paper`, `figure` and `remark`; `None` for a scenario that stands for no paper.
pub(super) fn read(raw: &RawScenario, findings: &mut Findings<'_>) -> Option<Source> {
    let figures = raw.figure.as_ref();
    let Some(paper) = &raw.paper else {
        let figure = figures.map(|figures| (figures.span(), "figure"));
        let remark = raw.remark.as_ref().map(|remark| (remark.span(), "remark"));
        for (span, key) in figure.into_iter().chain(remark) {
            let message = format!("needs `paper`: one of {}", PAPERS.join(", "));
            findings.add(span, key, message);
        }
        return None;
    };
    if !PAPERS.contains(&paper.get_ref().as_str()) {
        let message = format!(
            "unknown paper `{}`; papers are {}",
            paper.get_ref(),
            PAPERS.join(", ")
        );
        findings.add(paper.span(), "paper", message);
    }
    let names = figures.map_or(&[][..], |figures| figures.get_ref());
    if names.is_empty() {
        let span = figures.map_or(paper.span(), Spanned::span);
        findings.add(span, "figure", FORM);
    }
    for name in names.iter().filter(|name| !is_figure(name.get_ref())) {
        let message = format!("`{}`: {FORM}", name.get_ref());
        findings.add(name.span(), "figure", message);
    }
    Some(Source {
        paper: paper.get_ref().clone(),
        figures: names.iter().map(|name| name.get_ref().clone()).collect(),
        remark: raw
            .remark
            .as_ref()
            .map_or(String::new(), |remark| remark.get_ref().clone()),
    })
}

const FORM: &str =
    "must name figures, tables or sections: [\"6.4\", \"table 6.2\", \"section 5.3\"]";

/// Reports whether a text is a number such as `6.4` or `4.1a`, or one after `table` or `section`.
fn is_figure(text: &str) -> bool {
    let number = text
        .strip_prefix("table ")
        .or_else(|| text.strip_prefix("section "))
        .unwrap_or(text);
    let parts: Vec<_> = number.split('.').collect();
    let (last, first) = parts.split_last().expect("a split text has a part");
    let digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let last = last
        .strip_suffix(|letter: char| letter.is_ascii_lowercase())
        .unwrap_or(last);
    digits(last) && first.iter().all(|part| digits(part))
}

#[cfg(test)]
mod tests {
    use super::{
        super::tests::{GOOD, mistakes, parse},
        *,
    };

    #[test]
    fn a_scenario_names_its_paper_its_figures_and_a_remark() {
        assert_eq!(parse(GOOD).source, None);
        let keys = "paper = \"urke2011\"\nfigure = [\"6.4\", \"table 6.2\"]\n";
        let source = parse(&format!("{keys}{GOOD}")).source.unwrap();
        assert_eq!(source.paper, "urke2011");
        assert_eq!(source.figures, ["6.4", "table 6.2"]);
        assert_eq!(source.remark, "");
        let text = format!("remark = \"Another kernel.\"\n{keys}{GOOD}");
        assert_eq!(parse(&text).source.unwrap().remark, "Another kernel.");
    }

    #[test]
    fn keys_of_a_paper_need_each_other_and_a_known_form() {
        for (keys, expected) in [
            (
                "figure = [\"6.4\"]",
                "x.toml:1: figure: needs `paper`: one of reynolds2006, urke2011,",
            ),
            ("remark = \"Why.\"", "x.toml:1: remark: needs `paper`"),
            (
                "paper = \"paul2006\"",
                "x.toml:1: figure: must name figures",
            ),
            (
                "paper = \"paul2006\"\nfigure = []",
                "x.toml:2: figure: must name figures",
            ),
            (
                "paper = \"paul\"\nfigure = [\"6.4\"]",
                "x.toml:1: paper: unknown paper `paul`; papers are reynolds2006,",
            ),
            (
                "paper = \"paul2006\"\nfigure = [\"6.4\", \"fig. 6.5\"]",
                "x.toml:2: figure: `fig. 6.5`: must name figures",
            ),
        ] {
            let said = mistakes(&format!("{keys}\n{GOOD}"));
            assert!(said.starts_with(expected), "{keys}: {said}");
        }
    }

    #[test]
    fn figures_have_numbers_with_one_letter_at_most() {
        for good in ["4", "4.1", "4.1a", "table 3.2", "section 5.3.1", "5.10"] {
            assert!(is_figure(good), "{good}");
        }
        for bad in [
            "",
            "table ",
            "4.",
            ".1",
            "a",
            "4.1ab",
            "4.a.1",
            "4.1 to 4.3",
            "Table 3.2",
        ] {
            assert!(!is_figure(bad), "{bad}");
        }
    }
}
