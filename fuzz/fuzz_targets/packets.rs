#![no_main]

libfuzzer_sys::fuzz_target!(|case: pepd_fuzz::packets::Case| pepd_fuzz::packets::run(&case));
