//! Comparison of docs/protocol.md with what tunnel reads and with what rogue peers send.

use std::collections::BTreeSet;

use rogue::{
    Side, cases,
    document::{self, Item},
};
use tunnel::wire::{CloseCode, FrameError, Frames, Parts, ResetCode};

#[test]
fn every_row_of_the_document_has_cases() {
    let cases: BTreeSet<String> = cases::all(Side::Caller)
        .into_iter()
        .map(|case| case.row)
        .collect();
    let rows = cases::rows();
    // Fewer mean that the document's figures are no longer understood.
    assert!(rows.len() > 75, "{rows:?}");
    let without: Vec<_> = rows.iter().filter(|row| !cases.contains(*row)).collect();
    assert!(without.is_empty(), "without cases: {without:?}");
}

fn draws(items: &[Item], kind: u8) -> bool {
    let is = |item: &Item| (item.types.0..=item.types.1).contains(&kind);
    items.iter().any(is)
}

#[test]
fn the_document_draws_all_types_that_tunnel_reads_and_no_others() {
    let (frames, parts) = (document::frames(), document::parts());
    for kind in 0..=u8::MAX {
        let bytes = [kind, 0, 0, 0, 0];
        let unknown = Some(Err(FrameError::Unknown(kind)));
        let reads = Frames::new(&bytes).next() != unknown;
        assert_eq!(reads, draws(&frames, kind), "frame {kind:#04x}");
        let reads = Parts::new(&bytes).next().map(|part| part.map(|_| ()))
            != Some(Err(FrameError::Unknown(kind)));
        assert_eq!(reads, draws(&parts, kind), "part {kind:#04x}");
    }
}

#[test]
fn the_document_lists_all_codes() {
    let listed = document::codes("CLOSE");
    for code in CloseCode::ALL {
        assert!(listed.contains(&(code as u8)), "{code:?}");
    }
    let listed = document::codes("RESET");
    for code in ResetCode::ALL {
        assert!(listed.contains(&(code as u8)), "{code:?}");
    }
}

#[test]
fn figures_are_read_as_they_are_drawn() {
    let frames = document::frames();
    let close = frames.iter().find(|item| item.types.0 == 6);
    let close = close.expect("a frame that ends the session");
    let fields: Vec<_> = close.fields.iter().map(|field| &field.name[..]).collect();
    assert_eq!(fields, ["code", "length", "reason"]);
    let parts = document::parts();
    let [plain, last] = [0x43, 0x45].map(|kind| {
        let item = parts.iter().find(|item| item.types.0 == kind);
        &item.expect("data with its length").fields
    });
    assert_eq!(plain, last);
    let (names, offsets) = document::terms();
    assert_eq!(names.len() + 1, offsets.len(), "{names:?} {offsets:?}");
    let flags = document::report();
    let flag = |name: &str| {
        let field = flags.iter().find(|field| field.name == name);
        field.expect("a field of a report").flag
    };
    assert_eq!(
        ["held", "marked", "from", "extent", "below"].map(flag),
        [1, 2, 4, 8, 0]
    );
}
