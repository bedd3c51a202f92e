//! Recognition of streams that carry messages, from the lengths of their pieces.

/// Maximum bytes of a short piece.
const SHORT_MAX: usize = 512;
/// Short pieces in a row that make a conversation. A transfer has one at its end.
const IN_A_ROW: u8 = 4;

/// Short pieces at the end of one direction of a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Talk {
    short: u8,
}

impl Talk {
    /// Handles a piece of new bytes. Returns true if the last pieces are messages: short ones, one
    /// after the other.
    pub(super) fn on_piece(&mut self, len: usize) -> bool {
        self.short = match len {
            0 => self.short,
            1..=SHORT_MAX => self.short.saturating_add(1),
            _ => 0,
        };
        self.short >= IN_A_ROW && len > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn last_of(lens: &[usize]) -> bool {
        let mut talk = Talk::default();
        lens.iter().fold(false, |_, len| talk.on_piece(*len))
    }

    #[test]
    fn short_pieces_in_a_row_are_messages() {
        assert!(last_of(&[100, 512, 1, 40]));
        assert!(last_of(&[1400, 100, 512, 1, 40]));
        assert!(!last_of(&[100, 512, 1]));
    }

    #[test]
    fn a_transfer_with_some_short_pieces_is_none() {
        assert!(!last_of(&[100, 1400, 100, 1400, 100, 1400, 100, 1400, 100]));
        assert!(!last_of(&[100, 100, 100, 100, 513]));
        assert!(!last_of(&[100, 100, 100, 100, 0]));
    }
}
