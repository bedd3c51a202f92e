#![no_main]

libfuzzer_sys::fuzz_target!(|case: pepd_fuzz::boosters::Case| pepd_fuzz::boosters::run(&case));
