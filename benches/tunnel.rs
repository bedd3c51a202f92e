//! Throughput, CPU time and latency of flows in a tunnel between two pepds, beside the direct path.

use std::process::ExitCode;

use benches::{Needs, STREAMS, run, streams};
use pepd_tests::speed::Variant;

fn main() -> ExitCode {
    run("tunnel", &STREAMS, Needs::Root, |run| {
        streams(run, Variant::Tunnel)
    })
}
