//! Throughput, CPU time and latency of split flows (`syn = "spoof"`) beside the direct path.

use std::process::ExitCode;

use benches::{Needs, STREAMS, run, streams};
use pepd_tests::speed::Variant;

fn main() -> ExitCode {
    run("relay", &STREAMS, Needs::Root, |run| {
        streams(run, Variant::Spoof)
    })
}
