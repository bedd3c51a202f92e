#![no_main]

libfuzzer_sys::fuzz_target!(|case: pepd_fuzz::session::Case| pepd_fuzz::session::run(&case));
