//! Test cases for every path and both families, with the plain network as the control.

use std::thread;

use parking_lot::RwLock;

use crate::bed::{Bed, Family, Path};

/// The environment variable that limits a run to cases whose name contains its value, such as
/// `direct` or `defer ipv6`.
pub const CASES_VARIABLE: &str = "PEPD_TEST_CASES";

/// Held shared by tests that only wait, and exclusively by those that measure.
static MACHINE: RwLock<()> = RwLock::new(());

const FAMILIES: [Family; 2] = [Family::V4, Family::V6];
const THROUGH_PEPD: [Path; 2] = [Path::Spoof, Path::Defer];

/// Runs the test on beds of all six cases. The direct path comes first, as the control: the plain
/// network must behave as expected. Then all cases through pepd run at once.
///
/// # Panics
/// When a case fails, naming all that did.
pub fn matrix(test: impl Fn(&Bed) + Sync) {
    let _shared = MACHINE.read();
    control(&test);
    check(&run_cases(&THROUGH_PEPD, &test));
}

/// Runs all cases like [`matrix`], one after the other and without other tests: for tests that
/// measure or that need most of the machine.
///
/// # Panics
/// When a case fails, naming it.
pub fn matrix_alone(test: impl Fn(&Bed) + Sync) {
    let _alone = MACHINE.write();
    in_turn(&test);
}

/// Runs all cases like [`matrix`], one after the other: for tests that need much of the machine,
/// but do not measure it.
///
/// # Panics
/// When a case fails, naming it.
pub fn matrix_in_turn(test: impl Fn(&Bed) + Sync) {
    let _shared = MACHINE.read();
    in_turn(&test);
}

fn in_turn(test: &(impl Fn(&Bed) + Sync)) {
    for path in [Path::Direct, Path::Spoof, Path::Defer] {
        for family in FAMILIES {
            check(&run_families(path, &[family], test));
        }
    }
}

/// Runs the test on beds of all cases through pepd, for features that the plain network lacks
/// (counters, caps, exit codes). With a direct counterpart use [`matrix`].
///
/// # Panics
/// When a case fails, naming all that did.
pub fn matrix_pepd_only(test: impl Fn(&Bed) + Sync) {
    let _shared = MACHINE.read();
    check(&run_cases(&THROUGH_PEPD, &test));
}

/// Runs a test with beds of its own while no measuring test is running.
pub fn shared<T>(test: impl FnOnce() -> T) -> T {
    let _shared = MACHINE.read();
    test()
}

fn control(test: &(impl Fn(&Bed) + Sync)) {
    let failed = run_cases(&[Path::Direct], test);
    assert!(
        failed.is_empty(),
        "the control failed, so the expectation is wrong: {}",
        failed.join(", ")
    );
}

fn check(failed: &[String]) {
    assert!(failed.is_empty(), "failed: {}", failed.join(", "));
}

fn run_cases(paths: &[Path], test: &(impl Fn(&Bed) + Sync)) -> Vec<String> {
    thread::scope(|scope| {
        let runs: Vec<_> = paths
            .iter()
            .map(|path| scope.spawn(|| run_families(*path, &FAMILIES, test)))
            .collect();
        let joined = runs
            .into_iter()
            .map(|run| run.join().expect("only collects"));
        joined.flatten().collect()
    })
}

/// Runs the families of a path at once; returns the names of failed cases.
fn run_families(path: Path, families: &[Family], test: &(impl Fn(&Bed) + Sync)) -> Vec<String> {
    thread::scope(|scope| {
        let wanted = families.iter().filter(|family| is_wanted(path, **family));
        let runs = wanted.map(|family| {
            let name = case_name(path, *family);
            let run = move || test(&Bed::new(path, *family));
            // The thread's name appears in panic messages.
            let thread = thread::Builder::new().name(name.clone());
            let handle = thread.spawn_scoped(scope, run);
            (name, handle.expect("a thread can be started"))
        });
        let runs: Vec<_> = runs.collect();
        runs.into_iter()
            .filter_map(|(name, run)| run.join().is_err().then_some(name))
            .collect()
    })
}

fn case_name(path: Path, family: Family) -> String {
    format!("{} {}", path.name(), family.name())
}

fn is_wanted(path: Path, family: Family) -> bool {
    std::env::var(CASES_VARIABLE).map_or(true, |wanted| case_name(path, family).contains(&wanted))
}
