//! The programs in virtual time: compiled as ordinary functions, driven by a model of a sender and
//! a link, from seeds that are printed. What the kernel does with them is in `load.rs`.
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
