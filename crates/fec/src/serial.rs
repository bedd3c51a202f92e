//! Serial numbers modulo 2^32, as in RFC 1982: their order and distance.
//!
//! The order holds between numbers that are less than 2^31 apart; numbers exactly 2^31 apart have
//! no order.

use std::cmp::Ordering;

/// Distance by which `to` is ahead of `from`; negative if it is behind. `i32::MIN` if they are 2^31
/// apart.
#[must_use]
pub fn distance(from: u32, to: u32) -> i32 {
    to.wrapping_sub(from).cast_signed()
}

/// Reports whether `a` comes before `b`.
#[must_use]
pub fn before(a: u32, b: u32) -> bool {
    distance(a, b) > 0
}

/// Order of two numbers; `None` if they are 2^31 apart (RFC 1982, section 3.2).
#[must_use]
pub fn compare(a: u32, b: u32) -> Option<Ordering> {
    match distance(b, a) {
        i32::MIN => None,
        distance => Some(distance.cmp(&0)),
    }
}

/// Reports whether `number` is one of the `count` numbers from `first` on.
#[must_use]
pub fn within(number: u32, first: u32, count: u32) -> bool {
    number.wrapping_sub(first) < count
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HALF: u32 = 1 << 31;

    proptest! {
        #[test]
        fn the_order_holds_up_to_half_way_round(a in any::<u32>(), by in 1..HALF) {
            let b = a.wrapping_add(by);
            prop_assert!(before(a, b));
            prop_assert!(!before(b, a));
            prop_assert_eq!(distance(a, b), by as i32);
            prop_assert_eq!(distance(b, a), -(by as i32));
            prop_assert_eq!(compare(a, b), Some(Ordering::Less));
            prop_assert_eq!(compare(b, a), Some(Ordering::Greater));
        }

        #[test]
        fn half_way_round_neither_comes_first(a in any::<u32>()) {
            let b = a.wrapping_add(HALF);
            prop_assert!(!before(a, b) && !before(b, a));
            prop_assert_eq!(compare(a, b), None);
            prop_assert_eq!(compare(a, a), Some(Ordering::Equal));
        }

        #[test]
        fn a_range_goes_on_after_the_last_number(first in any::<u32>(), count in 1u32.., i in any::<u32>()) {
            prop_assert!(within(first.wrapping_add(i % count), first, count));
            prop_assert!(!within(first.wrapping_add(count), first, count));
            prop_assert!(!within(first.wrapping_sub(1), first, count));
            prop_assert!(!within(first, first, 0));
        }
    }
}
