# frozen_string_literal: true

module RedisRatelimit
  VERSION = "0.1.0"
end
