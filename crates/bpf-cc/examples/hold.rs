//! Registers this crate's congestion controls until interrupted, for tests without pepd:
//!
//!     cargo run -p bpf-cc --example hold -- hybla_sat westwood
//!     iperf3 -c server -C hybla_sat

use std::{error::Error, thread};

use bpf_cc::{Control, Loaded};

fn main() -> Result<(), Box<dyn Error>> {
    let controls: Vec<Control> = std::env::args()
        .skip(1)
        .map(|name| name.parse())
        .collect::<Result<_, _>>()?;
    let loaded = Loaded::load(&controls)?;
    for (control, name) in loaded.names() {
        println!("{control} is registered as {name}");
    }
    loop {
        thread::park();
    }
}
