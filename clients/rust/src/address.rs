//! Canonical form of client addresses, for limits by address.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Default length of the IPv6 networks that count as one client: an access provider assigns a /64 to a customer.
pub(crate) const IPV6_PREFIX: u8 = 64;

/// Returns the name of a client: an IPv4 address, or the network of an IPv6 address, given by its first `ipv6_prefix`
/// bits (1 to 128). IPv4-mapped and NAT64 (`64:ff9b::/96`) addresses become IPv4 addresses.
pub fn client_network(address: IpAddr, ipv6_prefix: u8) -> String {
    let address = match address {
        IpAddr::V4(address) => return address.to_string(),
        IpAddr::V6(address) => address,
    };
    if let Some(address) = embedded_ipv4(address) {
        return address.to_string();
    }
    let prefix = ipv6_prefix.clamp(1, 128);
    let bits = u128::from(address) & (u128::MAX << (128 - prefix));
    let network = Ipv6Addr::from(bits);
    if prefix == 128 { network.to_string() } else { format!("{network}/{prefix}") }
}

/// Parses an address as it appears in a header or a log, with an optional port, brackets, quotes or scope. Returns
/// `None` if the text is not an address.
pub fn parse_address(text: &str) -> Option<IpAddr> {
    let text = text.trim_matches([' ', '\t']);
    let text = text.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or(text);
    if let Some(rest) = text.strip_prefix('[') {
        let (address, rest) = rest.split_once(']')?;
        let is_port_valid = rest.is_empty() || rest.strip_prefix(':').is_some_and(is_port);
        return if is_port_valid { parse_ipv6(address) } else { None };
    }
    match text.split_once(':') {
        Some((address, port)) if !port.contains(':') => {
            address.parse::<Ipv4Addr>().ok().filter(|_| is_port(port)).map(IpAddr::V4)
        }
        Some(_) => parse_ipv6(text),
        None => text.parse::<Ipv4Addr>().ok().map(IpAddr::V4),
    }
}

fn parse_ipv6(text: &str) -> Option<IpAddr> {
    let address = match text.split_once('%') {
        Some((_, "")) => return None,
        Some((address, _)) => address,
        None => text,
    };
    address.parse::<Ipv6Addr>().ok().map(IpAddr::V6)
}

fn is_port(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit()) && text.parse::<u16>().is_ok()
}

/// Returns the IPv4 address within an IPv4-mapped or NAT64 address.
fn embedded_ipv4(address: Ipv6Addr) -> Option<Ipv4Addr> {
    const NAT64: u128 = 0x0064_ff9b << 96;
    let bits = u128::from(address);
    let last_32_bits = Ipv4Addr::from_bits(u32::try_from(bits & u128::from(u32::MAX)).ok()?);
    address.to_ipv4_mapped().or((bits >> 32 == NAT64 >> 32).then_some(last_32_bits))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_the_canonical_form_of_all_packages() {
        let table: serde_json::Value = serde_json::from_str(include_str!("../../addresses.json")).unwrap();
        let rows = table["addresses"].as_array().unwrap();
        assert!(rows.len() > 40);
        for row in rows {
            let prefix = row["ipv6_prefix"].as_u64().map_or(IPV6_PREFIX, |prefix| u8::try_from(prefix).unwrap());
            let name = parse_address(row["text"].as_str().unwrap()).map(|address| client_network(address, prefix));
            assert_eq!(name.as_deref(), row["key"].as_str(), "{row}");
        }
    }
}
