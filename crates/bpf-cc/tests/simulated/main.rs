//! Tests of the programs in virtual time: compiled as ordinary functions, driven by models of a
//! sender and a link, with printed seeds. `load.rs` tests them in the kernel.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod cubic;
mod extremes;
mod hybla;
mod hybla_sat;
mod link;
mod paths;
mod program;
mod sender;
mod steady;
mod waking;
