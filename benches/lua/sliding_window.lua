-- Two counters, of this window and of the one before it, which counts for as much as still overlaps.
local limit, window = tonumber(ARGV[1]), tonumber(ARGV[2])
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local index = math.floor(now / window)
local this, last = KEYS[1] .. ':' .. index, KEYS[1] .. ':' .. (index - 1)
local current = tonumber(redis.call('GET', this)) or 0
local previous = tonumber(redis.call('GET', last)) or 0
local used = previous * (window - now % window) / window + current
if used + 1 > limit then
  return {0, 0}
end
redis.call('INCR', this)
redis.call('PEXPIRE', this, 2 * window)
return {1, math.floor(limit - used - 1)}
