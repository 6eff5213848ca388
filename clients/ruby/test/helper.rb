# frozen_string_literal: true

require "json"
require "minitest/autorun"
require "redis"
require "socket"
require "tmpdir"

require "redis_ratelimit"

# Server with the module, by $SERVER or `redis-server` and $RATELIMIT_MODULE.
class TestServer
  attr_reader :port

  def self.shared
    @shared ||= new.tap { |server| Minitest.after_run { server.close } }
  end

  def initialize
    @folder = Dir.mktmpdir("ratelimit-ruby")
    @port, @reservation = reserve_port
    started? || raise("the server did not start")
  end

  def client(**options)
    Redis.new(port: port, timeout: 30, **options)
  end

  def stop
    Process.kill(:KILL, @pid)
    Process.wait(@pid)
    @pid = nil
  end

  def close
    stop if @pid
    @reservation.close
    FileUtils.remove_entry(@folder)
  end

  private

  # Reserves a port that no other fixture gets while the socket is open, as in tests/support/ports.py: binding the UDP
  # port of the same number reserves it. The server listens on the TCP port.
  def reserve_port
    loop do
      port = rand(11_000...21_000)
      reservation = UDPSocket.new
      reservation.bind("127.0.0.1", port)
      TCPServer.open("127.0.0.1", port).close
      return port, reservation
    rescue Errno::EADDRINUSE
      reservation.close
    end
  end

  def started?
    server = ENV["SERVER"].to_s.empty? ? "redis-server" : ENV["SERVER"]
    @pid = Process.spawn(server, "--port", port.to_s, "--bind", "127.0.0.1", "--save", "", "--loadmodule",
                         ENV.fetch("RATELIMIT_MODULE"), "policies", "yes", out: File::NULL, chdir: @folder)
    1200.times do
      return false if Process.wait(@pid, Process::WNOHANG)

      begin
        return client.ping == "PONG"
      rescue Redis::BaseError
        sleep 0.025
      end
    end
    false
  end
end

class Test < Minitest::Test
  CLIENTS = File.expand_path("../..", __dir__)
  HOUR = RedisRatelimit.fixed(3, "1h")

  def self.test(name, &block)
    define_method("test_#{name.tr(' ', '_')}", &block)
  end

  def setup
    @redis = TestServer.shared.client
    @redis.flushall
    @log = StringIO.new
  end

  def limiter(redis = @redis, **options)
    RedisRatelimit::Limiter.new(redis, log: Logger.new(@log), **options)
  end
end
