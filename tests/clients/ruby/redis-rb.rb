# redis-rb, as docs/clients.md shows it; tests/support/libraries.py describes the questions.

require "redis"

mode, port = ARGV

def serve(verbs)
  STDIN.each_line do |line|
    verb, *words = line.split
    begin
      puts "= " + [verbs[verb].call(*words)].flatten.map { |value| Integer(value) }.join(" ")
    rescue StandardError => error
      puts "! #{error.class} #{error.message.split.join(' ')}"
    end
    STDOUT.flush
  end
end

case mode
when "server"
  # [one server]
  redis = Redis.new(port: port)
  allowed, limit, remaining, wait_ms, reset_ms = redis.call("RL.FIXED", "user:42", 100, "1m")
  # [end]
  serve({
    "first" => -> { [allowed, limit, remaining, wait_ms, reset_ms] },
    "call" => ->(*words) { redis.call(*words) },
  })
when "server-no-resends"
  # [never twice]
  redis = Redis.new(port: port, reconnect_attempts: 0)
  # [end]
  serve({ "call" => ->(*words) { redis.call(*words) } })
when "replicas"
  # [replicas]
  cluster = Redis.new(cluster: ["redis://127.0.0.1:#{port}"], replica: true)
  # [end]
  peek = lambda do |key|
    cluster.call("rl.peek", key, "FIXED", 100, "1m")
  end
  serve({ "peek" => peek })
else
  # [cluster]
  cluster = Redis.new(cluster: ["redis://127.0.0.1:#{port}"])
  # [end]
  if mode == "cluster-no-resends"
    cluster = Redis.new(cluster: ["redis://127.0.0.1:#{port}"], reconnect_attempts: 0)
  end
  one = lambda do |key|
    # [cluster]
    reply = cluster.call("rl.fixed", key, 100, "1m")
    # [end]
    reply
  end
  several = lambda do |tag|
    # [cluster]
    keys = ["{#{tag}}:minute", "{#{tag}}:day"]
    reply = cluster.call("rl.mtake", 2, *keys, "FIXED", 100, "1m", "FIXED", 5000, "1d")
    # [end]
    reply
  end
  pipeline = lambda do |*keys|
    # [cluster]
    replies = cluster.pipelined do |pipeline|
      keys.each { |key| pipeline.call("rl.fixed", key, 100, "1m") }
    end
    # [end]
    replies
  end
  plain_pipeline = lambda do |*keys|
    cluster.pipelined { |pipeline| keys.each { |key| pipeline.call("RL.FIXED", key, 100, "1m") } }
  end
  serve({
    "plain-pipeline" => plain_pipeline,
    "plain" => ->(*words) { cluster.call(*words) },
    "one" => one,
    "several" => several,
    "pipeline" => pipeline,
  })
end
