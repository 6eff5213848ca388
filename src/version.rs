//! Version of the module, defined only in Cargo.toml.

use std::ffi::{CStr, c_int};

/// Version as text: `1.2.3`.
pub const TEXT: &CStr = match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
    Ok(text) => text,
    Err(_) => c"",
};

/// Version as an integer, as in MODULE LIST: 1.2.3 is 10203.
pub const NUMBER: c_int = number(env!("CARGO_PKG_VERSION").as_bytes());

/// Parses a version into an integer with two digits each for minor version and patch. A suffix (`-rc.1`) is ignored.
const fn number(text: &[u8]) -> c_int {
    let (mut rest, mut number, mut component): (_, c_int, c_int) = (text, 0, 0);
    while let [byte, behind @ ..] = rest {
        match byte {
            b'.' => {
                number = number.saturating_add(component).saturating_mul(100);
                component = 0;
            }
            digit @ b'0'..=b'9' => {
                // The standard library cannot convert a digit in a constant.
                let digit = c_int::from_le_bytes([digit.wrapping_sub(b'0'), 0, 0, 0]);
                component = component.saturating_mul(10).saturating_add(digit);
            }
            _ => break,
        }
        rest = behind;
    }
    number.saturating_add(component)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_is_an_integer_with_two_digits_per_part() {
        for (text, expected) in [
            ("0.1.0", 100),
            ("1.2.3", 10_203),
            ("12.34.56", 123_456),
            ("0.0.9", 9),
            ("1.2.3-rc.1", 10_203),
            ("1.2.3+build.7", 10_203),
        ] {
            assert_eq!(number(text.as_bytes()), expected, "{text}");
        }
        assert_eq!(NUMBER, number(TEXT.to_bytes()));
    }
}
