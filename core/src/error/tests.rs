use super::*;

#[test]
fn names_are_a_list_to_choose_from() {
    assert_eq!(one_of(&["A", "B", "C"]), "A, B or C");
    assert_eq!(one_of(&["A", "B"]), "A or B");
    assert_eq!(one_of(&["A"]), "A");
}

#[test]
fn an_unexpected_word_is_cut_and_escaped() {
    for (word, text) in [
        (&b"FOO"[..], "ERR syntax error, unexpected 'FOO'"),
        (b"a'b\r\n\0\xff", r"ERR syntax error, unexpected 'a\'b\r\n\x00\xff'"),
        (b"", "ERR syntax error, unexpected ''"),
    ] {
        assert_eq!(Error::unexpected(word).to_string(), text);
    }
    let long = Error::unexpected(&[b'x'; 1000]).to_string();
    assert_eq!(long, format!("ERR syntax error, unexpected '{}...'", "x".repeat(32)));
}
