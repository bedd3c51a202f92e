#![no_main]

libfuzzer_sys::fuzz_target!(|packet: &[u8]| pepd_fuzz::frames::run(packet));
