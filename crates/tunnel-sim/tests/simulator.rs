//! Test of the simulator itself: it finds planted faults, and accepts correct sessions.

use tunnel_sim::{
    Plan, World,
    explore::{explore, simplify},
    plan::Scope,
    reference::{Bug, Reference, bug},
};

const SCOPE: &Scope = &Scope::STOP_AND_WAIT;

#[test]
fn a_session_that_is_right_violates_nothing() {
    let totals = explore::<Reference<{ bug::NONE }>>(0..600, SCOPE);
    let totals = totals.unwrap_or_else(|failure| panic!("{failure}"));
    assert_eq!(totals.runs, 600);
    assert!(totals.bytes > 1_000_000, "{totals:?}");
}

#[test]
fn a_plan_runs_the_same_each_time() {
    for seed in 0..20 {
        let run = || World::<Reference<{ bug::NONE }>>::run(Plan::draw(seed, SCOPE), false);
        assert_eq!(
            run().expect("is right"),
            run().expect("is right"),
            "seed {seed}"
        );
    }
}

/// Returns the violation that the simulator reports, at the first seed that shows the fault.
fn found<const BUG: Bug>() -> String {
    let seeds = 0..400;
    let failure = explore::<Reference<BUG>>(seeds, SCOPE).expect_err("planted fault not found");
    failure.violation.kind()
}

macro_rules! finds {
    ($($test:ident: $bug:ident => $($kind:literal)|+;)+) => {$(
        #[test]
        fn $test() {
            let kind = found::<{ bug::$bug }>();
            assert!([$($kind),+].contains(&kind.as_str()), "{kind}");
        }
    )+};
}

finds! {
    finds_a_lost_byte: LOSES_BYTE => "ReadableUnplaced";
    finds_a_lost_chunk: LOSES_CHUNK => "ReadableUnplaced";
    finds_a_doubled_byte: DOUBLES_BYTE => "WrongByte";
    finds_swapped_bytes: SWAPS_BYTES => "WrongByte";
    finds_an_early_end: FINISHES_EARLY => "FinishedEarly" | "NoNews" | "ClosedEarly";
    finds_a_missing_end: NEVER_FINISHES => "ClosedEarly" | "Stuck";
    finds_a_missing_reset: HIDES_RESET => "Stuck" | "ManyStreams";
    finds_a_wrong_reason: INVENTS_CODE => "ResetUnasked";
    finds_a_sender_that_gives_up: GIVES_UP => "Stuck";
    finds_lost_credit: LOSES_CREDIT => "Stuck";
    finds_ignored_credit: IGNORES_CREDIT => "PlacedBeyond";
    finds_a_busy_loop: SPINS => "BusyLoop" | "IdleWakes";
    finds_a_creeping_deadline: CREEPS => "IdleWakes";
    finds_an_unbounded_queue: UNREAD_DATAGRAMS => "Memory";
    finds_a_flood: FLOODS => "Flood";
    finds_early_acknowledgements: ACKS_EARLY => "AckedUnplaced" | "NoNews";
    finds_bytes_read_again: READS_AGAIN => "ReadAcked" | "WrongByte";
    finds_news_told_twice: REPORTS_TWICE => "NoNews";
    finds_too_many_streams: KNOWS_NO_LIMIT => "ManyStreams";
    finds_an_early_close: CLOSES_EARLY => "ClosedEarly";
    finds_belief_in_damaged_packets: BELIEVES_DAMAGED =>
        "WrongByte" | "PlacedBeyond" | "PlacedUnwritten" | "OpenedUnasked" | "NoSuchStream" | "ResetUnasked"
        | "Refused" | "PlacedAgain" | "Stuck" | "AckedUnplaced" | "FinishedEarly" | "OutOfPlace" | "Panicked";
    finds_a_panic: PANICS => "Panicked";
    finds_packets_that_are_too_long: TOO_LONG => "Oversized";
}

#[test]
fn a_failing_plan_gets_simpler() {
    let failure = explore::<Reference<{ bug::HIDES_RESET }>>(0..400, SCOPE).expect_err("planted");
    let (before, kind) = (format!("{:?}", failure.plan), failure.violation.kind());
    let simple = simplify::<Reference<{ bug::HIDES_RESET }>>(failure, 300);
    let after = format!("{:?}", simple.plan);
    assert_eq!(simple.violation.kind(), kind);
    assert!(simple.plan.streams.len() <= 2, "{after}");
    assert!(after.len() < before.len(), "{after}");
}
