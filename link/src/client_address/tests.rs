use super::{Ipv6Prefix, canonical_entry, is_trusted, parse_client, parse_network, request_client};
use serde::Deserialize;

/// Test cases shared with the client packages.
const TABLE: &str = include_str!("../../../clients/addresses.json");

#[derive(Deserialize)]
struct Table {
    addresses: Vec<AddressCase>,
    trusted: Vec<String>,
    forwarded: Vec<ForwardedCase>,
}

#[derive(Deserialize)]
struct AddressCase {
    text: String,
    ipv6_prefix: Option<u8>,
    key: Option<String>,
}

#[derive(Deserialize)]
struct ForwardedCase {
    peer: String,
    header: Vec<String>,
    client: String,
}

fn table() -> Table {
    serde_json::from_str(TABLE).expect("the table")
}

#[test]
fn addresses_have_the_keys_of_the_shared_table() {
    for AddressCase { text, ipv6_prefix, key } in table().addresses {
        let prefix = ipv6_prefix.map_or_else(Ipv6Prefix::default, |bits| Ipv6Prefix::new(bits).expect("a prefix"));
        assert_eq!(parse_client(&text, prefix), key, "{text:?}");
    }
}

#[test]
fn clients_behind_proxies_match_the_shared_table() {
    let Table { trusted, forwarded, .. } = table();
    let trusted: Vec<_> = trusted.iter().map(|text| parse_network(text).expect("a network")).collect();
    for ForwardedCase { peer, header, client: expected } in forwarded {
        let lines: Vec<&[u8]> = header.iter().map(String::as_bytes).collect();
        let client = request_client(peer.parse().expect("an address"), &lines, &trusted, Ipv6Prefix::default());
        assert_eq!(client, expected, "{peer} {header:?}");
    }
}

#[test]
fn element_that_is_not_utf8_ends_the_search() {
    let trusted = [parse_network("127.0.0.1").expect("a network")];
    let client = |line: &[u8]| {
        request_client("127.0.0.1".parse().expect("an address"), &[line], &trusted, Ipv6Prefix::default())
    };
    assert_eq!(client(b"\xff, 203.0.113.1"), "203.0.113.1");
    assert_eq!(client(b"203.0.113.1, \xff"), "127.0.0.1");
}

#[test]
fn networks_of_mapped_addresses_are_trusted_as_ipv4() {
    for text in ["10.0.0.0/8", "::ffff:10.0.0.0/104", "64:ff9b::a00:0/104"] {
        let trusted = [parse_network(text).expect("a network")];
        for peer in ["10.1.2.3", "::ffff:10.1.2.3", "64:ff9b::a01:203"] {
            assert!(is_trusted(peer.parse().expect("an address"), &trusted), "{text} {peer}");
        }
        assert!(!is_trusted("11.0.0.1".parse().expect("an address"), &trusted), "{text}");
    }
    assert!(is_trusted(
        "::ffff:10.1.2.3".parse().expect("an address"),
        &[parse_network("::ffff:10.1.2.3").expect("a network")]
    ));
    assert_eq!(parse_network("::/0").expect("a network").prefix_len(), 0);
}

#[test]
fn envoy_address_entries_are_grouped_by_network() {
    let prefix = |bits| Ipv6Prefix::new(bits).expect("a prefix");
    for (entry, value, bits, expected) in [
        ("remote_address", "203.0.113.1", 64, None),
        ("remote_address", "2001:db8:1:2::6", 64, Some("2001:db8:1:2::/64")),
        ("remote_address", "2001:db8:1:2::6", 128, None),
        ("remote_address", "::ffff:203.0.113.1", 128, Some("203.0.113.1")),
        ("remote_address", "internal", 64, None),
        ("remote_address", "2001:db8:1:2::/64", 64, None),
        ("masked_remote_address", "203.0.113.0/24", 64, None),
        ("masked_remote_address", "2001:db8:1:2::6/128", 64, Some("2001:db8:1:2::/64")),
        ("masked_remote_address", "2001:db8:1:2::6/128", 128, Some("2001:db8:1:2::6")),
        ("masked_remote_address", "2001:db8::/32", 64, None),
        ("masked_remote_address", "::ffff:203.0.113.0/120", 64, Some("203.0.113.0/24")),
        ("user", "2001:db8:1:2::6", 64, None),
    ] {
        assert_eq!(canonical_entry(entry, value, prefix(bits)).as_deref(), expected, "{entry} {value} {bits}");
    }
}

#[test]
fn prefix_out_of_range_is_rejected() {
    for text in ["47", "129", "-1", "", "/64", "64.0", "1000"] {
        assert!(text.parse::<Ipv6Prefix>().is_err(), "{text}");
    }
    assert_eq!(("48".parse(), "128".parse()), (Ok(Ipv6Prefix(48)), Ok(Ipv6Prefix(128))));
}
