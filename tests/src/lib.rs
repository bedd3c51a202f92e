//! Traffic tools, test beds and a handle on the daemon, for the behaviour tests beside this
//! crate and for its benchmarks.
//!
//! Everything runs in network namespaces of its own, so that tests neither see each other nor
//! the machine's network:
//!
//! * [`host`]: one machine of a test bed: sockets and programs in its namespace;
//! * [`bed`]: the chain client - pepd - server, for IPv4 and IPv6, with destinations that fail
//!   in every way a network knows, and one-armed variants;
//! * [`matrix`]: runs a test on the plain network first (the control), then through pepd with
//!   `syn = "spoof"` and `"defer"`, for both families;
//! * [`pep`]: builds and runs the daemon; its log, counters, signals and what it leaves behind;
//! * [`payload`], [`serve`], [`objects`], [`echo`], [`outcome`]: bytes from a seed, servers and
//!   how connections end;
//! * [`measure`]: latencies, connection rates and goodput, taken at the receiver;
//! * [`speed`]: pepd beside the direct path in turns, for `cargo bench`;
//! * [`growth`]: congestion windows beside the formulas that they follow;
//! * [`guest`]: programs on another kernel;
//! * [`raw`]: single packets as no kernel would send them, and what is on the wire;
//! * [`programs`]: real servers and clients, and which package has them;
//! * [`screen`]: a program in a terminal; [`browser`]: a page in a browser;
//! * [`tunnel`]: two pepds and a link between them;
//! * [`wait`]: waiting for conditions.
//!
//! Functions here panic with a sentence rather than return errors: in a test there is nothing
//! else to do with one.
#![forbid(unsafe_code)]

pub mod bed;
pub mod browser;
pub mod echo;
pub mod footprint;
pub mod growth;
pub mod guest;
pub mod host;
pub mod matrix;
pub mod measure;
pub mod objects;
pub mod outcome;
pub mod payload;
pub mod pep;
pub mod pep_binary;
pub mod pep_log;
pub mod programs;
pub mod raw;
pub mod screen;
pub mod serve;
pub mod speed;
pub mod tunnel;
pub mod wait;
