//! Patterns of names, as KEYS has them: `*`, `?`, `[abc]`, `[^a-z]`, and `\` before what is meant as it stands.
//!
//! A `*` first stands for nothing, and takes one byte more whenever what follows it does not match. What an earlier one
//! took need never be tried again: the time is at most the product of both lengths.

/// Whether the whole of `text` is what `pattern` says.
#[must_use]
pub fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut pattern, mut text) = (pattern, text);
    // What follows the last *, and the text from where on it is tried.
    let mut retry: Option<(&[u8], &[u8])> = None;
    loop {
        if let Some(behind) = pattern.strip_prefix(b"*") {
            pattern = behind;
            retry = Some((behind, text));
            continue;
        }
        match (pattern.is_empty(), text.split_first()) {
            (true, None) => return true,
            (false, Some((byte, rest))) => {
                if let Some(behind) = one(pattern, *byte) {
                    (pattern, text) = (behind, rest);
                    continue;
                }
            }
            _ => {}
        }
        let Some((behind, [_, later @ ..])) = retry else { return false };
        (pattern, text) = (behind, later);
        retry = Some((behind, later));
    }
}

/// What follows the first element of a pattern, which is no `*`, if that stands for `byte`.
fn one(pattern: &[u8], byte: u8) -> Option<&[u8]> {
    let (stands, behind) = match pattern {
        [b'?', behind @ ..] => (true, behind),
        [b'[', b'^', set @ ..] => {
            let (stands, behind) = in_set(set, byte);
            (!stands, behind)
        }
        [b'[', set @ ..] => in_set(set, byte),
        [b'\\', literal, behind @ ..] | [literal, behind @ ..] => (*literal == byte, behind),
        [] => (false, pattern),
    };
    stands.then_some(behind)
}

/// Whether `byte` is in the set, and what follows its end. One that is not closed ends with the pattern.
fn in_set(mut set: &[u8], byte: u8) -> (bool, &[u8]) {
    let mut stands = false;
    loop {
        set = match set {
            [] => return (stands, set),
            [b'\\', literal, rest @ ..] => {
                stands |= *literal == byte;
                rest
            }
            [b']', behind @ ..] => return (stands, behind),
            [first, b'-', last, rest @ ..] => {
                stands |= (first.min(last)..=first.max(last)).contains(&&byte);
                rest
            }
            [literal, rest @ ..] => {
                stands |= *literal == byte;
                rest
            }
        };
    }
}

#[cfg(test)]
mod tests;
