-- A token bucket for each key, all charged or none: reads every key, then charges every key.
-- ARGV holds the capacity, refill and period of each bucket in turn.
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000
local left, rates, allowed, wait = {}, {}, 1, 0
for i, key in ipairs(KEYS) do
  local capacity = tonumber(ARGV[3 * i - 2])
  local rate = tonumber(ARGV[3 * i - 1]) / tonumber(ARGV[3 * i])
  local state = redis.call('HMGET', key, 'tokens', 'updated')
  local tokens, updated = tonumber(state[1]) or capacity, tonumber(state[2]) or now
  left[i] = math.min(capacity, tokens + math.max(0, now - updated) * rate)
  rates[i] = rate
  if left[i] < 1 then
    allowed, wait = 0, math.max(wait, math.ceil((1 - left[i]) / rate * 1000))
  end
end
local reply = {allowed, wait}
for i, key in ipairs(KEYS) do
  local capacity = tonumber(ARGV[3 * i - 2])
  if allowed == 1 then
    left[i] = left[i] - 1
    redis.call('HSET', key, 'tokens', left[i], 'updated', now)
    redis.call('PEXPIRE', key, math.ceil((capacity - left[i]) / rates[i] * 1000) + 1000)
  end
  reply[i + 2] = math.floor(left[i])
end
return reply
