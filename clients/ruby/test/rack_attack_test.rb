# frozen_string_literal: true

require_relative "helper"
require "rack"
require "redis_ratelimit/rack_attack"

class RackAttackTest < Test
  def setup
    super
    Rack::Attack.clear_configuration
    Rack::Attack.cache.store = RedisRatelimit::RackAttackStore.new(@redis)
  end

  def ask(address = "10.0.0.1")
    app = Rack::Attack.new(->(_) { [200, {}, ["hello"]] })
    status, headers, = app.call(Rack::MockRequest.env_for("/", "REMOTE_ADDR" => address))
    [status, headers]
  end

  test "store counts for Rack Attack's own throttles" do
    Rack::Attack.throttle("req/ip", limit: 3, period: 3600, &:ip)
    # An hour may begin meanwhile.
    passed = Array.new(8) { ask.first }.count(200)
    assert_includes 3..6, passed
    assert_equal 200, ask("10.0.0.2").first
    # Every counter expires.
    assert(@redis.keys.all? { |key| @redis.pttl(key).between?(1, 5_000_000) })
  end

  test "counter is one call and exact" do
    store = Rack::Attack.cache.store
    assert_equal [1, 2, 5], [1, 1, 3].map { |amount| store.increment("n", amount, expires_in: 60) }
    store.write("w", "1", expires_in: 60)
    assert_equal "1", store.read("w")
    store.delete("w")
    assert_nil store.read("w")
    Rack::Attack.cache.count("one", 60)
    Rack::Attack.reset!
    assert_equal ["n"], @redis.keys
  end

  test "store supports bans of Rack Attack" do
    banned = lambda do
      Rack::Attack::Fail2Ban.filter("scan", maxretry: 2, findtime: 3600, bantime: 3600) { true }
    end
    assert_equal [true] * 3, Array.new(3) { banned.call }
    assert(Rack::Attack::Fail2Ban.filter("scan", maxretry: 2, findtime: 3600, bantime: 3600) { false })
  end

  test "outage counts nothing" do
    server = TestServer.new
    Rack::Attack.cache.store = RedisRatelimit::RackAttackStore.new(server.client(timeout: 1))
    Rack::Attack.throttle("req/ip", limit: 1, period: 3600, &:ip)
    assert_equal 200, ask.first
    server.stop
    assert_equal [200] * 5, Array.new(5) { ask.first }
  ensure
    server&.close
  end

  test "throttle uses any limit" do
    RedisRatelimit.throttle("api", limiter, RedisRatelimit.sliding(2, "1h"), &:ip)
    Rack::Attack.throttled_responder = RedisRatelimit::RESPONDER
    assert_equal [200, 200, 429], Array.new(3) { ask.first }
    headers = ask.last
    assert_equal "2", headers["X-RateLimit-Limit"]
    assert_operator headers["Retry-After"].to_i, :>, 0
    assert_equal 200, ask("10.0.0.2").first
  end

  test "limits are a proc of the request" do
    limits = ->(request) { [RedisRatelimit.fixed(request.ip == "10.0.0.1" ? 1 : 2, "1h")] }
    RedisRatelimit.throttle("plan", limiter, limits, &:ip)
    assert_equal [200, 429], Array.new(2) { ask.first }
    assert_equal [200, 200, 429], Array.new(3) { ask("10.0.0.2").first }
  end
end
