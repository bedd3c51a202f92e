//! Recognition of steady streams, which do not fill the link, from their pieces.
//!
//! ```text
//!              four runs in a row, of at most 100 ms each
//!   +--------+ ------------------------------------------> +--------+
//!   | others |                                             | steady |
//!   +--------+ <------------------------------------------ +--------+
//!              a run of more than 100 ms
//! ```
//!
//! A run begins with a piece of the stream's bytes and ends with the one that leaves none. A stream
//! that fills the link always has bytes that wait, so its runs last longer. A pause of the host can
//! end one run early, but seldom four in a row.

use std::time::Duration;

/// Maximum time of a run of a steady stream.
const RUN_MAX: Duration = Duration::from_millis(100);
/// Runs in a row that make a stream steady. Fewer do not suffice: in slow start a transfer has some
/// short runs.
const IN_A_ROW: u8 = 4;

/// Recent runs of one direction of a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Steady {
    /// Beginning of the current run.
    run: Option<Duration>,
    /// Runs in a row that were short.
    short: u8,
}

impl Steady {
    /// Handles a piece. `is_whole` tells that it left no more bytes to send. Returns true if the
    /// stream is steady.
    pub(super) fn on_piece(&mut self, now: Duration, is_whole: bool) -> bool {
        let begun = *self.run.get_or_insert(now);
        if now.saturating_sub(begun) > RUN_MAX {
            self.short = 0;
        } else if is_whole {
            self.short = self.short.saturating_add(1);
        }
        if is_whole {
            self.run = None;
        }
        self.short >= IN_A_ROW
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns whether a stream is steady after pieces at these times, in milliseconds.
    fn last_of(pieces: &[(u64, bool)]) -> bool {
        let mut steady = Steady::default();
        let on_piece = |_, (at, is_whole): &(u64, bool)| {
            steady.on_piece(Duration::from_millis(*at), *is_whole)
        };
        pieces.iter().fold(false, on_piece)
    }

    #[test]
    fn whole_pieces_in_a_row_are_steady() {
        assert!(last_of(&[(0, true), (2, true), (4, true), (6, true)]));
        assert!(last_of(&[
            (0, true),
            (900, true),
            (1000, true),
            (5000, true)
        ]));
        assert!(!last_of(&[(0, true), (2, true), (4, true)]));
    }

    /// Several packets each, as of pictures.
    #[test]
    fn short_runs_are_steady() {
        let of_runs = |gap| {
            let run = |number: u64| [0, 20, gap].map(|at| (number * 200 + at, at == gap));
            last_of(&(0..4).flat_map(run).collect::<Vec<_>>())
        };
        assert!(of_runs(33) && of_runs(100));
        assert!(!of_runs(101));
    }

    #[test]
    fn a_transfer_is_not_steady_after_its_beginning() {
        let begin = [0, 1, 2, 3, 4].map(|at| (at, true));
        let rest = |until| (5..until).map(|at| (at, at % 150 == 0));
        let with = |until| begin.into_iter().chain(rest(until)).collect::<Vec<_>>();
        assert!(last_of(&with(105)));
        for until in [107, 151, 152, 1000, 1051] {
            assert!(!last_of(&with(until)), "{until}");
        }
    }
}
