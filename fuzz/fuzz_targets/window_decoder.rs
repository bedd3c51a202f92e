#![no_main]

libfuzzer_sys::fuzz_target!(|case: pepd_fuzz::window::Case| pepd_fuzz::window::run(&case));
