//! Loss classifier over emulated links, against the truth, with a margin. The example `causes`
//! prints all results.

#[path = "emulated/channel.rs"]
mod channel;
#[path = "emulated/receiver.rs"]
mod receiver;

use channel::{CHANNELS, confusion};

/// Bytes of a packet on the link.
const PACKET: usize = 1468;

#[test]
fn causes_are_told_apart_and_congestion_is_hardly_ever_taken_for_the_link() {
    for channel in &CHANNELS {
        let table = confusion(channel, 30, false, 7);
        let right = |cause: usize| {
            let row = table.0[cause];
            row[cause] as f64 / row.iter().sum::<u64>().max(1) as f64
        };
        let lost = |cause: usize| table.0[cause].iter().sum::<u64>();
        let what = format!("{}: {:?}", channel.name, table.0);
        assert!(table.overall() > 0.6, "{what}");
        if lost(1) > 0 {
            let by_link = table.0[1][0] as f64 / lost(1) as f64;
            assert!(by_link < 0.1, "{what}");
        }
        if lost(2) > 0 {
            assert!(right(2) > 0.95, "{what}");
        }
        // Where no flow fills the queue, losses are attributed to the link.
        if lost(1) == 0 {
            assert!(right(0) > 0.85, "{what}");
        }
    }
}
