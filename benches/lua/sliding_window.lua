-- Two counters: of the current window, and of the previous one, weighted by its share that still counts.
local limit, window = tonumber(ARGV[1]), tonumber(ARGV[2])
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local index = math.floor(now / window)
local current_key, previous_key = KEYS[1] .. ':' .. index, KEYS[1] .. ':' .. (index - 1)
local current = tonumber(redis.call('GET', current_key)) or 0
local previous = tonumber(redis.call('GET', previous_key)) or 0
local used = previous * (window - now % window) / window + current
if used + 1 > limit then
  return {0, 0}
end
redis.call('INCR', current_key)
redis.call('PEXPIRE', current_key, 2 * window)
return {1, math.floor(limit - used - 1)}
