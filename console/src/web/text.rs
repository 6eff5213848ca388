//! Conversion of names and keys between bytes and text, because JSON cannot have arbitrary bytes. A byte that is not
//! UTF-8 is written as `\xff`, and a backslash that begins such a sequence as `\x5c`, so that different bytes have
//! different texts.

use percent_encoding::percent_decode_str;
use std::fmt::Write as _;

/// Converts bytes to text.
#[must_use]
pub fn from_bytes(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        let valid = chunk.valid();
        for (index, character) in valid.char_indices() {
            if character == '\\' && parse_escape(valid.get(index..).unwrap_or_default()).is_some() {
                out.push_str("\\x5c");
            } else {
                out.push(character);
            }
        }
        for byte in chunk.invalid() {
            push_escaped(&mut out, *byte);
        }
    }
    out
}

/// Converts a text that [`from_bytes`] returned back to bytes.
#[must_use]
pub fn to_bytes(text: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some(character) = rest.chars().next() {
        let length = if let Some(byte) = parse_escape(rest) {
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

/// Returns the bytes of a path segment, which is a percent-encoded text.
#[must_use]
pub fn decode_path(part: &str) -> Vec<u8> {
    let decoded: Vec<u8> = percent_decode_str(part).collect();
    // Bytes that are not UTF-8 are accepted as well.
    to_bytes(&decoded.utf8_chunks().fold(String::new(), |mut text, chunk| {
        text.push_str(chunk.valid());
        for byte in chunk.invalid() {
            push_escaped(&mut text, *byte);
        }
        text
    }))
}

/// Appends a byte as `\xff`.
fn push_escaped(text: &mut String, byte: u8) {
    // Writing to a string never fails.
    let _ = write!(text, "\\x{byte:02x}");
}

/// Parses the byte at the beginning of a text if it is written as `\xff`.
fn parse_escape(text: &str) -> Option<u8> {
    let digits = text.strip_prefix("\\x")?.get(..2)?;
    let hexadecimal = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    hexadecimal.then(|| u8::from_str_radix(digits, 16).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::{decode_path, from_bytes, to_bytes};

    #[test]
    fn bytes_that_are_not_utf8_are_escaped() {
        assert_eq!(from_bytes(b"caf\xc3\xa9 \xff\x00"), "caf\u{e9} \\xff\u{0}");
        assert_eq!(from_bytes(br"a\xfg \x4"), r"a\xfg \x4", "no escape sequence");
        assert_eq!(from_bytes(br"a\x41"), r"a\x5cx41");
    }

    #[test]
    fn text_converts_back_to_the_same_bytes() {
        for case in
            [&b"plain"[..], b"", b"\\", b"\\x", b"\\x4", b"\\x41", b"\\\\x41", b"\\x\xff", b"\xf0\x9f", b"\\x5cx41"]
        {
            assert_eq!(to_bytes(&from_bytes(case)), case, "{case:?}");
        }
        for byte in 0..=u8::MAX {
            let case = [b'\\', b'x', byte, b'4', byte];
            assert_eq!(to_bytes(&from_bytes(&case)), case);
        }
    }

    #[test]
    fn path_segment_may_have_bytes_and_text() {
        assert_eq!(decode_path("plan%3Afree%2F1"), b"plan:free/1");
        assert_eq!(decode_path("%ff"), b"\xff");
        assert_eq!(decode_path("%5Cxff"), b"\xff");
        assert_eq!(decode_path("%5Cx2e%5Cx2e"), b"..");
        assert_eq!(decode_path("100%"), b"100%", "a lone % is kept");
    }
}
