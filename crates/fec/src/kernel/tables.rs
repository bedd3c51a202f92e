//! Coefficient tables of the vector kernels, computed by the compiler.

use crate::gf256;

/// Products of one coefficient with the sixteen values of each four bits of a byte.
#[derive(Clone, Copy)]
#[repr(C, align(32))]
pub(super) struct Nibbles {
    /// With 0x00, 0x01, ... 0x0f.
    pub(super) low: [u8; 16],
    /// With 0x00, 0x10, ... 0xf0.
    pub(super) high: [u8; 16],
}

/// For each coefficient; 8 KiB.
pub(super) static NIBBLES: [Nibbles; 256] = nibbles();

/// For each coefficient its bit matrix, in the form of the affine instructions of GFNI: byte 7 - i
/// is the row that makes bit i of the product. 2 KiB.
#[cfg(target_arch = "x86_64")]
pub(super) static MATRICES: [u64; 256] = matrices();

const fn nibbles() -> [Nibbles; 256] {
    let empty = Nibbles {
        low: [0; 16],
        high: [0; 16],
    };
    let mut tables = [empty; 256];
    let mut coefficient = 0;
    while coefficient < 256 {
        let mut i = 0;
        while i < 16 {
            tables[coefficient].low[i] = gf256::mul(coefficient as u8, i as u8);
            tables[coefficient].high[i] = gf256::mul(coefficient as u8, (i << 4) as u8);
            i += 1;
        }
        coefficient += 1;
    }
    tables
}

#[cfg(target_arch = "x86_64")]
const fn matrices() -> [u64; 256] {
    let mut tables = [0; 256];
    let mut coefficient = 0;
    while coefficient < 256 {
        let mut column = 0;
        while column < 8 {
            let product = gf256::mul(coefficient as u8, 1 << column);
            let mut row = 0;
            while row < 8 {
                let bit = (product >> row & 1) as u64;
                tables[coefficient] |= bit << ((7 - row) * 8 + column);
                row += 1;
            }
            column += 1;
        }
        coefficient += 1;
    }
    tables
}
