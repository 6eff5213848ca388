-- Four token buckets in one key, a hash, all charged or none.
-- ARGV holds the capacity, refill and period of each bucket in turn.
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000
local state = redis.call('HMGET', KEYS[1], 'updated', '1', '2', '3', '4')
local elapsed = math.max(0, now - (tonumber(state[1]) or now))
local left, rates, allowed, wait = {}, {}, 1, 0
for i = 1, 4 do
  local capacity = tonumber(ARGV[3 * i - 2])
  local rate = tonumber(ARGV[3 * i - 1]) / tonumber(ARGV[3 * i])
  left[i] = math.min(capacity, (tonumber(state[i + 1]) or capacity) + elapsed * rate)
  rates[i] = rate
  if left[i] < 1 then
    allowed, wait = 0, math.max(wait, math.ceil((1 - left[i]) / rate * 1000))
  end
end
local reset = 0
if allowed == 1 then
  for i = 1, 4 do
    left[i] = left[i] - 1
    reset = math.max(reset, (tonumber(ARGV[3 * i - 2]) - left[i]) / rates[i])
  end
  redis.call('HSET', KEYS[1], 'updated', now, '1', left[1], '2', left[2], '3', left[3], '4', left[4])
  redis.call('PEXPIRE', KEYS[1], math.ceil(reset * 1000) + 1000)
end
local reply = {allowed, wait}
for i = 1, 4 do
  reply[i + 2] = math.floor(left[i])
end
return reply
