#![no_main]

libfuzzer_sys::fuzz_target!(|case: pepd_fuzz::endpoint::Case| pepd_fuzz::endpoint::run(&case));
