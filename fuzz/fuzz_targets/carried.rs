#![no_main]

libfuzzer_sys::fuzz_target!(|case: pepd_fuzz::carried::Case| pepd_fuzz::carried::run(&case));
