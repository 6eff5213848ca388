use super::node::IN_FLIGHT;
use super::{Address, Link, PROBE, PROBED};
use crate::ask::{Call, Reply, Rule, Verb};
use crate::charge::Charge;
use crate::told_policies::Table;
use ratelimit_core::Amount;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, sleep, timeout};

/// A server of which the test says what it answers to RL.LIMIT. INFO it always answers.
#[derive(Clone)]
pub struct Fake {
    /// What is answered; none: nothing until there is one.
    answer: Arc<Mutex<Option<&'static str>>>,
    /// What is answered to a settlement in place of that.
    settled: Arc<Mutex<Option<&'static str>>>,
    /// The keys of the calls, and when each came.
    calls: Arc<Mutex<Vec<(String, Instant)>>>,
}

/// A key whose calls are denied.
pub const DENIED: &str = "rl:denied";
const DENIES: &str = "*4\r\n:0\r\n:1\r\n*0\r\n$3\r\napi\r\n";
/// Reply that grants a call.
pub const DECIDES: &str = "*4\r\n:1\r\n:0\r\n*0\r\n$3\r\napi\r\n";

impl Fake {
    /// The server, and a link to it that is kept.
    pub async fn started() -> (Fake, Arc<Link>) {
        let answer = Arc::new(Mutex::new(Some(DECIDES)));
        let fake = Fake { answer, settled: Arc::default(), calls: Arc::default() };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = Address::parse(&format!("redis://{}", listener.local_addr().unwrap())).unwrap();
        let serving = fake.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let fake = serving.clone();
                tokio::spawn(async move { fake.answers(stream).await });
            }
        });
        let link = Arc::new(Link::new(address));
        let kept = Arc::clone(&link);
        tokio::spawn(async move { kept.keep(&Table::default()).await });
        until(|| link.has_answered()).await;
        (fake, link)
    }

    /// Answers calls with this from now on, or none of them.
    pub fn answer(&self, answer: Option<&'static str>) {
        *self.answer.lock().unwrap() = answer;
    }

    /// Answers settlements with this from now on, or none of them while it is empty.
    pub fn settle(&self, answer: &'static str) {
        *self.settled.lock().unwrap() = Some(answer);
    }

    /// How many calls of this key came.
    pub fn count(&self, key: &str) -> usize {
        self.times(key).len()
    }

    async fn answers(&self, stream: TcpStream) {
        let mut stream = BufReader::new(stream);
        while let Some(words) = words(&mut stream).await {
            let reply = match words[0].as_str() {
                "INFO" => "$11\r\nrole:master\r\n",
                "RL.POLICYLIST" => "*0\r\n",
                "RL.LIMIT" => {
                    self.calls.lock().unwrap().push((words[1].clone(), Instant::now()));
                    // What comes behind it waits, too.
                    until(|| self.answer.lock().unwrap().is_some()).await;
                    let settles = words.iter().any(|word| word == "SETTLE");
                    until(|| !settles || *self.settled.lock().unwrap() != Some("")).await;
                    let settled = *self.settled.lock().unwrap();
                    match settled.filter(|_| settles) {
                        Some(settled) => settled,
                        None if words[1] == DENIED => DENIES,
                        None => self.answer.lock().unwrap().unwrap_or_default(),
                    }
                }
                _ => "+OK\r\n",
            };
            let _ = stream.get_mut().write_all(reply.as_bytes()).await;
        }
    }

    fn times(&self, key: &str) -> Vec<Instant> {
        let calls = self.calls.lock().unwrap();
        calls.iter().filter(|(of, _)| of == key).map(|(_, at)| *at).collect()
    }
}

/// The words of a command. Ids may be any bytes.
async fn words(stream: &mut BufReader<TcpStream>) -> Option<Vec<String>> {
    let mut words = vec![];
    for _ in 0..number(stream).await? {
        let mut word = vec![0; number(stream).await? + 2];
        stream.read_exact(&mut word).await.ok()?;
        words.push(String::from_utf8_lossy(&word).trim_end().to_owned());
    }
    Some(words)
}

async fn number(stream: &mut BufReader<TcpStream>) -> Option<usize> {
    let mut line = String::new();
    stream.read_line(&mut line).await.ok()?;
    line.trim_end().get(1..)?.parse().ok()
}

/// Waits until a condition holds.
pub async fn until(is: impl Fn() -> bool) {
    let polled = async {
        while !is() {
            sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(Duration::from_mins(1), polled).await.unwrap();
}

/// The reply to one call that is waited for so long.
async fn asked(link: &Link, patience: Duration) -> Reply {
    let rule = Rule::Policies(vec!["api".to_owned()]);
    let verb = Verb::Take(Amount::ONE);
    let call =
        Call { key: b"rl:api".to_vec(), rule, verb, id: None, remembered: String::new(), charge: Charge::AllOrNone };
    link.ask([call].into(), Instant::now() + patience).await.remove(0)
}

const LONG: Duration = Duration::from_mins(1);

#[tokio::test]
async fn calls_without_a_reply_are_bounded() {
    let link = Link::new(Address::parse("redis://127.0.0.1").unwrap());
    // Nobody connects: each call waits, and holds a permit.
    let send = |link: &Link| {
        let node = Arc::clone(&link.single);
        async move { node.send(redis::cmd("PING"), false, Instant::now() + LONG).await }
    };
    let waiting: Vec<_> = (0..IN_FLIGHT).map(|_| tokio::spawn(send(&link))).collect();
    until(|| link.single.in_flight.available_permits() == 0).await;
    let refused = send(&link).await.unwrap_err();
    assert!(refused.to_string().contains("too many calls"), "{refused}");
    assert!(!link.single.breaker.has_failed(), "that is no failure of the server");
    waiting.iter().for_each(tokio::task::JoinHandle::abort);
    until(|| link.single.in_flight.available_permits() == IN_FLIGHT).await;
}

#[tokio::test]
async fn after_three_calls_without_a_reply_nobody_waits() {
    let (fake, link) = Fake::started().await;
    assert!(matches!(asked(&link, LONG).await, Reply::Decided(_)));
    fake.answer(None);
    // A probe may be among the three.
    for _ in 0..3 {
        assert!(matches!(asked(&link, Duration::from_millis(1)).await, Reply::Lost(_)));
    }
    until(|| link.single.breaker.is_open()).await;
    // Whoever waited would wait for a minute, and the test for longer than it may take.
    for _ in 0..100 {
        assert!(matches!(asked(&link, LONG).await, Reply::Lost(why) if why.contains("the server is away")));
    }
    fake.answer(Some(DECIDES));
    until(|| !link.single.breaker.is_open()).await;
    assert!(matches!(asked(&link, LONG).await, Reply::Decided(_)));
    // Of the three, one that came behind a probe may not have been sent either.
    assert!(fake.times("rl:api").len() <= 5, "those that did not wait were not sent");
}

#[tokio::test]
async fn one_call_without_a_reply_is_no_outage() {
    let (fake, link) = Fake::started().await;
    fake.answer(None);
    assert!(matches!(asked(&link, Duration::from_millis(1)).await, Reply::Lost(_)));
    assert!(!link.single.breaker.is_open());
    fake.answer(Some(DECIDES));
    assert!(matches!(asked(&link, LONG).await, Reply::Decided(_)));
    assert!(!link.single.breaker.has_failed());
}

#[tokio::test]
async fn a_server_that_only_says_that_it_cannot_decide_is_away() {
    for error in [
        "-LOADING Redis is loading the dataset in memory\r\n",
        "-CLUSTERDOWN The cluster is down\r\n",
        "-MASTERDOWN Link with MASTER is down\r\n",
        "-READONLY You can't write against a read only replica.\r\n",
    ] {
        let (fake, link) = Fake::started().await;
        fake.answer(Some(error));
        assert!(matches!(asked(&link, LONG).await, Reply::Lost(_)), "{error}");
        // Calls of others are not needed to find out.
        until(|| link.single.breaker.is_open()).await;
        let probes = fake.times(PROBED).len();
        until(|| fake.times(PROBED).len() > probes + 2).await;
        assert!(link.single.breaker.is_open(), "INFO is answered all the while: {error}");
        fake.answer(Some("-NOPOLICY no such policy\r\n"));
        until(|| !link.single.breaker.is_open()).await;
    }
}

#[tokio::test]
async fn an_error_that_is_an_answer_is_no_outage() {
    let (fake, link) = Fake::started().await;
    for (error, expected) in [
        ("-WRONGTYPE a string\r\n", Reply::Refused("\"WRONGTYPE\": a string".to_owned())),
        ("-NOPERM User gateway has no permissions\r\n", Reply::Forbidden("User gateway has no permissions".to_owned())),
        ("-NOPOLICY no such policy\r\n", Reply::Unmatched),
    ] {
        fake.answer(Some(error));
        for _ in 0..4 {
            assert_eq!(asked(&link, LONG).await, expected);
        }
        assert!(!link.single.breaker.has_failed());
    }
}

#[tokio::test]
async fn a_server_that_is_away_is_asked_every_quarter_of_a_second() {
    let (fake, link) = Fake::started().await;
    fake.answer(Some("-LOADING\r\n"));
    let begun = Instant::now();
    let _ = asked(&link, LONG).await;
    until(|| link.single.breaker.is_open()).await;
    until(|| fake.times(PROBED).len() >= 7).await;
    // One may arrive late, and the next not; but together they took so long. The first and the one after a call that
    // failed come at once.
    assert!(begun.elapsed() >= PROBE * 4);
}
