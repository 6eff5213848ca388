//! Denials by key of each recent minute. A complete minute does not change, so it is read once. The running minute is
//! read each time.

use super::clock::now_ms;
use super::failure::Failure;
use super::history::MINUTE;
use super::info::ServerState;
use super::most_denied::{DeniedId, DeniedKey, top_command};
use super::reply_json::items;
use super::upstream::{Node, Server};
use futures_util::future::join_all;
use redis::Value;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, PoisonError};
use tokio::sync::Mutex;

/// Maximum number of minutes of a series. A server has no counts of earlier minutes.
pub const MAX_MINUTES: u16 = 60;
/// Number of keys that are read for each minute: more than the page lists, to include keys that are denied less now.
pub const READ_KEYS: usize = 100;
/// Maximum number of reads of a node, which are repeated if a minute ends during a read.
const MAX_ATTEMPTS: usize = 3;

/// Denials by key.
type Denials = HashMap<DeniedId, i64>;

/// Denials of the complete minutes of all nodes, by the names of the nodes.
#[derive(Default)]
pub struct DeniedMinutes(std::sync::Mutex<HashMap<String, Arc<Mutex<NodeMinutes>>>>);

/// Denials of the complete minutes of a node. Minutes are counted since the Unix epoch, by the node's clock.
#[derive(Default)]
struct NodeMinutes {
    /// Running minute at the end of the last read.
    running: Option<u64>,
    complete: BTreeMap<u64, Denials>,
}

impl DeniedMinutes {
    /// Returns the denials of each of the last minutes on all primaries, oldest first. The last one is the running
    /// minute.
    ///
    /// # Errors
    /// If a reply is an error, or if the only primary does not reply.
    pub async fn read(&self, server: &Server, minutes: u16) -> Result<Vec<Denials>, Failure> {
        let nodes = server.nodes().iter().cloned().zip(self.node_minutes(server));
        sum(server, minutes, join_all(nodes.map(|(node, known)| read_node(node, known, minutes))).await)
    }

    /// Returns the minutes of the nodes of a server, in their order, and drops those of other nodes.
    fn node_minutes(&self, server: &Server) -> Vec<Arc<Mutex<NodeMinutes>>> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|name, _| server.nodes().iter().any(|node| node.name == *name));
        server.nodes().iter().map(|node| Arc::clone(known.entry(node.name.clone()).or_default())).collect()
    }
}

/// Returns the denials of the last minutes of a node, reading those that are not known.
async fn read_node(node: Arc<Node>, known: Arc<Mutex<NodeMinutes>>, minutes: u16) -> Result<Vec<Denials>, Failure> {
    let mut known = known.lock().await;
    for _ in 0..MAX_ATTEMPTS {
        let read = read_minutes(Arc::clone(&node), known.missing(minutes), READ_KEYS).await?;
        if let Some(series) = known.add(read, minutes) {
            return Ok(series);
        }
    }
    Err(Failure::Away("the server's clock does not go evenly".to_owned()))
}

/// Reads the denials of all minutes, with more keys than [`DeniedMinutes::read`] stores.
///
/// # Errors
/// Returns the errors of [`DeniedMinutes::read`].
pub async fn read_all(server: &Server, minutes: u16, keys: usize) -> Result<Vec<Denials>, Failure> {
    let reads = join_all(server.nodes().iter().cloned().map(|node| read_minutes(node, minutes, keys))).await;
    sum(server, minutes, reads.into_iter().map(|read| Ok(read?.denials)).collect())
}

/// Sums the series of all nodes.
fn sum(server: &Server, minutes: u16, nodes: Vec<Result<Vec<Denials>, Failure>>) -> Result<Vec<Denials>, Failure> {
    let mut sums: Vec<Denials> = vec![Denials::new(); usize::from(minutes)];
    for series in nodes {
        let series = match series {
            // The other nodes suffice; the indicator of the page shows the outage.
            Err(Failure::Away(_)) if server.nodes().len() > 1 => continue,
            series => series?,
        };
        for (sum, minute) in sums.iter_mut().zip(series) {
            for (id, denied) in minute {
                let known = sum.entry(id).or_default();
                *known = known.saturating_add(denied);
            }
        }
    }
    Ok(sums)
}

/// Last minutes of a node in one read.
struct Read {
    /// Running minutes of the node's clock before and after the read.
    running: (u64, u64),
    /// Denials of each minute, oldest first.
    denials: Vec<Denials>,
}

async fn read_minutes(node: Arc<Node>, minutes: u16, keys: usize) -> Result<Read, Failure> {
    let mut commands = redis::pipe();
    commands.cmd("INFO").arg("server");
    for since in 1..=minutes {
        commands.add_command(top_command(Some(&format!("{since}m")), keys));
    }
    commands.cmd("INFO").arg("server");
    let replies = node.send_all(&commands).await?;
    let [before, replies @ .., after] = replies.as_slice() else { return Err(Failure::Server("no reply".to_owned())) };
    let mut denials = vec![Denials::new(); usize::from(minutes)];
    let mut counted = Denials::new();
    // Each reply counts one minute more than the previous reply. The difference has the denials of that minute.
    for (reply, minute) in replies.iter().zip(denials.iter_mut().rev()) {
        for row in items(reply).iter().filter_map(|row| DeniedKey::parse(row, &node.name)) {
            let previous = counted.entry(row.id()).or_default();
            let denied = row.count.saturating_sub(*previous).max(0);
            *previous = row.count.max(*previous);
            minute.insert(row.id(), denied);
        }
    }
    Ok(Read { running: (minute_of(before), minute_of(after)), denials })
}

/// Returns the minute of the server's clock in a reply to INFO, or the minute of this machine if the reply has none.
fn minute_of(info: &Value) -> u64 {
    let info = redis::from_redis_value_ref::<String>(info).unwrap_or_default();
    ServerState::parse(&info).time_ms.unwrap_or_else(now_ms).checked_div(MINUTE).unwrap_or_default()
}

impl NodeMinutes {
    /// Returns the number of the last minutes that must be read, including the running minute.
    fn missing(&self, minutes: u16) -> u16 {
        let Some(running) = self.running else { return minutes };
        let is_missing = |back: &u16| !self.complete.contains_key(&running.saturating_sub(u64::from(*back)));
        (1..minutes).rev().find(is_missing).map_or(1, |back| back.saturating_add(1))
    }

    /// Adds a read, and returns the denials of the last minutes, oldest first. Returns `None` if more must be read,
    /// because a minute has ended during the read or since the previous one.
    fn add(&mut self, read: Read, minutes: u16) -> Option<Vec<Denials>> {
        let Read { running: (before, running), mut denials } = read;
        if self.running.is_some_and(|known| running < known) {
            // The clock moved backwards.
            self.complete.clear();
        }
        self.running = Some(running);
        if before != running || usize::from(self.missing(minutes)) > denials.len() {
            return None;
        }
        let last = denials.pop().unwrap_or_default();
        for (minute, denials) in (0..running).rev().zip(denials.into_iter().rev()) {
            // The server may have forgotten keys since an earlier read of the minute.
            self.complete.entry(minute).or_insert(denials);
        }
        self.complete.retain(|minute, _| running.saturating_sub(*minute) < u64::from(MAX_MINUTES));
        let known = (1..minutes).rev().map(|back| running.saturating_sub(u64::from(back)));
        let known = known.map(|minute| self.complete.get(&minute).cloned().unwrap_or_default());
        Some(known.chain([last]).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::{Denials, NodeMinutes, Read};

    /// Reads the last three minutes of a server that denies as many calls in a minute as the minute's number. Returns
    /// the denials, and the number of minutes in each read. `clock` has the minutes before and after each read.
    fn read(known: &mut NodeMinutes, clock: &[(u64, u64)]) -> (Option<Vec<i64>>, Vec<u16>) {
        let denials = |minute: u64| Denials::from([((b"key".to_vec(), None), minute.cast_signed())]);
        let mut reads = vec![];
        for running in clock {
            let count = known.missing(3);
            reads.push(count);
            let denials = (0..u64::from(count)).rev().map(|back| denials(running.1 - back)).collect();
            if let Some(series) = known.add(Read { running: *running, denials }, 3) {
                return (Some(series.iter().map(|minute| minute.values().sum()).collect()), reads);
            }
        }
        (None, reads)
    }

    #[test]
    fn complete_minutes_are_read_once() {
        let known = &mut NodeMinutes::default();
        for (clock, counts, reads) in [
            (vec![(10, 10)], [8, 9, 10], vec![3]),
            (vec![(10, 10)], [8, 9, 10], vec![1]),
            // The minute that has become complete is read once more.
            (vec![(11, 11); 2], [9, 10, 11], vec![1, 2]),
            (vec![(11, 11)], [9, 10, 11], vec![1]),
            (vec![(11, 12), (12, 12)], [10, 11, 12], vec![1, 2]),
            (vec![(20, 20); 2], [18, 19, 20], vec![1, 3]),
        ] {
            assert_eq!(read(known, &clock), (Some(counts.to_vec()), reads));
        }
    }

    #[test]
    fn clock_that_moved_backwards_drops_all_minutes() {
        let known = &mut NodeMinutes::default();
        assert!(read(known, &[(20, 20)]).0.is_some());
        assert_eq!(read(known, &[(10, 10); 2]), (Some(vec![8, 9, 10]), vec![1, 3]));
    }
}
