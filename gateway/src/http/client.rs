//! The client's address, when it comes through proxies.

use ipnet::IpNet;
use std::net::{IpAddr, Ipv6Addr};

/// The client: the rightmost of the peer and `X-Forwarded-For` that is no trusted proxy; if all are, the leftmost. What
/// is no address ends the walk. Of IPv6 it is the network of 64 bits, which is what one customer has.
pub fn client(peer: IpAddr, forwarded: &[&[u8]], trusted: &[IpNet]) -> String {
    let trusts = |address: IpAddr| trusted.iter().any(|network| network.contains(&address));
    let mut client = peer.to_canonical();
    let hops = forwarded.iter().rev().flat_map(|value| value.rsplit(|byte| *byte == b','));
    for hop in hops {
        if !trusts(client) {
            break;
        }
        let Some(address) = std::str::from_utf8(hop).ok().and_then(|hop| address(hop.trim())) else { break };
        client = address;
    }
    match client {
        IpAddr::V4(address) => address.to_string(),
        IpAddr::V6(address) => {
            let network = u128::from(address) & !u128::from(u64::MAX);
            format!("{}/64", Ipv6Addr::from(network))
        }
    }
}

/// Whether the peer is a trusted proxy.
pub fn is_trusted(peer: IpAddr, trusted: &[IpNet]) -> bool {
    trusted.iter().any(|network| network.contains(&peer.to_canonical()))
}

/// An address, perhaps with a port, in brackets if it is of IPv6.
fn address(text: &str) -> Option<IpAddr> {
    let bare = match text.strip_prefix('[') {
        Some(rest) => rest.split_once(']')?.0,
        None => match text.split_once(':') {
            Some((host, port)) if !port.contains(':') => host,
            _ => text,
        },
    };
    bare.parse::<IpAddr>().ok().map(|address| address.to_canonical())
}

#[cfg(test)]
mod tests {
    use super::client;
    use ipnet::IpNet;

    #[test]
    fn the_client_is_the_rightmost_that_is_not_trusted() {
        let trusted: Vec<IpNet> = ["127.0.0.1/32", "10.0.0.0/8"].map(|text| text.parse().expect("a network")).to_vec();
        for (peer, forwarded, expected) in [
            ("127.0.0.1", vec![], "127.0.0.1"),
            ("1.2.3.4", vec!["9.9.9.9"], "1.2.3.4"),
            ("127.0.0.1", vec!["9.9.9.9"], "9.9.9.9"),
            ("127.0.0.1", vec!["9.9.9.9, 8.8.8.8, 10.1.1.1"], "8.8.8.8"),
            ("127.0.0.1", vec!["9.9.9.9", "8.8.8.8:443"], "8.8.8.8"),
            ("127.0.0.1", vec!["10.0.0.1, 10.0.0.2"], "10.0.0.1"),
            ("127.0.0.1", vec!["9.9.9.9, rubbish"], "127.0.0.1"),
            ("127.0.0.1", vec!["rubbish, 10.0.0.3"], "10.0.0.3"),
            ("127.0.0.1", vec!["::ffff:9.9.9.9"], "9.9.9.9"),
            ("127.0.0.1", vec!["[2001:db8:1:2:3:4:5:6]:80"], "2001:db8:1:2::/64"),
            ("::ffff:127.0.0.1", vec!["2001:db8:1:2:3:4:5:6"], "2001:db8:1:2::/64"),
        ] {
            let bytes: Vec<&[u8]> = forwarded.iter().map(|value: &&str| value.as_bytes()).collect();
            assert_eq!(client(peer.parse().expect("an address"), &bytes, &trusted), expected, "{peer} {forwarded:?}");
        }
        let found = client("127.0.0.1".parse().expect("an address"), &[b"\xff, 9.9.9.9"], &trusted);
        assert_eq!(found, "9.9.9.9", "bytes that are no text are one hop, not all");
    }
}
