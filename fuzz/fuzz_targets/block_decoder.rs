#![no_main]

libfuzzer_sys::fuzz_target!(|case: pepd_fuzz::block::Case| pepd_fuzz::block::run(&case));
