//! Names and keys as text. Servers have bytes; JSON has text. A byte that is no UTF-8 stands as `\xff`, and a backslash
//! that would read as such as `\x5c`, so that each text names one sequence of bytes.

use percent_encoding::percent_decode_str;
use std::fmt::Write as _;

/// The text of these bytes.
#[must_use]
pub fn shown(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        let valid = chunk.valid();
        for (place, character) in valid.char_indices() {
            if character == '\\' && escape(valid.get(place..).unwrap_or_default()).is_some() {
                out.push_str("\\x5c");
            } else {
                out.push(character);
            }
        }
        for byte in chunk.invalid() {
            push(&mut out, *byte);
        }
    }
    out
}

/// The bytes of this text.
#[must_use]
pub fn bytes(text: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some(character) = rest.chars().next() {
        let length = if let Some(byte) = escape(rest) {
            out.push(byte);
            4
        } else {
            let length = character.len_utf8();
            out.extend(rest.bytes().take(length));
            length
        };
        rest = rest.get(length..).unwrap_or_default();
    }
    out
}

/// The bytes of a part of a path: percent-encoded, and then text as above.
#[must_use]
pub fn of_path(part: &str) -> Vec<u8> {
    let decoded: Vec<u8> = percent_decode_str(part).collect();
    // Bytes that are no UTF-8 stand for themselves: they are shown as they would be written.
    bytes(&decoded.utf8_chunks().fold(String::new(), |mut text, chunk| {
        text.push_str(chunk.valid());
        for byte in chunk.invalid() {
            push(&mut text, *byte);
        }
        text
    }))
}

/// Adds a byte as `\xff`.
fn push(text: &mut String, byte: u8) {
    // A string takes whatever is written to it.
    let _ = write!(text, "\\x{byte:02x}");
}

/// The byte that a text begins with as `\xff`.
fn escape(text: &str) -> Option<u8> {
    let digits = text.strip_prefix("\\x")?.get(..2)?;
    let hexadecimal = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    hexadecimal.then(|| u8::from_str_radix(digits, 16).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::{bytes, of_path, shown};

    #[test]
    fn bytes_that_are_no_text_are_shown_as_numbers() {
        assert_eq!(shown(b"caf\xc3\xa9 \xff\x00"), "caf\u{e9} \\xff\u{0}");
        assert_eq!(shown(br"a\xfg \x4"), r"a\xfg \x4", "nothing that could be misread");
        assert_eq!(shown(br"a\x41"), r"a\x5cx41");
    }

    #[test]
    fn each_sequence_of_bytes_has_a_text_of_its_own() {
        for case in
            [&b"plain"[..], b"", b"\\", b"\\x", b"\\x4", b"\\x41", b"\\\\x41", b"\\x\xff", b"\xf0\x9f", b"\\x5cx41"]
        {
            assert_eq!(bytes(&shown(case)), case, "{case:?}");
        }
        for byte in 0..=u8::MAX {
            let case = [b'\\', b'x', byte, b'4', byte];
            assert_eq!(bytes(&shown(&case)), case);
        }
    }

    #[test]
    fn a_path_takes_bytes_and_text() {
        assert_eq!(of_path("plan%3Afree%2F1"), b"plan:free/1");
        assert_eq!(of_path("%ff"), b"\xff");
        assert_eq!(of_path("%5Cxff"), b"\xff");
        assert_eq!(of_path("%5Cx2e%5Cx2e"), b"..");
        assert_eq!(of_path("100%"), b"100%", "what encodes nothing is itself");
    }
}
