//! What each congestion control is, in a line.

use bpf_cc::Control;

/// Those of Linux.
const OF_LINUX: [(&str, &str); 17] = [
    (
        "bbr",
        "by measured rate and round trip, paced; loss matters little",
    ),
    ("bic", "the predecessor of cubic"),
    ("cdg", "yields to growing delay"),
    (
        "cubic",
        "Linux's usual one: the window follows a cubic of the time since a loss",
    ),
    (
        "dctcp",
        "for data centres whose switches mark packets (ECN)",
    ),
    ("highspeed", "larger steps for large windows (RFC 3649)"),
    ("htcp", "steps grow with the time since a loss"),
    ("hybla", "grows as if the round trip were 25 ms"),
    ("illinois", "larger steps while delay is low"),
    ("lp", "takes only what others leave"),
    ("nv", "keeps queues short; for data centres"),
    ("reno", "the classic: half the window at each loss"),
    ("scalable", "steps in proportion to the window"),
    ("vegas", "keeps a few segments queued, by delay"),
    (
        "veno",
        "reno that tells loss in the air from congestion by delay",
    ),
    ("westwood", "after loss, the window of the measured rate"),
    ("yeah", "fast while queues are short, else reno"),
];

/// What the control of this name is; of one of ours what ours is.
pub fn about(name: &str) -> &'static str {
    if let Ok(control) = name.parse::<Control>() {
        return control.about();
    }
    if is_one_of_ours_elsewhere(name) {
        return "one of pepd's, as another process has registered it";
    }
    let found = OF_LINUX.iter().find(|(known, _)| *known == name);
    found.map_or("not known to pepd", |(_, about)| about)
}

/// Such a name is given where the usual one is taken: `hybla_bpf`, `hybla_bpf2`.
fn is_one_of_ours_elsewhere(name: &str) -> bool {
    let stem = name.split_once("_bpf").map(|(stem, _)| stem);
    stem.is_some_and(|stem| stem.parse::<Control>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ours_are_known_by_whatever_name() {
        assert_eq!(about("hybla"), Control::Hybla.about());
        let elsewhere = "one of pepd's, as another process has registered it";
        assert_eq!(about("hybla_sat_bpf2"), elsewhere);
        assert_eq!(about("zebra_bpf"), "not known to pepd");
        assert!(OF_LINUX.is_sorted());
    }
}
