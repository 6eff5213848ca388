#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| redis_ratelimit_fuzz::targets::states::run(data));
