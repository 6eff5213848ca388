//! Client addresses: parsing, choice of the client behind trusted proxies, and the names of clients in keys.

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// Length of the IPv6 networks that count as one client, in bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv6Prefix(u8);

impl Ipv6Prefix {
    /// Number of bits of an IPv6 address. A network of this length is a single address.
    const ADDRESS_BITS: u8 = 128;

    /// Creates a length, or returns `None` if `bits` is not from 48 to 128.
    #[must_use]
    pub fn new(bits: u8) -> Option<Ipv6Prefix> {
        (48..=Ipv6Prefix::ADDRESS_BITS).contains(&bits).then_some(Ipv6Prefix(bits))
    }
}

/// 64 bits: the network that an access provider usually assigns to a customer.
impl Default for Ipv6Prefix {
    fn default() -> Ipv6Prefix {
        Ipv6Prefix(64)
    }
}

impl FromStr for Ipv6Prefix {
    type Err = String;

    fn from_str(text: &str) -> Result<Ipv6Prefix, String> {
        text.parse().ok().and_then(Ipv6Prefix::new).ok_or_else(|| "must be a number from 48 to 128".to_owned())
    }
}

/// Returns the name of a request's client in keys: its IPv4 address, or the network of its IPv6 address.
///
/// The client is the first address that is not a trusted proxy, searched from the peer through the elements of
/// `X-Forwarded-For` from right to left, or the leftmost address if all are trusted. Empty elements are skipped. A
/// malformed element ends the search.
pub fn request_client(peer: IpAddr, forwarded: &[&[u8]], trusted: &[IpNet], prefix: Ipv6Prefix) -> String {
    let mut client = canonical(peer);
    let elements = forwarded.iter().rev().flat_map(|line| line.rsplit(|byte| *byte == b','));
    for element in elements.map(<[u8]>::trim_ascii).filter(|element| !element.is_empty()) {
        if !is_trusted(client, trusted) {
            break;
        }
        let Some(address) = std::str::from_utf8(element).ok().and_then(parse) else { break };
        client = address;
    }
    client_name(client, prefix)
}

/// Returns the networks of proxies that are trusted by default: `127.0.0.1/32` and `::1/128`.
#[must_use]
pub fn loopback_networks() -> Vec<IpNet> {
    [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)].map(IpNet::from).to_vec()
}

/// Returns `true` if the address is that of a trusted proxy.
#[must_use]
pub fn is_trusted(address: IpAddr, trusted: &[IpNet]) -> bool {
    let address = canonical(address);
    trusted.iter().any(|network| network.contains(&address))
}

/// Parses an address from a header or a log and returns the client's name in keys, or `None` if the text is malformed.
#[must_use]
pub fn parse_client(text: &str, prefix: Ipv6Prefix) -> Option<String> {
    parse(text).map(|address| client_name(address, prefix))
}

/// Parses an address, optionally with a port, brackets, a scope or quotes. IPv4-mapped and NAT64 addresses become IPv4.
#[must_use]
pub fn parse(text: &str) -> Option<IpAddr> {
    let text = text.trim_matches([' ', '\t']);
    let text = match text.strip_prefix('"') {
        Some(rest) => rest.strip_suffix('"')?,
        None => text,
    };
    if let Some(rest) = text.strip_prefix('[') {
        let (host, port) = rest.split_once(']')?;
        let is_port_valid = port.is_empty() || port.strip_prefix(':').is_some_and(is_port);
        return parse_ipv6(host).filter(|_| is_port_valid);
    }
    let host = match text.split_once(':') {
        Some((host, port)) if is_port(port) => host,
        _ => text,
    };
    host.parse::<Ipv4Addr>().ok().map(IpAddr::V4).or_else(|| parse_ipv6(text))
}

/// Parses an address or a network of trusted proxies, such as `10.0.0.0/8`.
#[must_use]
pub fn parse_network(text: &str) -> Option<IpNet> {
    let network = text.parse::<IpAddr>().map(IpNet::from).or_else(|_| text.parse::<IpNet>()).ok()?;
    // An IPv4-mapped address is compared as IPv4, so a network of such addresses must become an IPv4 network, too.
    let bits = network.prefix_len().checked_sub(96);
    match (canonical(network.addr()), bits) {
        (IpAddr::V4(address), Some(bits)) if network.addr().is_ipv6() => {
            Ipv4Net::new(address, bits).ok().map(IpNet::V4)
        }
        _ => Some(network),
    }
}

/// Returns the canonical value of Envoy's descriptor entry `remote_address` or `masked_remote_address`: an IPv6 address
/// becomes its network, and an IPv4-mapped or NAT64 address becomes IPv4. Returns `None` for other entries, and for a
/// value that is malformed or canonical already.
#[must_use]
pub fn canonical_entry(entry: &str, value: &str, prefix: Ipv6Prefix) -> Option<String> {
    let canonical = match entry {
        "remote_address" => parse_client(value, prefix)?,
        "masked_remote_address" if value.contains('/') => canonical_network(value, prefix)?,
        _ => return None,
    };
    (canonical != value).then_some(canonical)
}

/// Returns the name of a network in keys. An IPv6 network with a prefix longer than `max_bits` is widened to
/// `max_bits`.
fn canonical_network(text: &str, Ipv6Prefix(max_bits): Ipv6Prefix) -> Option<String> {
    let network = parse_network(text)?;
    Some(match network {
        IpNet::V4(network) => network.trunc().to_string(),
        IpNet::V6(network) => network_name(Ipv6Net::new(network.addr(), network.prefix_len().min(max_bits)).ok()?),
    })
}

/// Returns the name in keys of the client at an address: the address itself for IPv4, its network for IPv6, in the
/// notation of RFC 5952.
fn client_name(address: IpAddr, Ipv6Prefix(bits): Ipv6Prefix) -> String {
    match canonical(address) {
        IpAddr::V4(address) => address.to_string(),
        // Never fails: `Ipv6Prefix::new` checks the length.
        IpAddr::V6(address) => Ipv6Net::new(address, bits).map_or_else(|_| address.to_string(), network_name),
    }
}

fn network_name(network: Ipv6Net) -> String {
    let network = network.trunc();
    if network.prefix_len() == Ipv6Prefix::ADDRESS_BITS { network.addr().to_string() } else { network.to_string() }
}

/// Parses an IPv6 address, optionally with a scope, which is dropped because it does not identify the client.
fn parse_ipv6(text: &str) -> Option<IpAddr> {
    let is_scope = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~%".contains(&byte);
    let address = match text.split_once('%') {
        Some((address, scope)) if !scope.is_empty() && scope.bytes().all(is_scope) => address,
        Some(_) => return None,
        None => text,
    };
    address.parse::<Ipv6Addr>().ok().map(|address| canonical(IpAddr::V6(address)))
}

/// Returns the IPv4 address inside an IPv4-mapped or NAT64 address (RFC 6052), and any other address unchanged.
fn canonical(address: IpAddr) -> IpAddr {
    let IpAddr::V6(v6) = address else { return address };
    match v6.segments() {
        [0x64, 0xff9b, 0, 0, 0, 0, ..] => {
            let [.., a, b, c, d] = v6.octets();
            IpAddr::V4(Ipv4Addr::new(a, b, c, d))
        }
        _ => address.to_canonical(),
    }
}

fn is_port(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit()) && text.parse::<u16>().is_ok()
}

#[cfg(test)]
mod tests;
