//! Traffic tools, test beds and control of the daemon, for behaviour tests and benchmarks.
//!
//! Everything runs in separate network namespaces, isolated from other tests and from the machine's
//! network:
//!
//! * [`host`]: one machine of a test bed: sockets and programs in its namespace;
//! * [`bed`]: the chain client - pepd - server, for IPv4 and IPv6, with destinations that fail in
//!   all common ways, and one-armed variants;
//! * [`matrix`]: runs a test on the plain network first (the control), then through pepd with `syn
//!   = "spoof"` and `"defer"`, for both families;
//! * [`pep`]: builds and runs the daemon; its log, counters, signals and leftovers;
//! * [`payload`], [`serve`], [`objects`], [`echo`], [`outcome`]: seeded bytes, servers and the ends
//!   of connections;
//! * [`measure`]: latencies, connection rates and goodput, measured at the receiver;
//! * [`speed`]: pepd and the direct path in turns, for `cargo bench`;
//! * [`growth`]: congestion windows and their formulas;
//! * [`guest`]: programs on another kernel;
//! * [`raw`]: single crafted packets, and packet captures;
//! * [`programs`]: real servers and clients, and their packages;
//! * [`screen`]: a program in a terminal; [`browser`]: a page in a browser;
//! * [`tunnel`]: two pepds and a link between them;
//! * [`wait`]: waiting for conditions.
//!
//! Functions here panic with a message instead of returning errors: a test could only fail with
//! them.
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
