# frozen_string_literal: true

module RedisRatelimit
  # One limit, such as `RedisRatelimit.fixed(100, "1m")`. `quota` is nil for a policy, which only the server knows, and
  # `key` is that of a sketch: what a call names as its key is an item of the sketch then.
  Limit = Struct.new(:words, :quota, :key, keyword_init: true) do
    def policy?
      words.first == "POLICY"
    end

    # Its words in a call that names `item` as its key.
    def spec(item)
      return words unless key

      policy? ? [*words, "ITEM", item] : [*words.take(4), item, *words.drop(4)]
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

  # A token bucket for each of any number of items, such as addresses, in the key `key` of a fixed size. An item is what a
  # call names as its key. It never gets more than its limit, and may be denied too early if the sketch is too small.
  # `size` counts when the key is made: "64kb" to "256mb", or bytes.
  def sketch(capacity, refill, period, key:, size: nil)
    raise TypeError, "the key of a sketch must be text, not #{key.inspect}" unless key.is_a?(String)

    Limit.new(words: ["SKETCH", capacity, refill, period, *(["SIZE", size] if size)], quota: capacity, key: key)
  end

  # The policy that the server keeps under the first of these names that exists. If it is a sketch, `key` is the key of
  # the sketch, and what a call names as its key is an item.
  def policy(*names, key: nil)
    Limit.new(words: ["POLICY", *names.flat_map { |name| ["OR", name] }.drop(1)], key: key)
  end
end
