# frozen_string_literal: true

require_relative "helper"

class LimiterTest < Test
  test "limit allows exactly its units" do
    api = limiter(prefix: "app:")
    assert api.check!
    remaining = Array.new(3) { api.take("user:42", HOUR).require!.remaining }
    assert_equal [2, 1, 0], remaining
    denied = api.take("user:42", HOUR)
    refute denied.allowed?
    assert_in_delta 3600, denied.wait, 60
    assert_equal "3600", denied.headers["Retry-After"] if denied.wait > 3599
    assert_raises(RedisRatelimit::DeniedError) { denied.require! }
    assert_equal 0, api.peek("user:42", HOUR).remaining
    assert_equal ["app:user:42"], @redis.keys
    assert api.reset("user:42")
    refute api.reset("user:42")
  end

  test "several limits, all algorithms and policies" do
    limits = [
      RedisRatelimit.token_bucket(2.5, 0.5, "1h"), RedisRatelimit.leaky_bucket(5, 1, "1h"),
      RedisRatelimit.sliding(5, "1h"), RedisRatelimit.sliding(5, "2h", strict: true), RedisRatelimit.sliding_log(5, "1h")
    ]
    limits.each_with_index { |limit, number| assert limiter.take("key:#{number}", limit).allowed? }
    assert limiter.take("several", HOUR, RedisRatelimit.fixed(9, "1d")).allowed?
    @redis.call("RL.POLICYSET", "plan", "FIXED", 1, "1h")
    plan = RedisRatelimit.policy("missing", "plan")
    assert_equal [true, false], Array.new(2) { limiter.take("key", plan).allowed? }
    @redis.call("RL.POLICYSET", "leased", "CONCURRENCY", 1, "1h", "FIXED", 1000, "1h")
    assert limiter.take("pool", RedisRatelimit.policy("leased")).id
  end

  test "rate is parsed to a limit" do
    assert_equal [true, false], Array.new(2) { limiter.take("user:42", "1/hour").allowed? }
    assert_equal 0, limiter.peek("user:42", "1/hour").remaining
    [nil, 100, :fixed, ["1/hour"], "1 hour"].each do |wrong|
      assert_includes assert_raises(ArgumentError) { limiter.take("user:42", wrong) }.message, "100/minute"
    end
  end

  test "refundable charge has an id at any cost" do
    large = RedisRatelimit.fixed(1000, "1h")
    assert_nil limiter.take("user:42", large).id
    error = assert_raises(ArgumentError) { limiter.settle("user:42", large, id: nil, cost: 0) }
    assert_includes error.message, "refundable: true"
    decision = limiter.take("user:42", large, refundable: true)
    assert_equal 998, decision.remaining
    assert_equal 999, limiter.settle("user:42", large, id: decision.id, cost: 0).remaining
    assert_equal "mine", limiter.take("user:42", large, refundable: true, once: "mine").id
    assert_raises(ArgumentError) { limiter.take("1.2.3.4", RedisRatelimit.sketch(5, 5, "1m", key: "s"), refundable: true) }
  end

  test "missing policy raises NoPolicyError" do
    error = assert_raises(RedisRatelimit::NoPolicyError) { limiter.take("key", RedisRatelimit.policy("gold")) }
    assert_kind_of RedisRatelimit::SetupError, error
    assert_includes error.message, "RL.POLICYSET"
  end

  test "sketch limits each item in one key" do
    api = limiter(prefix: "app:")
    # Half a unit more, as the first charge of an item may briefly count a millionth too much.
    addresses = RedisRatelimit.sketch(3.5, 3, "1h", key: "addresses", size: "64kb")
    %W[203.0.113.7 203.0.113.8 \r\n\0].each do |address|
      decisions = Array.new(4) { api.take(address, addresses) }
      assert_equal [true, true, true, false], decisions.map(&:allowed?)
      assert_equal [2, 1, 0, 0], decisions.map(&:remaining)
      assert_equal 0, api.peek(address, addresses).remaining
    end
    assert_equal ["app:addresses"], @redis.keys
    assert_includes @redis.call("RL.INFO", "app:addresses"), 65_536
    # A large charge has no idempotency key, which a sketch does not support.
    assert_nil api.take("another", addresses, cost: 2).id
    assert api.reset("addresses")
    assert_equal 3, api.peek("203.0.113.7", addresses).remaining
  end

  test "policy can be a sketch" do
    @redis.call("RL.POLICYSET", "per-address", "SKETCH", 2.5, 2, "1h")
    addresses = RedisRatelimit.policy("missing", "per-address", key: "addresses")
    %w[203.0.113.7 203.0.113.8].each do |address|
      assert_equal [true, true, false], Array.new(3) { limiter.take(address, addresses).allowed? }
      refute limiter.peek(address, addresses, cost: 1).allowed?
    end
    assert limiter.take("203.0.113.9", addresses, cost: 2).allowed?
    assert_equal ["addresses"], @redis.keys
  end

  test "unsupported options of a sketch are rejected before sending" do
    sketch = RedisRatelimit.sketch(3, 3, "1h", key: "addresses")
    [sketch, RedisRatelimit.policy("per-address", key: "addresses")].each do |limit|
      [{ once: true }, { once: "id" }, { ttl: "1m" }].each do |options|
        error = assert_raises(ArgumentError) { limiter.take("item", limit, **options) }
        assert_includes error.message, "cannot tell apart"
      end
      assert_raises(ArgumentError) { limiter.settle("item", limit, id: "id", cost: 1) }
      assert_includes assert_raises(ArgumentError) { limiter.take("item", HOUR, limit) }.message, "alone in its key"
    end
    assert_raises(TypeError) { RedisRatelimit.sketch(3, 3, "1h", key: nil) }
    assert_empty @redis.keys
  end

  test "charge is settled" do
    tokens = RedisRatelimit.fixed(10_000, "1h")
    decision = limiter.take("llm", tokens, cost: 4000)
    assert_equal 8800, limiter.settle("llm", tokens, id: decision.id, cost: 1200).remaining
    refute limiter.settle("llm", tokens, id: "unknown", cost: 1).allowed?
  end

  test "idempotency keys match the table" do
    @redis.call("RL.POLICYSET", "plan", "FIXED", 10, "1h")
    cases = JSON.parse(File.read("#{CLIENTS}/events.json"))["ids"]
    cases.each_with_index do |row, number|
      limit = row["limit"] ? RedisRatelimit.fixed(row["limit"], "1h") : RedisRatelimit.policy(row["policy"])
      options = row.slice("cost", "once", "ttl").transform_keys(&:to_sym)
      decision = limiter(once: row.fetch("limiter_once", true)).take("key:#{number}", limit, **options)
      assert_equal row["id"], !decision.id.nil?, row
    end
  end

  test "every reply has the cause of the table" do
    rows = JSON.parse(File.read("#{CLIENTS}/replies.json"))
    assert_operator rows.length, :>, 30
    rows.each do |row|
      kind, = RedisRatelimit::Replies.cause_of(row["reply"])
      assert_equal row["kind"] == "policy" ? "operator" : row["kind"], kind.to_s, row["reply"]
      next unless row.key?("passesWithoutId")

      assert_equal row["passesWithoutId"], RedisRatelimit::Replies.may_pass_without_id?(row["reply"])
    end
  end

  test "malformed calls are errors, not outages" do
    [[nil, {}, TypeError], [42, {}, TypeError], ["key", { cost: -1 }, ArgumentError],
     ["key", { cost: Float::NAN }, ArgumentError], ["key", { cost: "many" }, ArgumentError]].each do |key, how, error|
      assert_raises(error) { limiter.take(key, HOUR, **how) }
    end
    assert_raises(ArgumentError) { limiter.take("key") }
    assert_raises(RedisRatelimit::CallError) { limiter.take("key", RedisRatelimit.fixed(3, "soon")) }
    @redis.set("taken", "text")
    error = assert_raises(RedisRatelimit::SetupError) { limiter.take("taken", HOUR) }
    assert_includes error.message, "another key"
    assert limiter(setup_errors: :outage).take("taken", HOUR).degraded?
    wrong = limiter(TestServer.shared.client(password: "wrong"))
    assert_includes assert_raises(RedisRatelimit::SetupError) { wrong.check! }.message, "password"
    assert_includes @log.string, "another key"
  end

  test "port of a stopped server is not reused" do
    server = TestServer.new
    server.stop
    assert_raises(Errno::EADDRINUSE) { UDPSocket.new.bind("127.0.0.1", server.port) }
  ensure
    server&.close
  end

  test "on_outage decides in an outage" do
    server = TestServer.new
    limiters = %i[open closed raise].to_h { |how| [how, limiter(server.client(timeout: 1), on_outage: how, pause: 60)] }
    limiters.each_value { |one| assert one.check! }
    server.stop
    10.times do
      open = limiters[:open].take("key", HOUR)
      assert open.allowed? && open.degraded? && open.limit.nil?
      closed = limiters[:closed].take("key", HOUR)
      assert_equal [false, 60], [closed.allowed?, closed.wait]
      assert_raises(RedisRatelimit::UnavailableError) { limiters[:raise].take("key", HOUR) }
    end
    # Each limiter logs the outage once.
    assert_equal 3, @log.string.scan("Redis is away").length
  ensure
    server&.close
  end

  test "threads are granted exactly the limit" do
    limit = RedisRatelimit.fixed(50, "1h")
    shared = limiter
    passed = Array.new(10) do
      Thread.new { Array.new(20) { shared.take("key", limit).allowed? }.count(true) }
    end.sum(&:value)
    assert_equal 50, passed
  end
end
