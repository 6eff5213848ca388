//! Problems of a gateway, and of all gateways together.

use super::sample::GatewaySample;
use crate::web::problem::{Level, Problem};

/// Latest state of a gateway.
#[derive(Debug)]
pub struct Condition<'a> {
    /// Name of the gateway.
    pub name: &'a str,
    /// Time since which each read of the metrics has failed, and the reason of the last failure.
    pub away: Option<(u64, &'a str)>,
    /// Last sample, if there is one.
    pub sample: Option<&'a GatewaySample>,
    /// Number of requests in the last seconds, and of those that the server did not decide.
    pub recent: (u64, u64),
    /// Number of requests in the last minute, and of those that the server did not decide.
    pub minute: (u64, u64),
    /// Charges in the last minute that could not be undone.
    pub unsettled: u64,
}

impl Condition<'_> {
    /// Returns the problems of the gateway.
    #[must_use]
    pub fn problems(&self) -> Vec<Problem> {
        let name = self.name;
        if let Some((since, why)) = self.away {
            let text = format!("The gateway {name} does not answer: {why}");
            return vec![Problem::of_gateway(Level::Bad, name, "away", text).since(Some(since))];
        }
        let Some(sample) = self.sample else { return vec![] };
        let mut problems = vec![];
        let warn = |state: &str, text: String| Problem::of_gateway(Level::Warn, name, state, text);
        let ((recent, recently_undecided), (all, undecided)) = (self.recent, self.minute);
        if sample.servers_away > 0 {
            let servers = match sample.servers_away {
                1 => "a server".to_owned(),
                several => format!("{several} servers"),
            };
            let why = format!("{name} gets no reply from {servers}");
            problems.push(undecided_problem(sample, name, "outage", &why).since(sample.outage_start));
        } else if recent > 0 && recently_undecided.saturating_mul(2) >= recent {
            let why = format!("{name} gets no decision of its server for most requests");
            problems.push(undecided_problem(sample, name, "no decisions", &why));
        } else if undecided.saturating_mul(100) > all {
            let text = format!("More than 1 % of the requests to {name} are not decided by its server");
            problems.push(warn("errors", text));
        }
        if sample.shadow {
            problems.push(warn("shadow mode", format!("{name} denies no request (--shadow)")));
        }
        if sample.refused {
            problems.push(warn("refused limits", format!("{name} refuses its new limits, and the last ones stay")));
        }
        if sample.control_plane == Some(false) {
            problems.push(warn("no control plane", format!("{name} is not connected to its control plane")));
        }
        if self.unsettled > 0 {
            problems.push(warn("charges stand", format!("{name} could not undo charges of denied requests")));
        }
        problems
    }
}

/// Returns the problem of a gateway without decisions of its server, by its outage mode. `why` begins with its name.
fn undecided_problem(sample: &GatewaySample, name: &str, state: &str, why: &str) -> Problem {
    let mode = &sample.outage_mode;
    let state = format!("{state}, {mode}");
    let bad = |text| Problem::of_gateway(Level::Bad, name, &state, text).on_each_view();
    let option = format!("(--on-outage {mode})");
    match mode.as_str() {
        _ if sample.shadow => bad(format!("Limits are not enforced: {why} and denies no request (--shadow)")),
        "closed" => bad(format!("{why} and denies those requests {option}")),
        "error" => bad(format!("Limits may not be enforced: {why} and leaves those requests to the proxy {option}")),
        mode if mode.starts_with("local=") => {
            let text = format!("{why} and counts a share of each limit itself {option}");
            Problem::of_gateway(Level::Warn, name, &state, text)
        }
        _ => bad(format!("Limits are not enforced: {why} and lets those requests pass {option}")),
    }
}

/// Returns the problems of all gateways, with those that concern all of them.
#[must_use]
pub fn problems(gateways: &[Condition]) -> Vec<Problem> {
    let mut problems: Vec<Problem> = gateways.iter().flat_map(Condition::problems).collect();
    let Some(first) = gateways.first() else { return problems };
    let names = gateways.iter().map(|gateway| gateway.name).collect::<Vec<_>>().join(", ");
    let node = if gateways.len() == 1 { first.name } else { "all gateways" };
    let bad = |state, text| Problem::of_gateway(Level::Bad, node, state, text).on_each_view();
    let is_away = |gateway: &Condition| gateway.away.is_some();
    let is_shadow = |gateway: &Condition| !is_away(gateway) && gateway.sample.is_some_and(|sample| sample.shadow);
    if gateways.iter().all(is_away) {
        // The outage began when the last gateway failed.
        let since = gateways.iter().filter_map(|gateway| gateway.away).map(|(since, _)| since).max();
        let text = format!(
            "Limits may not be enforced: no gateway answers ({names}). A proxy without a gateway lets requests pass, \
             unless it is set to deny them"
        );
        problems.push(bad("away", text).since(since));
    }
    if gateways.iter().any(is_shadow) && gateways.iter().all(|gateway| is_away(gateway) || is_shadow(gateway)) {
        let text = format!("Limits are not enforced: shadow mode on all gateways ({names}, --shadow)");
        problems.push(bad("shadow mode", text));
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::{Condition, GatewaySample, Level, problems};

    fn sample(mode: &str) -> GatewaySample {
        GatewaySample { outage_mode: mode.to_owned(), ..GatewaySample::default() }
    }

    fn condition<'a>(name: &'a str, sample: &'a GatewaySample) -> Condition<'a> {
        let (recent, minute) = ((10, 0), (100, 0));
        Condition { name, away: None, sample: Some(sample), recent, minute, unsettled: 0 }
    }

    /// Returns level, state, text and banner of each problem.
    fn summaries(gateways: &[Condition]) -> Vec<(Level, String, String, bool)> {
        problems(gateways).into_iter().map(|found| (found.level, found.state, found.text, found.banner)).collect()
    }

    #[test]
    fn outage_problem_depends_on_the_mode_of_the_gateway() {
        let outage = |mode: &str, servers_away, shadow| {
            let sample = GatewaySample { servers_away, outage_start: Some(7), shadow, ..sample(mode) };
            let found = problems(&[condition("a:1", &sample)]).swap_remove(0);
            assert_eq!((found.node.as_str(), found.since), ("a:1", Some(7)));
            (found.level, found.state, found.text, found.banner)
        };
        let bad = |state: &str, text: &str| (Level::Bad, state.to_owned(), text.to_owned(), true);
        let why = "a:1 gets no reply from a server";
        let open = format!("Limits are not enforced: {why} and lets those requests pass (--on-outage open)");
        assert_eq!(outage("open", 1, false), bad("outage, open", &open));
        let open =
            "Limits are not enforced: a:1 gets no reply from 2 servers and lets those requests pass (--on-outage open)";
        assert_eq!(outage("open", 2, false), bad("outage, open", open));
        let closed = format!("{why} and denies those requests (--on-outage closed)");
        assert_eq!(outage("closed", 1, false), bad("outage, closed", &closed));
        let error =
            format!("Limits may not be enforced: {why} and leaves those requests to the proxy (--on-outage error)");
        assert_eq!(outage("error", 1, false), bad("outage, error", &error));
        let shadow = format!("Limits are not enforced: {why} and denies no request (--shadow)");
        assert_eq!(outage("closed", 1, true), bad("outage, closed", &shadow));
        let (level, state, text, banner) = outage("local=0.5", 1, false);
        assert_eq!((level, state.as_str(), banner), (Level::Warn, "outage, local=0.5", false));
        assert_eq!(text, format!("{why} and counts a share of each limit itself (--on-outage local=0.5)"));
    }

    #[test]
    fn requests_without_a_decision_are_a_problem_without_an_outage() {
        let sample = sample("open");
        let with_counts = |recent, minute| summaries(&[Condition { recent, minute, ..condition("a:1", &sample) }]);
        assert_eq!(with_counts((10, 0), (100, 1)), []);
        let few = "More than 1 % of the requests to a:1 are not decided by its server".to_owned();
        assert_eq!(with_counts((10, 4), (100, 2)), [(Level::Warn, "errors".to_owned(), few, false)]);
        let most = "Limits are not enforced: a:1 gets no decision of its server for most requests and lets those \
                    requests pass (--on-outage open)";
        assert_eq!(
            with_counts((10, 5), (100, 5)),
            [(Level::Bad, "no decisions, open".to_owned(), most.to_owned(), true)]
        );
        assert_eq!(with_counts((0, 0), (0, 0)), []);
    }

    #[test]
    fn banner_appears_only_if_all_gateways_are_away() {
        let sample = sample("open");
        let away = |name, since| Condition { away: Some((since, "refused")), ..condition(name, &sample) };
        let one =
            |name: &str| (Level::Bad, "away".to_owned(), format!("The gateway {name} does not answer: refused"), false);
        assert_eq!(summaries(&[away("a:1", 5), condition("b:1", &sample)]), [one("a:1")]);
        let both = [away("a:1", 5), away("b:1", 3)];
        let all = "Limits may not be enforced: no gateway answers (a:1, b:1). A proxy without a gateway lets requests \
                   pass, unless it is set to deny them";
        assert_eq!(summaries(&both), [one("a:1"), one("b:1"), (Level::Bad, "away".to_owned(), all.to_owned(), true)]);
        assert_eq!(
            problems(&both).pop().map(|found| (found.node, found.since)),
            Some(("all gateways".to_owned(), Some(5)))
        );
        assert_eq!(summaries(&[]), []);
    }

    #[test]
    fn banner_appears_only_if_all_gateways_are_in_shadow_mode() {
        let (shadow, enforcing) = (GatewaySample { shadow: true, ..sample("open") }, sample("open"));
        let (one, other) = (condition("a:1", &shadow), condition("b:1", &enforcing));
        let own = (Level::Warn, "shadow mode".to_owned(), "a:1 denies no request (--shadow)".to_owned(), false);
        assert_eq!(summaries(&[one, other]), std::slice::from_ref(&own));
        let all = "Limits are not enforced: shadow mode on all gateways (a:1, --shadow)".to_owned();
        assert_eq!(summaries(&[condition("a:1", &shadow)]), [own, (Level::Bad, "shadow mode".to_owned(), all, true)]);
        let unknown = Condition { sample: None, ..condition("b:1", &enforcing) };
        assert_eq!(
            summaries(&[condition("a:1", &shadow), unknown]).len(),
            1,
            "a gateway that was not read yet may enforce"
        );
    }

    #[test]
    fn refused_limits_and_a_lost_control_plane_are_problems() {
        let sample = GatewaySample { refused: true, control_plane: Some(false), ..sample("open") };
        let found = summaries(&[Condition { unsettled: 2, ..condition("a:1", &sample) }]);
        let states: Vec<&str> = found.iter().map(|(_, state, _, _)| state.as_str()).collect();
        assert_eq!(states, ["refused limits", "no control plane", "charges stand"]);
        assert!(found.iter().all(|(level, _, _, banner)| *level == Level::Warn && !banner));
    }
}
