//! Coefficients of a repair packet, as in RFC 8681 (sections 3.5 and 3.6) at density 15.
//!
//! Each is a byte of TinyMT32, seeded with the packet's key. Zeros are drawn again, so that every
//! repair packet can restore any single packet of its window.
//!
//! # Why random ones
//!
//! Two repair packets with random coefficients fail to restore two lost packets with probability
//! 1/255, and n of them n lost ones with little more. A Cauchy matrix would never fail where all of
//! them cover all of the lost. But the windows of a sliding code overlap only in part, which leaves
//! zeros in the matrix; with those, no choice of 256 elements is safe for windows of any length.
//!
//! A failure costs little: another repair packet is needed, and comes within a few packets. So it
//! matters only where all of those are lost as well. For a window of three and a repair packet for
//! each packet, a failing pair must coincide with two more losses before data is lost, and four
//! losses alone suffice for that. So this crate uses the published generator, which others can
//! verify, and which has no limit on the window.

use super::tinymt::TinyMt32;

/// Writes the coefficients of the packets of a window, in the order of their numbers, for the
/// repair packet with this key.
pub fn draw(key: u16, coefficients: &mut [u8]) {
    let mut generator = TinyMt32::new(key.into());
    for coefficient in coefficients {
        *coefficient = loop {
            match generator.draw() as u8 {
                0 => {}
                byte => break byte,
            }
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gf256;

    #[test]
    fn a_shorter_window_has_the_first_of_a_longer_ones() {
        let (mut long, mut short) = ([0; 255], [0; 100]);
        draw(7, &mut long);
        draw(7, &mut short);
        assert_eq!(long[..100], short);
        assert!(long.iter().all(|coefficient| *coefficient != 0));
    }

    /// First bytes for key 1, from the values of RFC 8682.
    #[test]
    fn key_one_gives_the_low_bytes_of_the_standards_values() {
        let mut coefficients = [0; 5];
        draw(1, &mut coefficients);
        assert_eq!(coefficients, [37, 225, 177, 176, 21]);
    }

    fn singular(mut matrix: Vec<Vec<u8>>) -> bool {
        for column in 0..matrix.len() {
            let Some(pivot) = (column..matrix.len()).find(|row| matrix[*row][column] != 0) else {
                return true;
            };
            matrix.swap(column, pivot);
            let upper = matrix[column].clone();
            for row in &mut matrix[column + 1..] {
                let factor = gf256::div(row[column], upper[column]);
                for (cell, above) in row.iter_mut().zip(&upper) {
                    *cell ^= gf256::mul(factor, *above);
                }
            }
        }
        false
    }

    /// Consecutive keys are as good as random ones: their matrices are singular as rarely as theory
    /// predicts. That is 1/255 for two by two (both coefficients of the first row being non-zero,
    /// one value of 255 is wrong), 1/255 + 1/256^2 ... for more.
    #[test]
    fn keys_in_a_row_are_independent() {
        for size in [2usize, 3, 5, 8] {
            let failures = (0..=u16::MAX)
                .filter(|key| {
                    let rows = (0..size as u16).map(|row| {
                        let mut coefficients = [0; 24];
                        draw(key.wrapping_add(row), &mut coefficients);
                        coefficients
                            .iter()
                            .step_by(24 / size)
                            .copied()
                            .take(size)
                            .collect()
                    });
                    singular(rows.collect())
                })
                .count();
            let share = failures as f64 / 65_536.0;
            // Five standard deviations of 65,536 draws are 0.0012; the draws overlap a little.
            assert!(
                (share - 1.0 / 255.0).abs() < 0.0015,
                "{size} x {size}: {share}"
            );
        }
    }
}
