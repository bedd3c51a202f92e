mod carry;
mod rules;

use super::*;

const STREAM_CREDIT: u64 = 100;
const SESSION_CREDIT: u64 = 300;
const STREAMS_MAX: u32 = 4;
