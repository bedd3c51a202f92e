//! FEC overhead: the number of repair packets for each number of data packets.

use crate::theory::block_of_window;

/// Repair packets by the number of data packets that they protect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Overhead {
    rows: Box<[u8; 256]>,
    /// Repair packets and data packets, if the ratio is the same for all numbers.
    share: Option<(u8, u8)>,
}

impl Overhead {
    /// Returns no repair packets.
    #[must_use]
    pub fn none() -> Self {
        Self::from_fn(|_| 0)
    }

    /// Returns `h` repair packets for `k` data packets, and for fewer or more in proportion,
    /// rounded up.
    ///
    /// # Panics
    ///
    /// If `k` is zero.
    #[must_use]
    pub fn of_block(k: u8, h: u8) -> Self {
        Self {
            share: Some((h, k)),
            ..Self::from_fn(|packets| (packets * usize::from(h)).div_ceil(usize::from(k)))
        }
    }

    /// Returns `rows` repair packets for each number of data packets from 1 to 255; never more than
    /// a block may have.
    #[must_use]
    pub fn from_fn(rows: impl Fn(usize) -> usize) -> Self {
        let mut table = Box::new([0; 256]);
        for (k, entry) in table.iter_mut().enumerate().skip(1) {
            *entry = rows(k).min(256 - k).min(255) as u8;
        }
        Self {
            rows: table,
            share: None,
        }
    }

    /// Number of repair packets after `k` data packets, 1 to 255.
    ///
    /// # Panics
    ///
    /// If `k` is more than 255.
    #[must_use]
    pub fn rows(&self, k: usize) -> usize {
        self.rows[k].into()
    }

    /// FEC overhead for a sliding window of `window` data packets: repair packets, and the data
    /// packets for which they are sent. The ratio of [`of_block`](Self::of_block), or else that of
    /// blocks which do as well ([`block_of_window`]).
    ///
    /// ```
    /// use fec::overhead::Overhead;
    ///
    /// assert_eq!(Overhead::of_block(20, 6).rows_of_window(128), (6, 20));
    /// let more_for_few = Overhead::from_fn(|k| 1 + k / 20);
    /// assert_eq!(more_for_few.rows_of_window(128), (6, 100));
    /// assert_eq!(more_for_few.rows_of_window(3), (1, 2));
    /// ```
    #[must_use]
    pub fn rows_of_window(&self, window: usize) -> (usize, usize) {
        let k = block_of_window(window);
        let share = self.share.map(|(h, k)| (h.into(), k.into()));
        share.unwrap_or((self.rows(k), k))
    }
}
