//! Numbers of the current stream.

use crate::serial;

/// Consecutive packets, with numbers far ahead of the newest but near each other, that count as the
/// stream itself after an outage. Fewer count as strays.
const AHEAD: u32 = 3;

/// Consecutive packets far behind that count as a restarted sender; more than ahead, as stragglers
/// may be among them.
const BEHIND: u32 = 8;

/// Tracks the numbers of a stream modulo 2^32.
#[derive(Debug)]
pub(super) struct Horizon {
    reach: u32,
    newest: Option<u32>,
    /// Last of the consecutive stray packets, and their number.
    stray: u32,
    strays: u32,
}

/// Place of a number relative to the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// Among the remembered numbers, or the next ones.
    Near,
    /// Far ahead or behind. The packet is to be ignored.
    Far,
    /// Near from now on; all other numbers are not.
    Moved,
}

impl Horizon {
    /// Returns a horizon whose near numbers are up to `reach` before or behind the newest.
    pub(super) fn new(reach: u32) -> Self {
        Self {
            reach,
            newest: None,
            stray: 0,
            strays: 0,
        }
    }

    /// Newest number, if there has been any.
    pub(super) fn newest(&self) -> Option<u32> {
        self.newest
    }

    /// Takes the number of a packet that has arrived.
    pub(super) fn place(&mut self, number: u32) -> Place {
        let newest = *self.newest.get_or_insert(number);
        if self.near(newest, number) {
            if serial::before(newest, number) {
                self.newest = Some(number);
            }
            self.strays = 0;
            return Place::Near;
        }
        self.strays = if self.strays > 0 && self.near(self.stray, number) {
            self.strays + 1
        } else {
            1
        };
        self.stray = number;
        let ahead = serial::before(newest, number);
        if self.strays < if ahead { AHEAD } else { BEHIND } {
            return Place::Far;
        }
        self.newest = Some(number);
        self.strays = 0;
        Place::Moved
    }

    fn near(&self, a: u32, b: u32) -> bool {
        serial::distance(a, b).unsigned_abs() <= self.reach
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stray_is_left_alone_and_a_run_of_them_is_followed() {
        for (far, run) in [(10_000, AHEAD), (10_000u32.wrapping_neg(), BEHIND)] {
            let mut horizon = Horizon::new(100);
            assert_eq!(horizon.place(u32::MAX), Place::Near);
            assert_eq!(
                horizon.place(50),
                Place::Near,
                "numbers go on after the last"
            );
            for i in 0..run - 1 {
                assert_eq!(horizon.place(far + i), Place::Far);
            }
            assert_eq!(horizon.place(51), Place::Near, "the stream itself goes on");
            for i in 0..run - 1 {
                assert_eq!(horizon.place(far + i), Place::Far, "counted from the start");
            }
            assert_eq!(horizon.place(far + 7), Place::Moved);
            assert_eq!(horizon.place(51), Place::Far);
            assert_eq!(horizon.place(far + 107), Place::Near);
            assert_eq!(horizon.place(far + 7), Place::Near);
        }
    }

    #[test]
    fn strays_all_over_the_place_are_never_followed() {
        let mut horizon = Horizon::new(100);
        assert_eq!(horizon.place(0), Place::Near);
        for i in 1..100 {
            assert_eq!(horizon.place(i * 1000), Place::Far);
        }
    }

    #[test]
    fn what_is_half_way_round_is_far() {
        let mut horizon = Horizon::new(1 << 19);
        assert_eq!(horizon.place(7), Place::Near);
        assert_eq!(horizon.place(7 + (1 << 31)), Place::Far);
    }
}
