//! Replay: what limits would have said of the calls of a log, and the smallest that deny no more than a share of them.
//! The core decides, at the times that the log tells; no server is asked.
//!
//! A log is read once ([`call_log`]), and its calls are kept small ([`logged_calls`]); they are judged under the limits
//! that were asked for, and then under others, in search of the smallest ([`smallest`]).

mod call_log;
mod limits;
mod line;
mod logged_calls;
mod report;
mod smallest;
mod trial;
mod upload;
mod work;

pub use upload::routes;

use call_log::{Log, Reading};
use clap::Args;
use flate2::bufread::MultiGzDecoder;
use ipnet::IpNet;
use limits::Limits;
use line::{Clients, Fields};
use ratelimit_core::{Amount, Span};
use ratelimit_link::client_address::{Ipv6Prefix, parse_network};
use report::Report;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::PathBuf;
use trial::{Trial, TrialOutcome};
use work::Work;

/// Options of a replay.
#[derive(Args, Clone, Debug)]
#[allow(clippy::doc_markdown, reason = "the help of the command line")]
pub struct Replay {
    /// An access log, JSON lines, or lines of `time key cost`, also compressed by gzip; - is the standard input.
    pub log: PathBuf,
    /// The limit, or several, as RL.POLICYSET takes them: 'FIXED 100 1m'.
    #[arg(long)]
    pub limit: String,
    /// The share of the calls that may be denied: the report has the smallest limit that denies no more.
    #[arg(long, value_parser = Goal::read, default_value = "1%")]
    pub goal: Goal,
    /// Print the report as JSON.
    #[arg(long)]
    pub json: bool,
    /// Number of keys in the report: those that were denied most.
    #[arg(long, default_value_t = 20)]
    pub top: usize,
    /// Time by which a line may be late in the log, behind lines of a later time. Servers that write the time at which a request
    /// began need the time that a request takes.
    #[arg(long, value_parser = span, default_value = "0")]
    pub late: Span,
    /// Number of keys that are followed; lines of more are skipped, and counted.
    #[arg(long, default_value_t = 1_000_000)]
    pub max_keys: usize,
    /// The field of JSON lines that has the key, such as request.remote_ip.
    #[arg(long)]
    pub key: Option<String>,
    /// The field of JSON lines that has the time.
    #[arg(long)]
    pub time: Option<String>,
    /// The field of JSON lines that has the cost.
    #[arg(long)]
    pub cost: Option<String>,
    /// A proxy, or a network of proxies, whose X-Forwarded-For counts; with commas several.
    #[arg(long, value_parser = trusted, value_delimiter = ',', default_value = "127.0.0.1,::1")]
    pub trusted: Vec<IpNet>,
    /// Length of the IPv6 networks that count as one client, 48 to 128.
    #[arg(long, default_value = "64")]
    pub ipv6_prefix: Ipv6Prefix,
    /// The longest log that is read, in bytes, as it is without gzip.
    #[arg(skip = u64::MAX)]
    pub longest: u64,
    /// The work that the replay may cost.
    #[arg(skip)]
    pub work: Work,
}

/// A share of the calls, in millionths of a percent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Goal(u64);

/// All of them, in millionths of a percent.
const ALL: u64 = 100_000_000;

impl Goal {
    /// `1%`.
    ///
    /// # Errors
    /// Anything else.
    pub fn read(text: &str) -> Result<Goal, String> {
        let percent = text.strip_suffix('%').and_then(|text| Amount::parse_down(text.as_bytes()));
        percent
            .map(Amount::millionths)
            .filter(|goal| *goal <= ALL)
            .map(Goal)
            .ok_or_else(|| "must be a share from 0% to 100%, such as 1%".to_owned())
    }

    /// Returns the number of calls that may be denied of so many.
    #[must_use]
    pub fn of(self, calls: u64) -> u64 {
        u64::try_from(u128::from(calls) * u128::from(self.0) / u128::from(ALL)).unwrap_or(calls)
    }
}

impl std::fmt::Display for Goal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}%", Amount::saturating(self.0))
    }
}

fn span(text: &str) -> Result<Span, String> {
    Span::parse(text.as_bytes()).ok_or_else(|| "must be 0 or a duration such as 10s".to_owned())
}

fn trusted(text: &str) -> Result<IpNet, String> {
    parse_network(text).ok_or_else(|| "must be addresses or networks such as 10.0.0.0/8".to_owned())
}

/// First bytes of a gzip file.
const GZIP: [u8; 2] = [0x1F, 0x8B];

/// Bytes that the keys may remember of limits whose memory grows with the calls.
const MOST_HELD: usize = 512 * 1024 * 1024;

impl Replay {
    /// Prints what the outcomes of the calls would have been.
    ///
    /// # Errors
    /// Limits that cannot be replayed; a log that cannot be read, or in which nothing is understood.
    pub fn run(&self) -> Result<(), String> {
        let of_log = |error: io::Error| format!("{}: {error}", self.log.display());
        let report = if self.log.as_os_str() == "-" {
            self.over(io::stdin().lock())?
        } else {
            self.over(BufReader::with_capacity(256 * 1024, File::open(&self.log).map_err(of_log)?))?
        };
        let text = if self.json { report.json().to_string() } else { report.to_string() };
        // Whoever reads it may have seen enough.
        let _ = io::Write::write_all(&mut io::stdout(), format!("{}\n", text.trim_end()).as_bytes());
        Ok(())
    }

    /// Decides the calls of this log.
    ///
    /// # Errors
    /// As [`Replay::run`].
    pub fn over(&self, mut from: impl BufRead) -> Result<Report, String> {
        let head = from.fill_buf().map_err(|error| format!("{}: {error}", self.log.display()))?;
        if head.starts_with(&GZIP) {
            // A log may be of several parts, one behind another.
            return self.over_lines(BufReader::with_capacity(256 * 1024, MultiGzDecoder::new(from)));
        }
        self.over_lines(from)
    }

    fn over_lines(&self, from: impl BufRead) -> Result<Report, String> {
        let limits = Limits::read(&self.limit).map_err(|told| format!("--limit: {told}"))?;
        limits.asked().map_err(|told| format!("--limit: {told}"))?;
        let fields = Fields { time: self.time.clone(), key: self.key.clone(), cost: self.cost.clone() };
        let clients = Clients { trusted: self.trusted.clone(), ipv6_prefix: self.ipv6_prefix };
        let reading = Reading { fields, clients, late: self.late, most_keys: self.max_keys };
        let told = |error: io::Error| format!("{}: {error}", self.log.display());
        let mut bounded = from.take(self.longest);
        let mut log = Log::read(&mut bounded, reading, &self.work).map_err(told)?;
        if bounded.limit() == 0 {
            return Err(format!("{}: the log is longer than {} MB", self.log.display(), self.longest / 1_048_576));
        }
        if log.calls.count == 0 {
            let first = log.first_not_understood.as_ref().map(report::quoted).unwrap_or_default();
            return Err(format!(
                "{}: no line was understood of {}: they must be an access log, JSON lines or `time key cost`{first}",
                self.log.display(),
                log.skipped.not_understood
            ));
        }
        let outcomes = outcomes(&limits, &mut log, &self.work).map_err(told)?;
        let smallest = smallest::smallest(&limits, &mut log.calls, outcomes.denied, self.goal, &self.work);
        let smallest = smallest.map_err(told)?;
        Ok(Report::new(&limits, &log, &outcomes, smallest, self.goal, self.top))
    }
}

/// Outcomes of the calls.
#[derive(Debug, Default)]
pub struct Outcomes {
    /// Calls that passed.
    pub admitted: u64,
    /// Calls that did not.
    pub denied: u64,
    /// Calls that a server would have refused, or that there was no memory for.
    pub overfull: u64,
    /// Calls of each key that did not pass, by its number.
    pub denied_of: Vec<u64>,
}

fn outcomes(limits: &Limits, log: &mut Log, work: &Work) -> io::Result<Outcomes> {
    let mut judge = Trial::new(limits, MOST_HELD).map_err(io::Error::other)?;
    let mut outcomes = Outcomes { denied_of: vec![0; log.names.len()], ..Outcomes::default() };
    log.calls.each(work, |call| {
        match judge.decide(call.key, call.at, call.cost) {
            TrialOutcome::Admitted => outcomes.admitted += 1,
            TrialOutcome::Overfull => outcomes.overfull += 1,
            TrialOutcome::Denied => {
                outcomes.denied += 1;
                if let Some(denied) = outcomes.denied_of.get_mut(call.key) {
                    *denied += 1;
                }
            }
        }
        true
    })?;
    Ok(outcomes)
}

#[cfg(test)]
mod tests;
