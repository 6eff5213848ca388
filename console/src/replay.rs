//! Replay: evaluates the calls of a log under limits, and finds the smallest limits that deny at most a given share of
//! the calls. The core decides, at the times of the log and without a server.
//!
//! A log is read once ([`call_log`]) into a compact form ([`logged_calls`]). Its calls are evaluated under the given
//! limits ([`trial`]), and then under other limits in the search for the smallest ([`smallest`]).

mod call_log;
mod limits;
mod line;
mod logged_calls;
mod report;
mod smallest;
mod trial;
mod upload;
mod work_budget;

pub use upload::routes;

use call_log::{Log, LogOptions};
use clap::Args;
use flate2::bufread::MultiGzDecoder;
use ipnet::IpNet;
use limits::Limits;
use line::{ClientRules, Fields};
use ratelimit_core::{Amount, Span};
use ratelimit_link::client_address::{Ipv6Prefix, parse_network};
use report::Report;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::PathBuf;
use trial::{Trial, TrialOutcome};
use work_budget::WorkBudget;

/// Options of a replay.
#[derive(Args, Clone, Debug)]
#[allow(clippy::doc_markdown, reason = "the help of the command line")]
pub struct Replay {
    /// Access log, JSON lines, or lines of `time key cost`, also compressed by gzip; - is the standard input.
    pub log: PathBuf,
    /// Limits as RL.POLICYSET takes them: 'FIXED 100 1m'.
    #[arg(long)]
    pub limit: String,
    /// Share of the calls that may be denied. The report has the smallest limits that deny at most this share.
    #[arg(long, value_parser = Goal::parse, default_value = "1%")]
    pub goal: Goal,
    /// Print the report as JSON.
    #[arg(long)]
    pub json: bool,
    /// Number of keys in the report, the most denied first.
    #[arg(long, default_value_t = 20)]
    pub top: usize,
    /// Maximum time by which a line may be earlier than a line before it. A log with the start times of requests needs
    /// the duration of the longest request.
    #[arg(long, value_parser = parse_span, default_value = "0")]
    pub late: Span,
    /// Maximum number of keys. Lines of further keys are skipped and counted.
    #[arg(long, default_value_t = 1_000_000)]
    pub max_keys: usize,
    /// Field of JSON lines with the key, such as request.remote_ip.
    #[arg(long)]
    pub key: Option<String>,
    /// Field of JSON lines with the time.
    #[arg(long)]
    pub time: Option<String>,
    /// Field of JSON lines with the cost.
    #[arg(long)]
    pub cost: Option<String>,
    /// Proxy or network of proxies whose X-Forwarded-For is trusted, or several separated by commas.
    #[arg(long, value_parser = parse_trusted, value_delimiter = ',', default_value = "127.0.0.1,::1")]
    pub trusted: Vec<IpNet>,
    /// Length of the IPv6 networks that count as one client, 48 to 128.
    #[arg(long, default_value = "64")]
    pub ipv6_prefix: Ipv6Prefix,
    /// Maximum length of the log in bytes, uncompressed.
    #[arg(skip = u64::MAX)]
    pub max_bytes: u64,
    /// Bound on the work of the replay.
    #[arg(skip)]
    pub work: WorkBudget,
}

/// Share of calls that may be denied, in millionths of a percent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Goal(u64);

/// Number of millionths of a percent in 100%.
const FULL_SHARE: u64 = 100_000_000;

impl Goal {
    /// Parses a share such as `1%`.
    ///
    /// # Errors
    /// If the text is malformed, or the share is above 100%.
    pub fn parse(text: &str) -> Result<Goal, String> {
        let percent = text.strip_suffix('%').and_then(|text| Amount::parse_down(text.as_bytes()));
        percent
            .map(Amount::millionths)
            .filter(|goal| *goal <= FULL_SHARE)
            .map(Goal)
            .ok_or_else(|| "must be a share from 0% to 100%, such as 1%".to_owned())
    }

    /// Returns the number of calls that may be denied.
    #[must_use]
    pub fn max_denied(self, calls: u64) -> u64 {
        u64::try_from(u128::from(calls) * u128::from(self.0) / u128::from(FULL_SHARE)).unwrap_or(calls)
    }
}

impl std::fmt::Display for Goal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}%", Amount::saturating(self.0))
    }
}

fn parse_span(text: &str) -> Result<Span, String> {
    Span::parse(text.as_bytes()).ok_or_else(|| "must be 0 or a duration such as 10s".to_owned())
}

fn parse_trusted(text: &str) -> Result<IpNet, String> {
    parse_network(text).ok_or_else(|| "must be addresses or networks such as 10.0.0.0/8".to_owned())
}

/// First bytes of a gzip file.
const GZIP: [u8; 2] = [0x1F, 0x8B];

/// Maximum memory of usages that grow with the calls, in bytes.
const MAX_USAGE_BYTES: usize = 512 * 1024 * 1024;

impl Replay {
    /// Replays the log and prints the report.
    ///
    /// # Errors
    /// If the limits cannot be replayed, or if the log cannot be read or has no line that can be parsed.
    pub fn run(&self) -> Result<(), String> {
        let with_name = |error: io::Error| format!("{}: {error}", self.log.display());
        let report = if self.log.as_os_str() == "-" {
            self.replay(io::stdin().lock())?
        } else {
            self.replay(BufReader::with_capacity(256 * 1024, File::open(&self.log).map_err(with_name)?))?
        };
        let text = if self.json { report.json().to_string() } else { report.to_string() };
        // The error is ignored: the reader of a pipe may have closed it.
        let _ = io::Write::write_all(&mut io::stdout(), format!("{}\n", text.trim_end()).as_bytes());
        Ok(())
    }

    /// Replays a log, which may be compressed by gzip.
    ///
    /// # Errors
    /// Returns the errors of [`Replay::run`].
    pub fn replay(&self, mut input: impl BufRead) -> Result<Report, String> {
        let head = input.fill_buf().map_err(|error| format!("{}: {error}", self.log.display()))?;
        if head.starts_with(&GZIP) {
            // A log may consist of several gzip members.
            return self.replay_lines(BufReader::with_capacity(256 * 1024, MultiGzDecoder::new(input)));
        }
        self.replay_lines(input)
    }

    fn replay_lines(&self, input: impl BufRead) -> Result<Report, String> {
        let limits = Limits::parse(&self.limit).map_err(|error| format!("--limit: {error}"))?;
        limits.request().map_err(|error| format!("--limit: {error}"))?;
        let fields = Fields { time: self.time.clone(), key: self.key.clone(), cost: self.cost.clone() };
        let clients = ClientRules { trusted: self.trusted.clone(), ipv6_prefix: self.ipv6_prefix };
        let options = LogOptions { fields, clients, late: self.late, max_keys: self.max_keys };
        let with_name = |error: io::Error| format!("{}: {error}", self.log.display());
        let mut bounded = input.take(self.max_bytes);
        let mut log = Log::read(&mut bounded, options, &self.work).map_err(with_name)?;
        if bounded.limit() == 0 {
            return Err(format!("{}: the log is longer than {} MB", self.log.display(), self.max_bytes / 1_048_576));
        }
        if log.calls.count == 0 {
            let first = log.first_not_understood.as_ref().map(report::first_line_note).unwrap_or_default();
            return Err(format!(
                "{}: no line was understood of {}: they must be an access log, JSON lines or `time key cost`{first}",
                self.log.display(),
                log.skipped.not_understood
            ));
        }
        let outcomes = evaluate(&limits, &mut log, &self.work).map_err(with_name)?;
        let smallest = smallest::find_smallest(&limits, &mut log.calls, outcomes.denied, self.goal, &self.work);
        let smallest = smallest.map_err(with_name)?;
        Ok(Report::new(&limits, &log, &outcomes, smallest, self.goal, self.top))
    }
}

/// Numbers of calls by outcome.
#[derive(Debug, Default)]
pub struct Outcomes {
    /// Calls that passed.
    pub admitted: u64,
    /// Calls that were denied.
    pub denied: u64,
    /// Calls that a server would reject because their key has too many entries, or for which there was no memory.
    pub overfull: u64,
    /// Numbers of denied calls, by the numbers of their keys.
    pub denied_by_key: Vec<u64>,
}

fn evaluate(limits: &Limits, log: &mut Log, work: &WorkBudget) -> io::Result<Outcomes> {
    let mut trial = Trial::new(limits, MAX_USAGE_BYTES).map_err(io::Error::other)?;
    let mut outcomes = Outcomes { denied_by_key: vec![0; log.names.len()], ..Outcomes::default() };
    log.calls.for_each(work, |call| {
        match trial.decide(call.key, call.at, call.cost) {
            TrialOutcome::Admitted => outcomes.admitted += 1,
            TrialOutcome::Overfull => outcomes.overfull += 1,
            TrialOutcome::Denied => {
                outcomes.denied += 1;
                if let Some(denied) = outcomes.denied_by_key.get_mut(call.key) {
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
