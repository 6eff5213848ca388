use super::node::MAX_IN_FLIGHT;
use super::{Address, PROBE_INTERVAL, PROBE_KEY, Upstream};
use crate::call::{Call, Operation, Reply, Rule};
use crate::charge::ChargingMode;
use crate::policy_cache::PolicyCache;
use ratelimit_core::Amount;
use redis::ErrorKind;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, sleep, timeout};

/// Server whose replies to RL.LIMIT a test chooses. It always replies to INFO.
#[derive(Clone)]
pub struct FakeServer {
    /// Reply to a call. While it is `None`, calls wait.
    reply: Arc<Mutex<Option<&'static str>>>,
    /// Reply to a settlement, or `None` for the reply to any call. While it is empty, settlements wait.
    settlement_reply: Arc<Mutex<Option<&'static str>>>,
    /// Key and time of each call.
    calls: Arc<Mutex<Vec<(String, Instant)>>>,
}

/// Key whose calls are denied.
pub const DENIED_KEY: &str = "rl:denied";
/// Reply that denies a call.
const DENIED: &str = "*4\r\n:0\r\n:1\r\n*0\r\n$3\r\napi\r\n";
/// Reply that grants a call.
pub const GRANTED: &str = "*4\r\n:1\r\n:0\r\n*0\r\n$3\r\napi\r\n";

impl FakeServer {
    /// Starts a server that grants all calls, and a connected upstream.
    pub async fn start() -> (FakeServer, Arc<Upstream>) {
        let reply = Arc::new(Mutex::new(Some(GRANTED)));
        let fake = FakeServer { reply, settlement_reply: Arc::default(), calls: Arc::default() };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = Address::parse(&format!("redis://{}", listener.local_addr().unwrap())).unwrap();
        let serving = fake.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let fake = serving.clone();
                tokio::spawn(async move { fake.serve(stream).await });
            }
        });
        let upstream = Arc::new(Upstream::new(address));
        let running = Arc::clone(&upstream);
        tokio::spawn(async move { running.run(&PolicyCache::default()).await });
        wait_until(|| upstream.has_replied()).await;
        (fake, upstream)
    }

    /// Sets the reply to calls. With `None`, calls wait.
    pub fn set_reply(&self, reply: Option<&'static str>) {
        *self.reply.lock().unwrap() = reply;
    }

    /// Sets the reply to settlements. While it is empty, settlements wait.
    pub fn set_settlement_reply(&self, reply: &'static str) {
        *self.settlement_reply.lock().unwrap() = Some(reply);
    }

    /// Returns the number of calls on a key.
    pub fn count(&self, key: &str) -> usize {
        self.call_times(key).len()
    }

    async fn serve(&self, stream: TcpStream) {
        let mut stream = BufReader::new(stream);
        while let Some(words) = read_command(&mut stream).await {
            let reply = match words[0].as_str() {
                "INFO" => "$11\r\nrole:master\r\n",
                "RL.POLICYLIST" => "*0\r\n",
                "RL.LIMIT" => {
                    self.calls.lock().unwrap().push((words[1].clone(), Instant::now()));
                    // Later calls on the connection wait, too.
                    wait_until(|| self.reply.lock().unwrap().is_some()).await;
                    let is_settlement = words.iter().any(|word| word == "SETTLE");
                    wait_until(|| !is_settlement || *self.settlement_reply.lock().unwrap() != Some("")).await;
                    let settlement_reply = *self.settlement_reply.lock().unwrap();
                    match settlement_reply.filter(|_| is_settlement) {
                        Some(reply) => reply,
                        None if words[1] == DENIED_KEY => DENIED,
                        None => self.reply.lock().unwrap().unwrap_or_default(),
                    }
                }
                _ => "+OK\r\n",
            };
            let _ = stream.get_mut().write_all(reply.as_bytes()).await;
        }
    }

    fn call_times(&self, key: &str) -> Vec<Instant> {
        let calls = self.calls.lock().unwrap();
        calls.iter().filter(|(called, _)| called == key).map(|(_, at)| *at).collect()
    }
}

/// Reads the words of a command. Bytes that are not UTF-8 are replaced.
async fn read_command(stream: &mut BufReader<TcpStream>) -> Option<Vec<String>> {
    let mut words = vec![];
    for _ in 0..read_length(stream).await? {
        let mut word = vec![0; read_length(stream).await? + 2];
        stream.read_exact(&mut word).await.ok()?;
        words.push(String::from_utf8_lossy(&word).trim_end().to_owned());
    }
    Some(words)
}

/// Reads a line such as `*3` or `$5` and returns its number.
async fn read_length(stream: &mut BufReader<TcpStream>) -> Option<usize> {
    let mut line = String::new();
    stream.read_line(&mut line).await.ok()?;
    line.trim_end().get(1..)?.parse().ok()
}

/// Waits until a condition holds.
pub async fn wait_until(condition: impl Fn() -> bool) {
    let polling = async {
        while !condition() {
            sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(Duration::from_mins(1), polling).await.unwrap();
}

/// Sends a call with a timeout and returns the reply.
async fn call(upstream: &Upstream, timeout: Duration) -> Reply {
    let rule = Rule::Policies(vec!["api".to_owned()]);
    let operation = Operation::Take(Amount::ONE);
    let call = Call {
        key: b"rl:api".to_vec(),
        rule,
        operation,
        id: None,
        id_lifetime: String::new(),
        charge: ChargingMode::AllOrNone,
    };
    upstream.send_calls([call].into(), Instant::now() + timeout, None).await.remove(0)
}

/// Timeout that no test reaches.
const TIMEOUT: Duration = Duration::from_mins(1);

#[tokio::test]
async fn calls_without_a_reply_are_bounded() {
    let upstream = Upstream::new(Address::parse("redis://127.0.0.1").unwrap());
    // Without a connection each call waits and holds a permit.
    let send = |upstream: &Upstream| {
        let node = Arc::clone(&upstream.single);
        async move { node.send(redis::cmd("PING"), false, Instant::now() + TIMEOUT).await }
    };
    let waiting: Vec<_> = (0..MAX_IN_FLIGHT).map(|_| tokio::spawn(send(&upstream))).collect();
    wait_until(|| upstream.single.in_flight.available_permits() == 0).await;
    let error = send(&upstream).await.unwrap_err();
    assert!(error.to_string().contains("too many calls"), "{error}");
    assert!(!upstream.single.breaker.has_failed(), "a rejected call is no failure of the server");
    waiting.iter().for_each(tokio::task::JoinHandle::abort);
    wait_until(|| upstream.single.in_flight.available_permits() == MAX_IN_FLIGHT).await;
}

#[tokio::test]
async fn outage_that_a_call_begins_has_the_error_of_the_connection() {
    let upstream = Upstream::new(Address::parse("redis://127.0.0.1:1").unwrap());
    for _ in 0..2 {
        upstream.single.record_connect_failure(&(ErrorKind::Io, "unknown issuer").into());
    }
    assert!(matches!(call(&upstream, TIMEOUT).await, Reply::Lost(_)));
    let reason = upstream.shared.outages.reason("127.0.0.1:1").unwrap();
    assert!(reason.contains("unknown issuer"), "{reason}");
}

#[tokio::test]
async fn calls_fail_at_once_after_three_without_a_reply() {
    let (fake, upstream) = FakeServer::start().await;
    assert!(matches!(call(&upstream, TIMEOUT).await, Reply::Decided(_)));
    fake.set_reply(None);
    // A probe may be one of the three failures.
    for _ in 0..3 {
        assert!(matches!(call(&upstream, Duration::from_millis(1)).await, Reply::Lost(_)));
    }
    wait_until(|| upstream.single.breaker.is_open()).await;
    // If these calls waited, the test would exceed its timeout.
    for _ in 0..100 {
        assert!(matches!(call(&upstream, TIMEOUT).await, Reply::Lost(why) if why.contains("the server is away")));
    }
    fake.set_reply(Some(GRANTED));
    wait_until(|| !upstream.single.breaker.is_open()).await;
    assert!(matches!(call(&upstream, TIMEOUT).await, Reply::Decided(_)));
    // At most five calls are sent: the first, the three without a reply, and the last. If a probe opened the breaker
    // earlier, these are fewer.
    assert!(fake.call_times("rl:api").len() <= 5, "calls that failed at once were not sent");
}

#[tokio::test]
async fn single_call_without_a_reply_is_no_outage() {
    let (fake, upstream) = FakeServer::start().await;
    fake.set_reply(None);
    assert!(matches!(call(&upstream, Duration::from_millis(1)).await, Reply::Lost(_)));
    assert!(!upstream.single.breaker.is_open());
    fake.set_reply(Some(GRANTED));
    assert!(matches!(call(&upstream, TIMEOUT).await, Reply::Decided(_)));
    assert!(!upstream.single.breaker.has_failed());
}

#[tokio::test]
async fn server_that_replies_with_outage_errors_is_away() {
    for error in [
        "-LOADING Redis is loading the dataset in memory\r\n",
        "-CLUSTERDOWN The cluster is down\r\n",
        "-MASTERDOWN Link with MASTER is down\r\n",
        "-READONLY You can't write against a read only replica.\r\n",
    ] {
        let (fake, upstream) = FakeServer::start().await;
        fake.set_reply(Some(error));
        assert!(matches!(call(&upstream, TIMEOUT).await, Reply::Lost(_)), "{error}");
        // Probes detect the outage without further calls.
        wait_until(|| upstream.single.breaker.is_open()).await;
        let probes = fake.call_times(PROBE_KEY).len();
        wait_until(|| fake.call_times(PROBE_KEY).len() > probes + 2).await;
        assert!(upstream.single.breaker.is_open(), "replies to INFO do not end the outage: {error}");
        fake.set_reply(Some("-NOPOLICY no such policy\r\n"));
        wait_until(|| !upstream.single.breaker.is_open()).await;
    }
}

#[tokio::test]
async fn error_reply_to_a_call_is_no_outage() {
    let (fake, upstream) = FakeServer::start().await;
    for (error, expected) in [
        ("-WRONGTYPE a string\r\n", Reply::Refused("\"WRONGTYPE\": a string".to_owned())),
        ("-NOPERM User gateway has no permissions\r\n", Reply::Forbidden("User gateway has no permissions".to_owned())),
        ("-NOPOLICY no such policy\r\n", Reply::Unmatched),
    ] {
        fake.set_reply(Some(error));
        for _ in 0..4 {
            assert_eq!(call(&upstream, TIMEOUT).await, expected);
        }
        assert!(!upstream.single.breaker.has_failed());
    }
}

#[tokio::test]
async fn server_that_is_away_is_probed_every_quarter_of_a_second() {
    let (fake, upstream) = FakeServer::start().await;
    fake.set_reply(Some("-LOADING\r\n"));
    let started = Instant::now();
    let _ = call(&upstream, TIMEOUT).await;
    wait_until(|| upstream.single.breaker.is_open()).await;
    wait_until(|| fake.call_times(PROBE_KEY).len() >= 7).await;
    // Two of the seven probes are sent at once: the first, and the one after a failed call. A probe may be late, so
    // only the sum is bounded.
    assert!(started.elapsed() >= PROBE_INTERVAL * 4);
}
