//! Version of the module, defined only in Cargo.toml.

use std::ffi::{CStr, c_int};

/// Version as text: `1.2.3`.
pub const TEXT: &CStr = match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
    Ok(text) => text,
    Err(_) => c"",
};

/// Version as an integer, as in MODULE LIST: 1.2.3 is 10203. A suffix (`-rc.1`) is ignored.
pub const NUMBER: c_int =
    number(env!("CARGO_PKG_VERSION_MAJOR"), env!("CARGO_PKG_VERSION_MINOR"), env!("CARGO_PKG_VERSION_PATCH"));

const fn number(major: &str, minor: &str, patch: &str) -> c_int {
    parse(major).saturating_mul(100).saturating_add(parse(minor)).saturating_mul(100).saturating_add(parse(patch))
}

const fn parse(digits: &str) -> c_int {
    match c_int::from_str_radix(digits, 10) {
        Ok(number) => number,
        Err(_) => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_is_an_integer_with_two_digits_per_part() {
        for (parts, expected) in
            [(["0", "1", "0"], 100), (["1", "2", "3"], 10_203), (["12", "34", "56"], 123_456), (["0", "0", "9"], 9)]
        {
            let [major, minor, patch] = parts;
            assert_eq!(number(major, minor, patch), expected, "{parts:?}");
        }
        let version = TEXT.to_str().unwrap();
        let parts: Vec<&str> = version.split(['.', '-', '+']).collect();
        assert_eq!(NUMBER, number(parts[0], parts[1], parts[2]), "{version}");
    }
}
