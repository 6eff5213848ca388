-- A sorted set of the times of admitted calls.
local limit, window = tonumber(ARGV[1]), tonumber(ARGV[2])
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - window * 1000)
local count = redis.call('ZCARD', KEYS[1])
if count >= limit then
  return {0, 0}
end
-- The count distinguishes calls in the same microsecond.
redis.call('ZADD', KEYS[1], now, string.format('%.0f', now) .. ':' .. count)
redis.call('PEXPIRE', KEYS[1], window)
return {1, limit - count - 1}
