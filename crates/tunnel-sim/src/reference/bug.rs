//! Names of all faults.
#![expect(missing_docs, reason = "names are self-explanatory")]

use super::Bug;

pub const NONE: Bug = 0;
pub const LOSES_BYTE: Bug = 1;
pub const LOSES_CHUNK: Bug = 2;
pub const DOUBLES_BYTE: Bug = 3;
pub const SWAPS_BYTES: Bug = 4;
pub const FINISHES_EARLY: Bug = 5;
pub const NEVER_FINISHES: Bug = 6;
pub const HIDES_RESET: Bug = 7;
pub const INVENTS_CODE: Bug = 8;
pub const GIVES_UP: Bug = 9;
pub const LOSES_CREDIT: Bug = 10;
pub const IGNORES_CREDIT: Bug = 11;
pub const SPINS: Bug = 12;
pub const CREEPS: Bug = 13;
pub const UNREAD_DATAGRAMS: Bug = 14;
pub const FLOODS: Bug = 15;
pub const ACKS_EARLY: Bug = 16;
pub const READS_AGAIN: Bug = 17;
pub const REPORTS_TWICE: Bug = 18;
pub const KNOWS_NO_LIMIT: Bug = 19;
pub const CLOSES_EARLY: Bug = 20;
pub const BELIEVES_DAMAGED: Bug = 21;
pub const PANICS: Bug = 22;
pub const TOO_LONG: Bug = 23;
