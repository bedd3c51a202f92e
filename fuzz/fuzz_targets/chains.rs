#![no_main]

libfuzzer_sys::fuzz_target!(|case: pepd_fuzz::chains::Case| pepd_fuzz::chains::run(&case));
