use super::{EscapedDescriptor, escape, escape_field, idempotency_key, key};
use crate::client_address::Ipv6Prefix;
use std::collections::HashMap;

#[test]
fn policy_names_lose_their_values_from_the_right() {
    let descriptor = EscapedDescriptor::new("api", [("plan", "gold"), ("user", "42")]);
    let expected = ["api|plan=gold|user=42", "api|plan=gold|user", "api|plan|user", "api"];
    assert_eq!(descriptor.policy_names(), expected);
    assert_eq!(descriptor.key(), b"rl:api|plan=gold|user=42");
}

#[test]
fn special_characters_are_escaped() {
    assert_eq!(escape("a%b|c=d*e{f}g~h i\n\u{7f}\0\u{e9}"), "a%25b%7Cc%3Dd%2Ae%7Bf%7Dg%7Eh%20i%0A%7F%00\u{e9}");
    let honest = EscapedDescriptor::new("d", [("a", "1"), ("b", "2")]);
    let forged = EscapedDescriptor::new("d", [("a", "1|b=2")]);
    assert_ne!(honest.key(), forged.key());
}

#[test]
fn each_byte_that_is_not_utf8_is_escaped() {
    assert_eq!(escape_field("a|:\u{e9}".as_bytes()), "a%7C%3A\u{e9}");
    assert_eq!(escape_field(b"a\xff\xc3b\xf0\x9f"), "a%FF%C3b%F0%9F");
    assert_ne!(escape_field(b"\xff"), escape_field(b"%FF"));
}

/// Returns all concatenations of up to `max_pieces` of the pieces, with repetition.
fn concatenations(pieces: &[&[u8]], max_pieces: usize) -> Vec<Vec<u8>> {
    let mut all = vec![vec![]];
    let mut longest: Vec<Vec<u8>> = all.clone();
    for _ in 0..max_pieces {
        longest =
            longest.iter().flat_map(|value| pieces.iter().map(|piece| [value.as_slice(), piece].concat())).collect();
        all.extend(longest.iter().cloned());
    }
    all
}

/// Returns all lists of `length` items, with repetition.
fn lists<T: Clone>(items: &[T], length: usize) -> Vec<Vec<T>> {
    (0..length).fold(vec![vec![]], |lists, _| {
        let longer = |list: &Vec<T>| {
            let list = list.clone();
            items.iter().map(move |item| [list.as_slice(), std::slice::from_ref(item)].concat()).collect::<Vec<_>>()
        };
        lists.iter().flat_map(longer).collect()
    })
}

#[test]
fn different_fields_have_different_keys() {
    let pieces: [&[u8]; 10] = [b"a", b":", b"|", b"=", b"%", b"3A", b"~", b" ", b"\xff", b"FF"];
    let mut fields_by_key: HashMap<String, Vec<Vec<u8>>> = HashMap::new();
    for (field_count, max_pieces) in [(1, 3), (2, 2), (3, 1)] {
        for fields in lists(&concatenations(&pieces, max_pieces), field_count) {
            let escaped: Vec<String> = fields.iter().map(|field| escape_field(field)).collect();
            if let Some(other) = fields_by_key.insert(format!("pay:{}", escaped.join(":")), fields.clone()) {
                panic!("{other:?} and {fields:?} have the same key");
            }
        }
    }
    assert!(fields_by_key.len() > 10_000);
}

#[test]
fn different_descriptors_have_different_keys() {
    let pieces: [&[u8]; 6] = [b"a", b"|", b"=", b"%", b"7C", b":"];
    let texts: Vec<String> =
        concatenations(&pieces, 1).into_iter().map(|text| String::from_utf8(text).expect("text")).collect();
    let entries: Vec<(&str, &str)> =
        texts.iter().flat_map(|key| texts.iter().map(|value| (key.as_str(), value.as_str()))).collect();
    let mut descriptor_by_key = HashMap::new();
    for entries in (0..3).flat_map(|count| lists(&entries, count)) {
        for domain in &texts {
            let key = EscapedDescriptor::new(domain, entries.iter().copied()).key();
            if let Some(other) = descriptor_by_key.insert(key, (domain, entries.clone())) {
                panic!("{other:?} and {domain:?} {entries:?} have the same key");
            }
        }
    }
    assert!(descriptor_by_key.len() > 10_000);
}

#[test]
fn policy_names_that_are_too_long_are_left_out() {
    let long = "v".repeat(300);
    let descriptor = EscapedDescriptor::new("api", [("plan", "gold"), ("user", &long)]);
    assert_eq!(descriptor.policy_names(), ["api|plan=gold|user", "api|plan|user", "api"]);
    assert!(EscapedDescriptor::new(&long, [("a", "b")]).policy_names().is_empty());
}

#[test]
fn addresses_have_names_by_address_and_network_and_keys_by_network() {
    let entries = [("remote_address", "2001:db8:1:2::6"), ("path", "/")];
    let descriptor = EscapedDescriptor::new("api", entries).group_addresses(Ipv6Prefix::default());
    let [by_address, by_network] =
        ["2001:db8:1:2::6", "2001:db8:1:2::/64"].map(|address| format!("api|remote_address={address}|path"));
    let expected = [&format!("{by_address}=/"), &format!("{by_network}=/"), &by_address, &by_network];
    let expected: Vec<&str> =
        expected.into_iter().map(String::as_str).chain(["api|remote_address|path", "api"]).collect();
    assert_eq!(descriptor.policy_names(), expected);
    assert_eq!(descriptor.key(), format!("rl:{by_network}=/").into_bytes());
}

#[test]
fn long_keys_and_ids_are_shortened_and_remain_different() {
    let [one, other] = ["1", "2"].map(|end| key(format!("rl:{}{end}", "x".repeat(300))));
    assert_eq!((one.len(), other.len()), (225, 225));
    assert_eq!(one[..193], other[..193]);
    assert_ne!(one, other);
    assert_eq!(key("k".repeat(256)).len(), 256);
    assert_eq!(idempotency_key(&[0xff; 200]), [0xff; 200]);
    assert_eq!(idempotency_key(&[0xff; 201]).len(), 225);
}

#[test]
fn key_parses_back_to_its_descriptor() {
    let entries = [[].as_slice(), &[("plan", "gold")], &[("plan", "go|ld"), ("user", "4=2*{d}~%"), ("empty", "")]];
    for entries in entries {
        let descriptor = EscapedDescriptor::new("a|b", entries.iter().copied());
        let key = descriptor.key();
        let parsed = EscapedDescriptor::from_key(&key).unwrap();
        assert_eq!((parsed.policy_names(), parsed.key()), (descriptor.policy_names(), descriptor.key()));
    }
    let user = "u".repeat(300);
    let long = EscapedDescriptor::new("api", [("plan", "gold"), ("user", user.as_str())]);
    let key = long.key();
    let parsed = EscapedDescriptor::from_key(&key).unwrap();
    assert!(parsed.policy_names().ends_with(&["api|plan=gold|user".into(), "api|plan|user".into(), "api".into()]));
    for other in [b"user:42".as_slice(), b"rl", b"rl:\xff"] {
        assert!(EscapedDescriptor::from_key(other).is_none(), "{other:?}");
    }
}
