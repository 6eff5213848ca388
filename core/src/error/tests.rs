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

#[test]
fn every_refusal_has_its_text_on_the_wire() {
    const MUST_BE: MustBe = MustBe { what: "a thing", example: "this" };
    for (error, text) in [
        (Error::WrongArity, "ERR wrong number of arguments"),
        (Error::out_of_range("cost", MUST_BE), "ERR cost must be a thing, such as this"),
        (Error::unexpected_where(b"FOO", " behind the last"), "ERR syntax error, unexpected 'FOO' behind the last"),
        (
            Error::TooFewSpecs { keys: 3, specs: 2 },
            "ERR numkeys must be the number of keys and of specs, such as 2 for two of each \
             (there are specs for 2 of 3 keys)",
        ),
        (
            Error::WrongType { holds: "a string", needs: "a bucket" },
            "WRONGTYPE Operation against a key holding a string, where a bucket is needed",
        ),
        (Error::OutOfMemory, "OOM command not allowed when used memory > 'maxmemory'."),
        (
            Error::TooManyEntries { most: 5, setting: "max-leases" },
            "ERR the key has 5 entries, as many as ratelimit.max-leases allows",
        ),
        (Error::no_policy([&b"user:1"[..], b"a'\n"].into_iter()), r"NOPOLICY no policy 'user:1' or 'a\'\n'"),
        (
            Error::NoHolder,
            "ERR the policy has a CONCURRENCY limit, whose holder is the call's id: the call needs ONCE id ttl",
        ),
        (Error::MoreToTell("EACH"), "ERR RL.DELAY tells only when to go, and EACH more: use RL.LIMIT"),
        (Error::UnreadablePolicy, "ERR the policy was set by a later version of module ratelimit"),
        (Error::other_version(b"gold", 3, 2), "ERR policy 'gold' stands at version 3, not 2"),
        (
            Error::TooManyPolicies { most: 4096 },
            "ERR there are 4096 policies, as many as ratelimit.max-policies allows",
        ),
        (Error::NoLaterStamp, "ERR there is no time stamp later than the last one seen"),
        (Error::InvalidEffect, "ERR invalid effect"),
        (Error::Internal, "ERR internal error in module ratelimit"),
    ] {
        assert_eq!(error.to_string(), text);
    }
}

#[test]
fn a_word_is_shown_whole_up_to_32_characters() {
    for (length, dots) in [(31, ""), (32, ""), (33, "...")] {
        let shown = "x".repeat(length.min(32));
        assert_eq!(Error::unexpected(&vec![b'x'; length]), Error::Unexpected(format!("'{shown}{dots}'")));
    }
    // Of what is escaped, whole bytes.
    for (length, shown, dots) in [(7, 7, ""), (8, 8, ""), (9, 8, "..."), (1000, 8, "...")] {
        let shown = r"\xff".repeat(shown);
        assert_eq!(Error::unexpected(&vec![0xff; length]), Error::Unexpected(format!("'{shown}{dots}'")));
    }
    let (thirty, word) = ("x".repeat(30), [&[b'x'; 30][..], b"\n"].concat());
    assert_eq!(Error::unexpected(&word), Error::Unexpected(format!(r"'{thirty}\n'")));
    assert_eq!(Error::unexpected(&[&word[..], b"x"].concat()), Error::Unexpected(format!(r"'{thirty}\n...'")));
}
