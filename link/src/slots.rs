//! Slots of a cluster and the primaries that serve them.

use redis::Value;

/// Number of slots in a cluster.
const SLOTS: u16 = 16_384;
/// Maximum number of keys that [`probe_key`] tries. For a node that serves one slot, it tries 16,384 keys on average.
const MAX_PROBE_CANDIDATES: u32 = 1 << 19;

/// Host and port of a server.
pub type HostPort = (String, u16);

/// Contiguous range of slots that one primary serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotRange {
    /// First slot.
    pub first: u16,
    /// Last slot.
    pub last: u16,
    /// Primary that serves the slots.
    pub primary: HostPort,
}

/// Returns the slot of a key.
#[must_use]
pub fn slot_of(key: &[u8]) -> u16 {
    let tag = || {
        let rest = key.get(key.iter().position(|byte| *byte == b'{')? + 1..)?;
        rest.get(..rest.iter().position(|byte| *byte == b'}')?).filter(|tag| !tag.is_empty())
    };
    crc16::State::<crc16::XMODEM>::calculate(tag().unwrap_or(key)) % SLOTS
}

/// Returns a key for probing a node: it begins with `prefix`, and its slot satisfies `has_slot`. The key contains a
/// hash tag, so it is never the key of a descriptor.
#[must_use]
pub fn probe_key(prefix: &str, has_slot: impl Fn(u16) -> bool) -> Option<Vec<u8>> {
    let mut keys = (0..MAX_PROBE_CANDIDATES).map(|number| format!("{prefix}{{{number}}}").into_bytes());
    keys.find(|key| has_slot(slot_of(key)))
}

/// Parses a reply to CLUSTER SLOTS. The ranges are sorted by slot. The host of a node that does not know its own host
/// is `queried_host`.
#[must_use]
pub fn slot_ranges(reply: &Value, queried_host: &str) -> Vec<SlotRange> {
    let range = |row: &Value| {
        let Value::Array(fields) = row else { return None };
        let [first, last, primary, ..] = fields.as_slice() else { return None };
        let Value::Array(primary) = primary else { return None };
        let [host, port, ..] = primary.as_slice() else { return None };
        let number = |value: &Value| redis::from_redis_value_ref::<u16>(value).ok();
        let host = redis::from_redis_value_ref::<Option<String>>(host).ok()?.unwrap_or_default();
        let primary = (known_host(&host, queried_host), number(port)?);
        Some(SlotRange { first: number(first)?, last: number(last)?, primary })
    };
    let mut ranges: Vec<SlotRange> = match reply {
        Value::Array(rows) => rows.iter().filter_map(range).collect(),
        _ => vec![],
    };
    ranges.sort_by_key(|range| range.first);
    ranges
}

/// Returns the `host` in a node's reply. A node that does not know its own host is known by `queried_host`, to which
/// the query was sent.
#[must_use]
pub fn known_host(host: &str, queried_host: &str) -> String {
    if host.is_empty() || host == "?" { queried_host.to_owned() } else { host.to_owned() }
}

/// Returns the primary of a slot, or `None` if no primary serves the slot.
#[must_use]
pub fn primary_of(ranges: &[SlotRange], slot: u16) -> Option<&HostPort> {
    let index = ranges.partition_point(|range| range.last < slot);
    ranges.get(index).filter(|range| range.first <= slot).map(|range| &range.primary)
}

/// Returns host and port as in a URL, with brackets around IPv6, or the path of a Unix socket.
#[must_use]
pub fn format_host((host, port): &HostPort) -> String {
    match host {
        path if path.starts_with('/') => path.clone(),
        ipv6 if ipv6.contains(':') => format!("[{ipv6}]:{port}"),
        host => format!("{host}:{port}"),
    }
}

#[cfg(test)]
mod tests {
    use super::{SlotRange, known_host, primary_of, probe_key, slot_of, slot_ranges};
    use redis::parse_redis_value;

    #[test]
    fn slots_match_cluster_keyslot() {
        // Replies of CLUSTER KEYSLOT.
        let keys: [(&[u8], u16); 6] = [
            (b"", 0),
            (b"foo", 12_182),
            (b"{foo}bar", 12_182),
            (b"a{foo}{bar}", 12_182),
            (b"{}foo", 9500),
            (b"123456789", 12_739),
        ];
        for (key, slot) in keys {
            assert_eq!(slot_of(key), slot, "{key:?}");
        }
    }

    #[test]
    fn cluster_slots_reply_gives_the_primary_of_each_slot() {
        let reply = b"*3\r\n*3\r\n:8000\r\n:16383\r\n*3\r\n$-1\r\n:7001\r\n$1\r\nb\r\n\
                      *4\r\n:0\r\n:5\r\n*3\r\n$9\r\n127.0.0.1\r\n:7000\r\n$1\r\na\r\n*3\r\n$1\r\nr\r\n:7002\r\n$1\r\nc\r\n\
                      *3\r\n:6\r\n:6\r\n*4\r\n$1\r\n?\r\n:7003\r\n$1\r\nd\r\n*0\r\n";
        let ranges = slot_ranges(&parse_redis_value(reply).unwrap(), "seed");
        let primary = |slot| primary_of(&ranges, slot).map(|(host, port)| (host.as_str(), *port));
        assert_eq!([primary(0), primary(5)], [Some(("127.0.0.1", 7000)); 2]);
        assert_eq!([primary(6), primary(7), primary(7999)], [Some(("seed", 7003)), None, None]);
        assert_eq!([primary(8000), primary(16_383)], [Some(("seed", 7001)); 2]);
        assert!(slot_ranges(&parse_redis_value(b"+OK\r\n").unwrap(), "seed").is_empty());
        assert_eq!(known_host("a", "b"), "a");
    }

    #[test]
    fn probe_key_belongs_to_a_slot_of_its_node() {
        for (first, last) in [(0, 5461), (16_383, 16_383)] {
            let range = SlotRange { first, last, primary: ("a".to_owned(), 1) };
            let key = probe_key("rl:", |slot| (range.first..=range.last).contains(&slot)).unwrap();
            assert!((first..=last).contains(&slot_of(&key)));
        }
        assert_eq!(probe_key("rl:", |_| false), None);
    }
}
