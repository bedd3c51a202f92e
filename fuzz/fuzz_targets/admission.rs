#![no_main]

libfuzzer_sys::fuzz_target!(|case: pepd_fuzz::admission::Case| pepd_fuzz::admission::run(&case));
