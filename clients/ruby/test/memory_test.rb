# frozen_string_literal: true

require_relative "helper"

# Limiter without a server, whose decisions must match `clients/traces.json`, recorded from a server.
class MemoryTest < Minitest::Test
  FILE = JSON.parse(File.read(File.expand_path("../../traces.json", __dir__)))

  FILE.fetch("traces").each do |name, steps|
    define_method("test_memory_replies_what_the_server_replied_#{name.tr(', ', '__')}") do
      now = FILE.fetch("start")
      memory = RedisRatelimit::Memory.new(clock: -> { Rational(now, 1_000_000) })
      steps.each_with_index do |(advance, call, reply), place|
        now += advance
        assert_equal reply, replied(memory, call), "call #{place}: #{call}"
      end
    end
  end

  def self.test(name, &block)
    define_method("test_#{name.tr(' ', '_')}", &block)
  end

  def setup
    @clock = RedisRatelimit::ManualClock.new(Time.utc(2024, 2, 29, 12))
    @limiter = RedisRatelimit::Limiter.local(clock: @clock, log: nil)
  end

  {
    "token bucket" => RedisRatelimit.token_bucket(2, 1, "1m"), "fixed window" => RedisRatelimit.fixed(2, "1m"),
    "sliding window" => RedisRatelimit.sliding(2, "1m"), "sliding log" => RedisRatelimit.sliding_log(2, "1m"),
    "strict window" => RedisRatelimit.sliding(2, "1m", strict: true)
  }.each do |name, limit|
    test "#{name}: denied call passes after its wait" do
      assert_equal [true, true, false], Array.new(3) { @limiter.take("k", limit).allowed? }
      @clock.advance(@limiter.take("k", limit).wait - 0.001)
      refute @limiter.take("k", limit).allowed?
      @clock.advance(0.001)
      assert @limiter.take("k", limit).allowed?
      assert @limiter.take("other", limit).allowed?
    end
  end

  test "leaky bucket delays calls" do
    queue = RedisRatelimit.leaky_bucket(3, 1, "2s")
    assert_equal [0, 2, 4, 2], Array.new(4) { @limiter.take("k", queue).wait }
  end

  test "all limits are charged or none" do
    second = RedisRatelimit.token_bucket(2, 2, "1s")
    day = RedisRatelimit.fixed(3, "1d")
    assert @limiter.take("k", second, day, cost: 2).allowed?
    refute @limiter.take("k", second, day).allowed?
    assert_equal 1, @limiter.peek("k", day).remaining
  end

  test "charge counts once and is settled" do
    limit = RedisRatelimit.fixed(100, "1m")
    2.times { assert_equal 60, @limiter.take("k", limit, cost: 40, once: "a").remaining }
    assert_equal 90, @limiter.settle("k", limit, id: "a", cost: 10).remaining
    refute @limiter.settle("k", limit, id: "nobody", cost: 10).allowed?
    refute @limiter.take("k", limit, cost: 91, force: true).allowed?
    assert @limiter.reset("k")
    refute @limiter.reset("k")
  end

  test "server-only features are rejected" do
    [RedisRatelimit.policy("plan"), RedisRatelimit.sketch(5, 5, "1m", key: "addresses")].each do |limit|
      error = assert_raises(RedisRatelimit::CallError) { @limiter.take("k", limit) }
      assert_includes error.message, "need a server"
    end
  end

  test "malformed calls raise the server's errors" do
    assert_raises(RedisRatelimit::CallError) do
      @limiter.take("k", RedisRatelimit.fixed(5, "1m"), RedisRatelimit.fixed(6, "60s"))
    end
    assert @limiter.take("k", RedisRatelimit.fixed(1000, "1m")).allowed?
    assert_raises(RedisRatelimit::SetupError) { @limiter.take("k", RedisRatelimit.sliding_log(1000, "1m")) }
  end

  test "keys are compared by bytes" do
    limit = RedisRatelimit.fixed(1, "1m")
    assert @limiter.take("é", limit).allowed?
    refute @limiter.take("é".b, limit).allowed?
  end

  test "expired keys are removed" do
    3000.times do |number|
      @limiter.take("k#{number}", RedisRatelimit.fixed(1000, "1s"))
      @clock.advance(0.01)
    end
    assert_operator @limiter.instance_variable_get(:@redis).instance_variable_get(:@keys).length, :<, 2000
  end

  def replied(memory, call)
    memory.call(*call.split)
  rescue Redis::CommandError => e
    e.message[/\A\S+/]
  end
end
