//! Problems of the servers in the latest sample.

use super::{NodeSample, Samples};
use crate::web::info::{Replica, ServerState};
use crate::web::problem::{Level, Problem};

/// Lag in seconds at which a replica counts as late.
const LATE_LAG: u64 = 5;

impl Samples {
    /// Returns the problems of the servers. `address` names all of them.
    pub fn problems(&self, address: &str) -> Vec<Problem> {
        if let Some(failure) = &self.failure {
            let text = format!(
                "The server does not answer ({}), so that limits may not be enforced. The page shows earlier \
                 data and tries again every second",
                failure.message()
            );
            return vec![Problem::of_server(Level::Bad, address, "away", text).on_each_view()];
        }
        let digests = self.digests();
        self.latest.iter().flat_map(|sample| sample.problems(&digests)).collect()
    }
}

impl NodeSample {
    fn problems(&self, digests: &[&str]) -> Vec<Problem> {
        let name = &self.name;
        let state = match &self.state {
            Ok(state) => state,
            Err(why) => {
                let text = format!("The server {name} does not answer: {why}");
                return vec![Problem::of_server(Level::Bad, name, "away", text)];
            }
        };
        let warn = |state: &str, text| Problem::of_server(Level::Warn, name, state, text);
        let policies = (!agrees(state, digests))
            .then(|| warn("other policies", format!("The server {name} has other policies than the rest")));
        let replicas = state.replicas.iter().filter(|replica| is_late(replica));
        let replicas = replicas.map(|replica| {
            let text = format!("The replica {} of {name} is late or not connected", replica.name);
            warn("a replica is late", text)
        });
        policies.into_iter().chain(replicas).collect()
    }
}

/// Returns `true` if a server has the same policies as all others.
pub fn agrees(state: &ServerState, digests: &[&str]) -> bool {
    state.differing_peers == 0 && digests.iter().all(|digest| *digest == state.digest)
}

fn is_late(replica: &Replica) -> bool {
    replica.state != "online" || replica.lag >= LATE_LAG
}

#[cfg(test)]
mod tests {
    use super::{Level, NodeSample, Replica, Samples, ServerState};
    use crate::web::failure::Failure;
    use std::time::Duration;

    fn node(name: &str, state: Result<ServerState, String>) -> NodeSample {
        NodeSample { name: name.to_owned(), latency: Duration::ZERO, state }
    }

    /// Returns level, node, state and banner of each problem.
    fn summaries(samples: &Samples) -> Vec<(Level, String, String, bool)> {
        let problems = samples.problems("all:6379").into_iter();
        problems.map(|found| (found.level, found.node, found.state, found.banner)).collect()
    }

    fn problem(level: Level, node: &str, state: &str, banner: bool) -> (Level, String, String, bool) {
        (level, node.to_owned(), state.to_owned(), banner)
    }

    #[test]
    fn away_nodes_late_replicas_and_other_policies_are_problems() {
        let state = |digest: &str| ServerState { digest: digest.to_owned(), ..ServerState::default() };
        let replica = |state: &str, lag| Replica { name: "r:1".to_owned(), state: state.to_owned(), lag, behind: 0 };
        let with_replica = |replica| ServerState { replicas: vec![replica], ..state("x") };
        let mut samples = Samples { latest: vec![node("a:1", Ok(state("x")))], ..Samples::default() };
        assert_eq!(summaries(&samples), []);
        samples.latest.push(node("b:1", Ok(with_replica(replica("online", 4)))));
        assert_eq!(summaries(&samples), []);
        samples.latest.push(node("c:1", Err("refused".to_owned())));
        samples.latest.push(node("d:1", Ok(with_replica(replica("online", 5)))));
        samples.latest.push(node("e:1", Ok(with_replica(replica("wait_bgsave", 0)))));
        let late = |node| problem(Level::Warn, node, "a replica is late", false);
        assert_eq!(summaries(&samples), [problem(Level::Bad, "c:1", "away", false), late("d:1"), late("e:1")]);
        samples.latest = vec![node("a:1", Ok(state("x"))), node("b:1", Ok(state("y")))];
        assert_eq!(summaries(&samples), ["a:1", "b:1"].map(|node| problem(Level::Warn, node, "other policies", false)));
    }

    #[test]
    fn servers_that_are_all_away_are_one_problem() {
        let latest = vec![node("a:1", Err("refused".to_owned()))];
        let samples = Samples { latest, failure: Some(Failure::Away("refused".to_owned())), ..Samples::default() };
        assert_eq!(summaries(&samples), [problem(Level::Bad, "all:6379", "away", true)]);
    }
}
