-- The usual token bucket script: time from the server, state in a hash, expiry once the bucket is full.
local capacity, refill = tonumber(ARGV[1]), tonumber(ARGV[2])
local period, cost = tonumber(ARGV[3]), tonumber(ARGV[4])
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000
local state = redis.call('HMGET', KEYS[1], 'tokens', 'updated')
local tokens, updated = tonumber(state[1]) or capacity, tonumber(state[2]) or now
local rate = refill / period
tokens = math.min(capacity, tokens + math.max(0, now - updated) * rate)
local allowed, wait = 0, 0
if tokens >= cost then
  allowed, tokens = 1, tokens - cost
else
  wait = math.ceil((cost - tokens) / rate * 1000)
end
redis.call('HSET', KEYS[1], 'tokens', tokens, 'updated', now)
redis.call('PEXPIRE', KEYS[1], math.ceil((capacity - tokens) / rate * 1000) + 1000)
return {allowed, capacity, math.floor(tokens), wait, math.ceil((capacity - tokens) / rate * 1000)}
