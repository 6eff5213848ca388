//! Bound on texts that callers sent, for logs and traces.

/// Maximum length of a text, in bytes.
const MAX_TEXT: usize = 256;

/// Returns a text without the characters after the first 256 bytes.
pub fn cut(text: &str) -> &str {
    text.get(..text.floor_char_boundary(MAX_TEXT)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::{MAX_TEXT, cut};

    #[test]
    fn text_is_cut_at_a_character() {
        assert_eq!(cut("short"), "short");
        assert_eq!(cut(&"é".repeat(MAX_TEXT)).len(), MAX_TEXT);
        assert_eq!(cut(&format!("a{}", "é".repeat(MAX_TEXT))).len(), MAX_TEXT - 1);
    }
}
