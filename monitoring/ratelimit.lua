-- What `INFO ratelimit` counts, for the Prometheus exporter for Redis (redis_exporter --script ratelimit.lua). Each count
-- becomes a series of redis_script_values: key="ratelimit:denied" in all, key="rl.tokenbucket:denied" by command,
-- key="rl-bucket:keys_made" by kind, key="policy:plan:pro:denied" by policy, key="blocked:0:pool:waiting" by database and
-- key for which somebody waits. A policy's name and a key's may have colons, a count's has none: it is what follows the
-- last one. Of more than 100 policies INFO has those with the most calls.
local metrics = {}

local function add(name, field, value)
  metrics[#metrics + 1] = name .. ':' .. field
  metrics[#metrics + 1] = value
end

for name, value in redis.call('INFO', 'ratelimit'):gmatch('ratelimit_([^:\r\n]+):([^\r\n]+)') do
  local policy, counts = value:match('^name=([^,]*),(.*)$')
  local key, db, waiting = value:match('^key=([^,]*),db=(%d+),(.*)$')
  if policy then
    -- Many policies may be idle: the counts of one that nobody has called are left out, but for that.
    name, value = 'policy:' .. policy, counts:match('^version=%d+,scale=[%d.]+,scale_ms=%-?%d+,calls=0') or counts
  elseif key then
    -- Its place in INFO says nothing: the keys that are waited for longest come first.
    name, value = 'blocked:' .. db .. ':' .. key, waiting
  end
  if name == 'policies_digest' then
    -- No count, though its sixteen digits may all be decimal.
  elseif value:match('^%d+$') then
    add('ratelimit', name, value)
  else
    for field, count in value:gmatch('([%w_]+)=(%-?[%d.]+)') do
      add(name, field, count)
    end
  end
end
return metrics
