//! One-line descriptions of congestion controls.

use bpf_cc::Control;

/// Congestion controls of Linux.
const OF_LINUX: [(&str, &str); 17] = [
    (
        "bbr",
        "by measured rate and round trip, paced; loss matters little",
    ),
    ("bic", "the predecessor of cubic"),
    ("cdg", "yields to growing delay"),
    (
        "cubic",
        "Linux's default: the window follows a cubic of the time since a loss",
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
    ("reno", "the classic: halves the window at each loss"),
    ("scalable", "steps in proportion to the window"),
    ("vegas", "keeps a few segments queued, by delay"),
    (
        "veno",
        "reno that tells loss in the air from congestion by delay",
    ),
    ("westwood", "after loss, the window of the measured rate"),
    ("yeah", "fast while queues are short, else reno"),
];

/// Returns the description of a control; for pepd's own that of [`Control::about`].
pub fn about(name: &str) -> &'static str {
    if let Ok(control) = name.parse::<Control>() {
        return control.about();
    }
    if is_suffixed_name(name) {
        return "a control of pepd, registered by another process";
    }
    let found = OF_LINUX.iter().find(|(known, _)| *known == name);
    found.map_or("unknown to pepd", |(_, about)| about)
}

/// Matches the suffixed names used where the plain one is taken: `hybla_bpf`, `hybla_bpf2`.
fn is_suffixed_name(name: &str) -> bool {
    let stem = name.split_once("_bpf").map(|(stem, _)| stem);
    stem.is_some_and(|stem| stem.parse::<Control>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pepds_controls_are_known_by_any_name() {
        assert_eq!(about("hybla"), Control::Hybla.about());
        let elsewhere = "a control of pepd, registered by another process";
        assert_eq!(about("hybla_sat_bpf2"), elsewhere);
        assert_eq!(about("zebra_bpf"), "unknown to pepd");
        assert!(OF_LINUX.is_sorted());
    }
}
