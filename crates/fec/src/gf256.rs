//! GF(2^8) with the polynomial x^8 + x^4 + x^3 + x^2 + 1 (0x11d) and the generator 2: the field of
//! reed-solomon-erasure, and of RFC 8681 (section 3.7.1).

const POLYNOMIAL: u16 = 0x11d;

/// Order of the multiplicative group: logarithms are modulo this.
const ORDER: usize = 255;

/// Powers of the generator, three times over, so that the sum of three logarithms needs no modulo.
static EXP: [u8; 3 * ORDER] = powers();

/// Logarithms to the base of the generator; 0 for zero, which has none.
static LOG: [u8; 256] = logarithms();

const fn powers() -> [u8; 3 * ORDER] {
    let mut exp = [0; 3 * ORDER];
    let mut power: u16 = 1;
    let mut i = 0;
    while i < ORDER {
        exp[i] = power as u8;
        exp[i + ORDER] = power as u8;
        exp[i + 2 * ORDER] = power as u8;
        power <<= 1;
        if power > 0xff {
            power ^= POLYNOMIAL;
        }
        i += 1;
    }
    exp
}

const fn logarithms() -> [u8; 256] {
    let exp = powers();
    let mut log = [0; 256];
    let mut i = 0;
    while i < ORDER {
        log[exp[i] as usize] = i as u8;
        i += 1;
    }
    log
}

/// Returns the product of two elements.
#[must_use]
pub const fn mul(a: u8, b: u8) -> u8 {
    if a == 0 || b == 0 {
        return 0;
    }
    EXP[LOG[a as usize] as usize + LOG[b as usize] as usize]
}

/// Returns the inverse of an element.
///
/// # Panics
///
/// If `a` is zero, which has none.
#[must_use]
pub const fn inv(a: u8) -> u8 {
    assert!(a != 0, "zero has no inverse");
    EXP[ORDER - LOG[a as usize] as usize]
}

/// Returns `a` divided by `b`.
///
/// # Panics
///
/// If `b` is zero.
#[must_use]
pub const fn div(a: u8, b: u8) -> u8 {
    mul(a, inv(b))
}

/// A product, stored as the sum of the logarithms of its factors: each costs one look-up, and the
/// value one more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Product(u8);

impl Product {
    pub(crate) const ONE: Self = Self(0);

    /// Returns `factor`; a factor of zero is left out, as if it were one.
    pub(crate) const fn new(factor: u8) -> Self {
        Self(LOG[factor as usize])
    }

    pub(crate) const fn times(self, other: Self) -> Self {
        let sum = self.0 as usize + other.0 as usize;
        Self(if sum >= ORDER { sum - ORDER } else { sum } as u8)
    }

    pub(crate) const fn over(self, other: Self) -> Self {
        self.times(Self((ORDER - other.0 as usize) as u8))
    }

    /// Returns the product of all `factors` except zeros.
    pub(crate) fn of_all(factors: impl Iterator<Item = u8>) -> Self {
        let logarithms = factors.map(|factor| u32::from(LOG[factor as usize]));
        Self((logarithms.sum::<u32>() % ORDER as u32) as u8)
    }

    /// Returns the product divided by two others.
    pub(crate) const fn value_over(self, a: Self, b: Self) -> u8 {
        let negative = 2 * ORDER - a.0 as usize - b.0 as usize;
        EXP[self.0 as usize + negative]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Multiplies polynomials bit by bit.
    fn slow_mul(a: u8, b: u8) -> u8 {
        let mut product = 0;
        for bit in (0..8).rev() {
            product <<= 1;
            if product > 0xff {
                product ^= POLYNOMIAL;
            }
            if b >> bit & 1 == 1 {
                product ^= u16::from(a);
            }
        }
        product as u8
    }

    #[test]
    fn every_product_is_that_of_the_polynomials() {
        for a in 0..=255 {
            for b in 0..=255 {
                assert_eq!(mul(a, b), slow_mul(a, b), "{a} x {b}");
            }
        }
    }

    #[test]
    fn every_element_but_zero_has_its_inverse() {
        for a in 1..=255 {
            assert_eq!(mul(a, inv(a)), 1, "{a}");
            assert_eq!(div(a, a), 1, "{a}");
        }
    }

    #[test]
    fn a_product_of_logarithms_is_the_product() {
        for a in 1..=255 {
            for b in 1..=255 {
                let (a_product, b_product) = (Product::new(a), Product::new(b));
                let value = |product: Product| product.value_over(Product::ONE, Product::ONE);
                assert_eq!(value(a_product.times(b_product)), mul(a, b));
                assert_eq!(value(a_product.over(b_product)), div(a, b));
                assert_eq!(
                    a_product.value_over(b_product, b_product),
                    div(div(a, b), b)
                );
                assert_eq!(value(Product::of_all([a, 0, b].into_iter())), mul(a, b));
            }
        }
        assert_eq!(
            Product::of_all((1..=255).cycle().take(1000 * 255)),
            Product::ONE
        );
    }
}
