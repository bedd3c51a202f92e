#![no_main]

libfuzzer_sys::fuzz_target!(
    |case: pepd_fuzz::conversation::Case| pepd_fuzz::conversation::run(&case)
);
