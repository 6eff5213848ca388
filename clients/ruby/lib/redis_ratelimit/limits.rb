# frozen_string_literal: true

module RedisRatelimit
  # One limit, such as `RedisRatelimit.fixed(100, "1m")`. `quota` is nil for a policy, which only the server knows.
  Limit = Struct.new(:words, :quota, keyword_init: true) do
    def policy?
      words.first == "POLICY"
    end
  end

  module_function

  # A burst of up to `capacity`, refilled by `refill` per `period`, continuously.
  def token_bucket(capacity, refill, period)
    Limit.new(words: ["TOKENBUCKET", capacity, refill, period], quota: capacity)
  end

  # A queue of up to `capacity` that leaves at `leak` per `period`: hold a call for its `wait`.
  def leaky_bucket(capacity, leak, period)
    Limit.new(words: ["LEAKYBUCKET", capacity, leak, period], quota: capacity)
  end

  # At most `limit` in each window, which begins with the first call.
  def fixed(limit, window)
    Limit.new(words: ["FIXED", limit, window], quota: limit)
  end

  # At most about `limit` in the trailing window; with `strict`, never more.
  def sliding(limit, window, strict: false)
    Limit.new(words: ["SLIDING", limit, window, *("STRICT" if strict)], quota: limit)
  end

  # At most `limit` in the trailing window, to the microsecond; the server stores each call.
  def sliding_log(limit, window)
    Limit.new(words: ["SLIDINGLOG", limit, window], quota: limit)
  end

  # The policy that the server keeps under the first of these names that exists.
  def policy(*names)
    Limit.new(words: ["POLICY", *names.flat_map { |name| ["OR", name] }.drop(1)])
  end
end
