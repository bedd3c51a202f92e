//! Formatting of numbers and names.

/// Maximum length of a name in a table.
pub const NAME: usize = 20;

/// Shortens a name to [`NAME`] characters.
pub fn short(name: &str) -> String {
    if name.chars().count() <= NAME {
        return name.to_owned();
    }
    let begin = name.chars().take(NAME - 1);
    begin.chain(['…']).collect()
}

/// Formats a value with three digits and a unit.
fn scaled(value: f64, step: f64, units: &[&str]) -> String {
    let (mut value, mut unit) = (value, 0);
    // A value that would be rounded up to four digits takes the next unit.
    while value >= 999.5 && unit + 1 < units.len() {
        value /= step;
        unit += 1;
    }
    let digits = match value {
        _ if unit == 0 => 0,
        ..9.995 => 2,
        ..99.95 => 1,
        _ => 0,
    };
    format!("{value:.digits$} {}", units[unit])
}

/// Formats a rate in bits per second.
pub fn bits(rate: f64) -> String {
    scaled(
        rate,
        1e3,
        &["bit/s", "kbit/s", "Mbit/s", "Gbit/s", "Tbit/s"],
    )
}

/// Formats a number of bytes.
pub fn bytes(bytes: u64) -> String {
    scaled(
        bytes as f64,
        1024.0,
        &["B", "KiB", "MiB", "GiB", "TiB", "PiB"],
    )
}

/// Formats a share as a percentage.
pub fn percent(share: f64) -> String {
    format!("{:.2} %", 100.0 * share)
}

/// Formats a time in seconds as milliseconds.
pub fn milliseconds(seconds: f64) -> String {
    format!("{:.0} ms", 1e3 * seconds)
}

/// Formats a time in seconds by its two largest units.
pub fn span(seconds: f64) -> String {
    let whole = seconds.max(0.0) as u64;
    let (days, hours) = (whole / 86_400, whole / 3600 % 24);
    let (minutes, seconds) = (whole / 60 % 60, whole % 60);
    match (days, hours, minutes) {
        (1.., ..) => format!("{days}d{hours}h"),
        (_, 1.., _) => format!("{hours}h{minutes}min"),
        (_, _, 1..) => format!("{minutes}min{seconds}s"),
        _ => format!("{seconds}s"),
    }
}

#[cfg(test)]
mod tests {
    use units::counted;

    use super::*;

    #[test]
    fn one_thing_is_no_plural() {
        let shown = [0, 1, 2].map(|number| counted(number, "flow"));
        assert_eq!(shown, ["0 flows", "1 flow", "2 flows"]);
    }

    #[test]
    fn numbers_have_three_digits_and_a_unit() {
        let shown = [0.0, 999.4, 999.6, 9_994.0, 99_960.0, 1e6, 2.5e9].map(bits);
        let expected = [
            "0 bit/s",
            "999 bit/s",
            "1.00 kbit/s",
            "9.99 kbit/s",
            "100 kbit/s",
            "1.00 Mbit/s",
            "2.50 Gbit/s",
        ];
        assert_eq!(shown, expected);
        assert_eq!(
            [0, 1023, 1 << 20].map(bytes),
            ["0 B", "1.00 KiB", "1.00 MiB"]
        );
    }

    #[test]
    fn spans_are_short() {
        let shown = [0.4, 59.9, 61.0, 3599.0, 7261.0, 200_000.0].map(span);
        assert_eq!(shown, ["0s", "59s", "1min1s", "59min59s", "2h1min", "2d7h"]);
    }

    #[test]
    fn long_names_are_cut() {
        assert_eq!(short("mail"), "mail");
        let long = short(&"ä".repeat(64));
        assert_eq!(long.chars().count(), NAME);
        assert!(long.ends_with('…'));
    }
}
