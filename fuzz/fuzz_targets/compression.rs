#![no_main]

libfuzzer_sys::fuzz_target!(
    |case: pepd_fuzz::compression::Case| pepd_fuzz::compression::run(&case)
);
