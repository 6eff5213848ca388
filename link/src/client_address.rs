//! Client addresses: how they are parsed, which one of a request counts, and the text that keys have for it.

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// Length of the IPv6 networks that count as one client, in bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv6Prefix(u8);

impl Ipv6Prefix {
    /// Length of a whole address, with which each address is a client.
    const WHOLE: u8 = 128;

    /// Returns the length, or `None` if it is not 48 to 128.
    #[must_use]
    pub fn new(bits: u8) -> Option<Ipv6Prefix> {
        (48..=Ipv6Prefix::WHOLE).contains(&bits).then_some(Ipv6Prefix(bits))
    }
}

/// A customer of an access provider mostly has 64 bits.
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

/// Returns the client of a request, as keys have it: from the right, the first of the peer and the elements of
/// `X-Forwarded-For` that is no trusted proxy; the leftmost address if all are. Empty elements are skipped. An element
/// that is no address ends the search.
pub fn client(peer: IpAddr, forwarded: &[&[u8]], trusted: &[IpNet], prefix: Ipv6Prefix) -> String {
    let mut client = canonical(peer);
    let elements = forwarded.iter().rev().flat_map(|line| line.rsplit(|byte| *byte == b','));
    for element in elements.map(<[u8]>::trim_ascii).filter(|element| !element.is_empty()) {
        if !is_trusted(client, trusted) {
            break;
        }
        let Some(address) = std::str::from_utf8(element).ok().and_then(parse) else { break };
        client = address;
    }
    name(client, prefix)
}

/// Returns the proxies that are trusted by default: those of the same machine.
#[must_use]
pub fn loopback() -> Vec<IpNet> {
    [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)].map(IpNet::from).to_vec()
}

/// Returns `true` if the address is that of a trusted proxy.
#[must_use]
pub fn is_trusted(address: IpAddr, trusted: &[IpNet]) -> bool {
    let address = canonical(address);
    trusted.iter().any(|network| network.contains(&address))
}

/// Returns the client that an address of a header or a log stands for, as keys have it, or `None` if the text is no
/// address.
#[must_use]
pub fn key(text: &str, prefix: Ipv6Prefix) -> Option<String> {
    parse(text).map(|address| name(address, prefix))
}

/// Parses an address, perhaps with a port, brackets, a scope or quotes. Mapped addresses and those of NAT64 become IPv4.
#[must_use]
pub fn parse(text: &str) -> Option<IpAddr> {
    let text = text.trim_matches([' ', '\t']);
    let text = match text.strip_prefix('"') {
        Some(rest) => rest.strip_suffix('"')?,
        None => text,
    };
    if let Some(rest) = text.strip_prefix('[') {
        let (host, rest) = rest.split_once(']')?;
        let is_complete = rest.is_empty() || rest.strip_prefix(':').is_some_and(is_port);
        return ipv6(host).filter(|_| is_complete);
    }
    let host = match text.split_once(':') {
        Some((host, port)) if is_port(port) => host,
        _ => text,
    };
    host.parse::<Ipv4Addr>().ok().map(IpAddr::V4).or_else(|| ipv6(text))
}

/// Parses an address or a network of trusted proxies, such as `10.0.0.0/8`.
#[must_use]
pub fn network(text: &str) -> Option<IpNet> {
    let network = text.parse::<IpAddr>().map(IpNet::from).or_else(|_| text.parse::<IpNet>()).ok()?;
    // Clients are compared in their canonical form, so a network of mapped addresses would never match.
    let bits = network.prefix_len().checked_sub(96);
    match (canonical(network.addr()), bits) {
        (IpAddr::V4(address), Some(bits)) if network.addr().is_ipv6() => {
            Ipv4Net::new(address, bits).ok().map(IpNet::V4)
        }
        _ => Some(network),
    }
}

/// Returns the value of a descriptor's entry as keys have it, if that is not the value itself: Envoy's `remote_address`
/// and `masked_remote_address` are grouped by their networks.
#[must_use]
pub fn grouped(entry: &str, value: &str, prefix: Ipv6Prefix) -> Option<String> {
    let grouped = match entry {
        "remote_address" => key(value, prefix)?,
        "masked_remote_address" if value.contains('/') => masked(value, prefix)?,
        _ => return None,
    };
    (grouped != value).then_some(grouped)
}

/// Returns the network that keys have for a network of IPv6: no smaller than `prefix`.
fn masked(text: &str, Ipv6Prefix(most): Ipv6Prefix) -> Option<String> {
    let network = network(text)?;
    Some(match network {
        IpNet::V4(network) => network.trunc().to_string(),
        IpNet::V6(network) => of_network(Ipv6Net::new(network.addr(), network.prefix_len().min(most)).ok()?),
    })
}

/// Returns an address as keys have it: IPv6 by its network, in the notation of RFC 5952.
fn name(address: IpAddr, Ipv6Prefix(bits): Ipv6Prefix) -> String {
    match canonical(address) {
        IpAddr::V4(address) => address.to_string(),
        // No prefix is too long: see `Ipv6Prefix::new`.
        IpAddr::V6(address) => Ipv6Net::new(address, bits).map_or_else(|_| address.to_string(), of_network),
    }
}

fn of_network(network: Ipv6Net) -> String {
    let network = network.trunc();
    if network.prefix_len() == Ipv6Prefix::WHOLE { network.addr().to_string() } else { network.to_string() }
}

/// Parses an address of IPv6, perhaps with a scope, which says nothing about the client.
fn ipv6(text: &str) -> Option<IpAddr> {
    let is_scope = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~%".contains(&byte);
    let address = match text.split_once('%') {
        Some((address, scope)) if !scope.is_empty() && scope.bytes().all(is_scope) => address,
        Some(_) => return None,
        None => text,
    };
    address.parse::<Ipv6Addr>().ok().map(|address| canonical(IpAddr::V6(address)))
}

/// Returns the IPv4 address that a mapped address, or one of NAT64 (RFC 6052), stands for; any other as it is.
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
