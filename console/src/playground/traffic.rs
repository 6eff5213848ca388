//! Traffic: calls at a rate, even or random, bursts at set times, and clicks.

use ratelimit_core::{Amount, Span, Timestamp};
use serde::Deserialize;

/// The finest step of random traffic: at most one call in each.
const SLOT: Span = Span::MILLISECOND;
/// How many calls are made in one go at most; the rest are not made.
pub const MOST_AT_ONCE: u32 = 2000;
/// How many bursts there are at most.
const MOST_BURSTS: usize = 64;

/// What traffic there is.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Traffic {
    /// Calls in a thousand seconds, up to a million: a call a millisecond.
    pub rate: u32,
    /// Whether they come at random.
    pub random: bool,
    /// Bursts: after how many milliseconds, and how many calls.
    pub bursts: Vec<(u32, u32)>,
    /// After how many milliseconds the bursts begin again; 0: never.
    pub every: u32,
    /// What a call costs.
    pub cost: u32,
}

impl Default for Traffic {
    fn default() -> Traffic {
        Traffic { rate: 0, random: false, bursts: vec![], every: 0, cost: 1 }
    }
}

impl Traffic {
    /// Refuses more than a scene can bear.
    ///
    /// # Errors
    /// What is too much.
    pub fn checked(self) -> Result<Traffic, String> {
        if self.rate > 1_000_000 {
            return Err("rate must be a number of calls in 1000 seconds, up to 1000000".to_owned());
        }
        if !(1..=1000).contains(&self.cost) {
            return Err("cost must be a whole number from 1 to 1000".to_owned());
        }
        if self.bursts.len() > MOST_BURSTS || self.bursts.iter().any(|(_, calls)| *calls > MOST_AT_ONCE) {
            return Err(format!("bursts must be at most {MOST_BURSTS}, of at most {MOST_AT_ONCE} calls each"));
        }
        if self.every > 0 && self.every < 100 {
            return Err("every must be 0 or a number of milliseconds from 100".to_owned());
        }
        Ok(self)
    }

    /// What a call costs.
    #[must_use]
    pub fn cost(&self) -> Amount {
        Amount::saturating(u64::from(self.cost) * Amount::ONE.millionths())
    }
}

/// Where traffic stands.
#[derive(Clone, Debug)]
pub struct TrafficSource {
    traffic: Traffic,
    /// When its bursts count from.
    from: Timestamp,
    /// When the next call of an even rate is due.
    due: Timestamp,
    chance: u64,
}

impl TrafficSource {
    /// Traffic from that instant on; the same seed makes the same.
    #[must_use]
    pub fn new(traffic: Traffic, seed: u64, from: Timestamp) -> TrafficSource {
        // Of nothing, nothing would come.
        TrafficSource { traffic, from, due: from, chance: seed.max(1).wrapping_mul(0x9E37_79B9_7F4A_7C15) }
    }

    /// What a call costs.
    #[must_use]
    pub fn cost(&self) -> Amount {
        self.traffic.cost()
    }

    /// Goes on with other traffic. Its bursts begin anew if they are others.
    pub fn change(&mut self, traffic: Traffic, now: Timestamp) {
        if (&traffic.bursts, traffic.every) != (&self.traffic.bursts, self.traffic.every) {
            self.from = now;
        }
        if traffic.rate != self.traffic.rate {
            // At once: whoever moves a slider wants to see it.
            self.due = now;
        }
        self.traffic = traffic;
    }

    /// The instants of the calls from `from` on and before `to`, in order.
    pub fn calls(&mut self, from: Timestamp, to: Timestamp) -> Vec<Timestamp> {
        let mut calls = self.bursts(from, to);
        if self.traffic.random {
            self.random(from, to, &mut calls);
        } else {
            self.even(to, &mut calls);
        }
        calls.sort_unstable();
        calls.truncate(MOST_AT_ONCE as usize);
        calls
    }

    fn bursts(&self, from: Timestamp, to: Timestamp) -> Vec<Timestamp> {
        let mut calls = vec![];
        let round = Span::MILLISECOND.times(self.traffic.every.into());
        for (after, count) in &self.traffic.bursts {
            let mut at = self.from.plus(Span::MILLISECOND.times((*after).into()));
            if at < from && round > Span::ZERO {
                at = at.plus(round.times(from.since(at).micros().div_ceil(round.micros())));
            }
            while at >= from && at < to && calls.len() <= MOST_AT_ONCE as usize {
                calls.extend(std::iter::repeat_n(at, *count as usize));
                if round == Span::ZERO {
                    break;
                }
                at = at.plus(round);
            }
        }
        calls
    }

    fn even(&mut self, to: Timestamp, calls: &mut Vec<Timestamp>) {
        let Some(gap) = 1_000_000_000_u64.checked_div(self.traffic.rate.into()) else { return };
        while self.due < to && calls.len() <= MOST_AT_ONCE as usize {
            calls.push(self.due);
            self.due = self.due.plus(Span::from_micros(gap));
        }
    }

    fn random(&mut self, from: Timestamp, to: Timestamp, calls: &mut Vec<Timestamp>) {
        let mut at = from;
        while at < to && calls.len() <= MOST_AT_ONCE as usize {
            if self.next() % 1_000_000 < self.traffic.rate.into() {
                calls.push(at);
            }
            at = at.plus(SLOT);
        }
        self.due = to;
    }

    /// A random number: xorshift64* (Vigna, 2016).
    fn next(&mut self) -> u64 {
        self.chance ^= self.chance >> 12;
        self.chance ^= self.chance << 25;
        self.chance ^= self.chance >> 27;
        self.chance.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 20
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Timestamp {
        Timestamp::EPOCH.plus(Span::MILLISECOND.times(millis))
    }

    fn millis(calls: &[Timestamp]) -> Vec<u64> {
        calls.iter().map(|at| at.floor_millis()).collect()
    }

    #[test]
    fn an_even_rate_is_even_however_the_time_is_cut() {
        let traffic = Traffic { rate: 4000, ..Traffic::default() };
        let mut whole = TrafficSource::new(traffic.clone(), 1, at(0));
        let mut cut = whole.clone();
        let calls = whole.calls(at(0), at(1000));
        assert_eq!(millis(&calls), [0, 250, 500, 750]);
        let pieces: Vec<_> = (0..10).flat_map(|piece| cut.calls(at(piece * 100), at(piece * 100 + 100))).collect();
        assert_eq!(pieces, calls);
    }

    #[test]
    fn random_traffic_is_the_same_for_the_same_seed_and_has_its_rate() {
        let traffic = Traffic { rate: 20_000, random: true, ..Traffic::default() };
        let run = |seed| TrafficSource::new(traffic.clone(), seed, at(0)).calls(at(0), at(50_000));
        assert_eq!(run(7), run(7));
        assert_ne!(run(7), run(8));
        for seed in 0..20 {
            // 1000 expected, with a standard deviation of 31.
            assert!((850..1150).contains(&run(seed).len()), "{}", run(seed).len());
        }
    }

    #[test]
    fn bursts_come_at_their_times_and_again() {
        let traffic = Traffic { bursts: vec![(900, 2), (1100, 1)], every: 2000, ..Traffic::default() };
        let mut source = TrafficSource::new(traffic.clone(), 1, at(0));
        assert_eq!(millis(&source.calls(at(0), at(1000))), [900, 900]);
        assert_eq!(millis(&source.calls(at(1000), at(4000))), [1100, 2900, 2900, 3100]);
        // Others begin anew, the same go on.
        source.change(Traffic { rate: 1, ..traffic.clone() }, at(4000));
        assert_eq!(millis(&source.calls(at(4000), at(5000))), [4000, 4900, 4900]);
        source.change(Traffic { bursts: vec![(100, 1)], ..Traffic::default() }, at(5000));
        assert_eq!(millis(&source.calls(at(5000), at(9000))), [5100]);
    }

    #[test]
    fn no_more_calls_are_made_at_once_than_a_scene_can_bear() {
        let traffic = Traffic { rate: 1_000_000, bursts: vec![(0, 2000)], ..Traffic::default() };
        assert_eq!(TrafficSource::new(traffic, 1, at(0)).calls(at(0), at(10_000)).len(), 2000);
        for wrong in [
            Traffic { rate: 1_000_001, ..Traffic::default() },
            Traffic { cost: 0, ..Traffic::default() },
            Traffic { bursts: vec![(0, 2001)], ..Traffic::default() },
            Traffic { bursts: vec![(0, 1); 65], ..Traffic::default() },
            Traffic { every: 1, ..Traffic::default() },
        ] {
            assert!(wrong.checked().is_err());
        }
    }
}
