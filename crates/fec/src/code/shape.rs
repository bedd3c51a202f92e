//! Checks of arguments, common to all back ends.

use super::{CodeError, SYMBOLS_MAX, numbers::Numbers};

pub(super) fn check_encode(
    data: &[&[u8]],
    first_row: usize,
    rows: &[&mut [u8]],
) -> Result<(), CodeError> {
    let length = data.first().ok_or(CodeError::NoData)?.len();
    let symbols = data.len().saturating_add(first_row);
    let symbols = symbols.saturating_add(rows.len());
    if symbols > SYMBOLS_MAX {
        return Err(CodeError::TooManySymbols(symbols));
    }
    let mut lengths = data.iter().map(|data| data.len());
    if lengths.any(|other| other != length) || rows.iter().any(|row| row.len() != length) {
        return Err(CodeError::Lengths);
    }
    Ok(())
}

/// Returns the numbers of the symbols present.
pub(super) fn check_decode(
    k: usize,
    received: &[(u8, &[u8])],
    lost: &[u8],
    restored: &[&mut [u8]],
) -> Result<Numbers, CodeError> {
    if k > SYMBOLS_MAX {
        return Err(CodeError::TooManySymbols(k));
    }
    let length = received.first().map_or(0, |(_, symbol)| symbol.len());
    let mut lengths = received.iter().map(|(_, symbol)| symbol.len());
    if lengths.any(|other| other != length) || restored.iter().any(|row| row.len() != length) {
        return Err(CodeError::Lengths);
    }
    let mut present = Numbers::default();
    for (number, _) in received {
        if !present.insert(*number) {
            return Err(CodeError::Number(*number));
        }
    }
    let mut taken = present;
    for number in lost {
        if usize::from(*number) >= k || !taken.insert(*number) {
            return Err(CodeError::Number(*number));
        }
    }
    let counts = (k, received.len(), lost.len(), restored.len());
    match counts {
        (0, ..) => Err(CodeError::NoData),
        (_, received, ..) if received < k => Err(CodeError::TooFew { received, k }),
        (_, _, lost, restored) if lost != restored => Err(CodeError::Places { lost, restored }),
        _ => Ok(present),
    }
}
