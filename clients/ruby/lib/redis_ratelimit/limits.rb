# frozen_string_literal: true

module RedisRatelimit
  # Limit, such as `RedisRatelimit.fixed(100, "1m")`. `quota` is nil for a policy, whose limits only the server knows.
  # `key` is the key of a sketch: the key of a call is then an item of the sketch.
  Limit = Struct.new(:words, :quota, :key, keyword_init: true) do
    def policy?
      words.first == "POLICY"
    end

    # Returns the words in a call with the key `item`.
    def spec(item)
      return words unless key

      policy? ? [*words, "ITEM", item] : [*words.take(4), item, *words.drop(4)]
    end
  end

  module_function

  # Creates a token bucket: bursts of up to `capacity`, refilled by `refill` per `period`, continuously.
  def token_bucket(capacity, refill, period)
    Limit.new(words: ["TOKENBUCKET", capacity, refill, period], quota: capacity)
  end

  # Creates a leaky bucket: a queue of up to `capacity` that drains at `leak` per `period`. Hold a call for its `wait`.
  def leaky_bucket(capacity, leak, period)
    Limit.new(words: ["LEAKYBUCKET", capacity, leak, period], quota: capacity)
  end

  # Creates a fixed window: at most `limit` in each window, which begins with the first call.
  def fixed(limit, window)
    Limit.new(words: ["FIXED", limit, window], quota: limit)
  end

  # Creates a sliding window: approximately `limit` in the trailing window, or with `strict` never more.
  def sliding(limit, window, strict: false)
    Limit.new(words: ["SLIDING", limit, window, *("STRICT" if strict)], quota: limit)
  end

  # Creates a sliding log: at most `limit` in the trailing window, to the microsecond; the server stores each call.
  def sliding_log(limit, window)
    Limit.new(words: ["SLIDINGLOG", limit, window], quota: limit)
  end

  # Creates a sketch: a token bucket for each of any number of items, such as addresses, in the key `key` of a fixed
  # size. The key of a call is the item. An item never gets more than its limit, and may be denied too early if the
  # sketch is too small. `size` applies when the key is created: "64kb" to "256mb", or bytes.
  def sketch(capacity, refill, period, key:, size: nil)
    raise TypeError, "the key of a sketch must be text, not #{key.inspect}" unless key.is_a?(String)

    Limit.new(words: ["SKETCH", capacity, refill, period, *(["SIZE", size] if size)], quota: capacity, key: key)
  end

  # Refers to the first policy on the server that exists among these names. If it is a sketch, `key` is the key of the
  # sketch, and the key of a call is the item.
  def policy(*names, key: nil)
    Limit.new(words: ["POLICY", *names.flat_map { |name| ["OR", name] }.drop(1)], key: key)
  end
end
