#![no_main]

libfuzzer_sys::fuzz_target!(|case: pepd_fuzz::parcel::Case| pepd_fuzz::parcel::run(&case));
