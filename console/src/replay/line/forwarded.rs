//! Clients of log lines, which are resolved as the gateway resolves the clients of requests.

use ipnet::IpNet;
use ratelimit_link::client_address::{Ipv6Prefix, loopback_networks, parse, request_client};
use std::borrow::Cow;

/// Rules by which addresses in a log become keys.
#[derive(Clone, Debug)]
pub struct ClientRules {
    /// Proxies whose `X-Forwarded-For` counts.
    pub trusted: Vec<IpNet>,
    /// Length of the IPv6 networks that count as one client.
    pub ipv6_prefix: Ipv6Prefix,
}

impl Default for ClientRules {
    fn default() -> ClientRules {
        ClientRules { trusted: loopback_networks(), ipv6_prefix: Ipv6Prefix::default() }
    }
}

impl ClientRules {
    /// Returns the client of a request that `peer` sent with the header `X-Forwarded-For: forwarded`. Returns `None` if
    /// `peer` is not an address.
    pub fn resolve_peer(&self, peer: &str, forwarded: Option<&str>) -> Option<String> {
        let forwarded = forwarded.map(str::as_bytes);
        Some(request_client(parse(peer)?, forwarded.as_slice(), &self.trusted, self.ipv6_prefix))
    }

    /// Returns the client from an address, or from a list of addresses whose last element is the peer.
    pub fn resolve_chain(&self, chain: &str) -> Option<String> {
        let chain = chain.trim_matches([' ', ',']);
        match chain.rsplit_once(',') {
            Some((forwarded, peer)) => self.resolve_peer(peer, Some(forwarded)),
            None => self.resolve_peer(chain, None),
        }
    }

    /// Returns the key of a text: the client if it consists of addresses, otherwise the text.
    pub fn key<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let are_addresses = text.split(',').all(|element| parse(element).is_some());
        match self.resolve_chain(text).filter(|_| are_addresses) {
            Some(client) => client.into(),
            None => text.into(),
        }
    }
}
