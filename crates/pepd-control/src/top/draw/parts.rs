//! Elements of lines.

/// Bars of increasing height. None fills its line, to keep graphs apart.
const STEPS: [char; 7] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇'];

/// Draws a line of bars scaled to the maximum; blanks stand for unknown values.
pub(super) fn graph(columns: &[Option<f64>]) -> String {
    let most = highest(columns).unwrap_or(0.0);
    let step = |value: &Option<f64>| match value {
        None => ' ',
        Some(value) if *value <= 0.0 || most <= 0.0 => STEPS[0],
        // A value above zero is visible.
        Some(value) => STEPS[((value / most * 7.0).ceil() as usize).clamp(2, 7) - 1],
    };
    columns.iter().map(step).collect()
}

/// Returns the maximum; none if all values are unknown.
pub(super) fn highest(columns: &[Option<f64>]) -> Option<f64> {
    columns.iter().flatten().copied().reduce(f64::max)
}

/// Pads a text to this width, or cuts it with an ellipsis.
pub(super) fn fitted(text: &str, width: usize) -> String {
    let length = text.chars().count();
    if length <= width {
        return format!("{text:<width$}");
    }
    let begin = text.chars().take(width.saturating_sub(1));
    begin.chain(['…'].into_iter().take(width)).collect()
}

/// Wraps a text at blanks into lines of this width.
pub(super) fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ').filter(|word| !word.is_empty()) {
        let last = lines.last_mut().expect("there is one");
        if last.is_empty() {
            *last = fitted(word, width).trim_end().to_owned();
        } else if last.chars().count() + 1 + word.chars().count() <= width {
            *last = format!("{last} {word}");
        } else {
            lines.push(fitted(word, width).trim_end().to_owned());
        }
    }
    lines
}

/// Returns the width of names in a table, which grows with the terminal.
pub(super) fn name_width(width: usize) -> usize {
    12 + width.saturating_sub(80).min(20)
}

/// Formats a share in at most four digits.
pub(super) fn percent(share: f64) -> String {
    let percent = 100.0 * share;
    match percent {
        ..9.995 => format!("{percent:.2}%"),
        ..99.95 => format!("{percent:.1}%"),
        _ => format!("{percent:.0}%"),
    }
}

/// Formats Unix time as date and time of day in UTC: `22 Nov 14:02:11`.
pub(super) fn clock(seconds: f64) -> String {
    const MONTHS: [&str; 12] = [
        "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
    ];
    let whole = seconds.max(0.0) as u64;
    let (day, month) = date(whole / 86_400);
    let (hours, minutes, seconds) = (whole / 3600 % 24, whole / 60 % 60, whole % 60);
    format!(
        "{day} {} {hours:02}:{minutes:02}:{seconds:02}",
        MONTHS[month]
    )
}

/// Returns the day of the month, and the month from 0, of this day since 1 January 1970.
fn date(days: u64) -> (u64, usize) {
    // In years that begin in March the leap day is the last, also in cycles of 400 years.
    let day = (days + 719_468) % 146_097;
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    // From March on, five months have 153 days.
    let month = (5 * day + 2) / 153;
    (day - (153 * month + 2) / 5 + 1, ((month + 2) % 12) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn graphs_go_from_nothing_to_the_highest() {
        let columns = [None, Some(0.0), Some(0.001), Some(4.0), Some(8.0)];
        assert_eq!(graph(&columns), " ▁▂▄▇");
        assert_eq!(graph(&[Some(0.0), None]), "▁ ");
        assert_eq!(graph(&[]), "");
    }

    #[test]
    fn texts_are_made_to_fit() {
        assert_eq!(fitted("abc", 5), "abc  ");
        assert_eq!(fitted("abcdef", 5), "abcd…");
        assert_eq!(fitted("ab", 0), "");
        assert_eq!(wrapped("a bc  def", 4), ["a bc", "def"]);
        assert_eq!(wrapped("abcdef g", 4), ["abc…", "g"]);
        assert_eq!(wrapped("", 4), [""]);
    }

    #[test]
    fn shares_have_three_digits() {
        let reported = [0.0, 0.0123, 0.09999, 0.5, 1.0, 12.5].map(percent);
        assert_eq!(
            reported,
            ["0.00%", "1.23%", "10.0%", "50.0%", "100%", "1250%"]
        );
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        let reported = [
            0.0,
            951_782_399.0,
            951_782_400.0,
            1_732_284_131.5,
            4_107_542_400.0,
        ];
        let expected = [
            "1 Jan 00:00:00",
            "28 Feb 23:59:59",
            "29 Feb 00:00:00",
            "22 Nov 14:02:11",
            "1 Mar 00:00:00",
        ];
        assert_eq!(reported.map(clock), expected);
        // Days are consecutive over years to which each of the leap-year rules applies.
        let lengths = |year: u64| {
            let leap =
                year.is_multiple_of(4) && !year.is_multiple_of(100) || year.is_multiple_of(400);
            [
                31,
                28 + u64::from(leap),
                31,
                30,
                31,
                30,
                31,
                31,
                30,
                31,
                30,
                31,
            ]
        };
        let mut days = 0;
        for year in 1970..2405 {
            for (month, length) in lengths(year).into_iter().enumerate() {
                for day in 1..=length {
                    assert_eq!(date(days), (day, month), "{year}");
                    days += 1;
                }
            }
        }
    }
}
