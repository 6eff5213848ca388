-- Returns the counts of `INFO ratelimit`, for the Prometheus exporter for Redis (redis_exporter --script ratelimit.lua).
-- Each count becomes a series of redis_script_values: key="ratelimit:denied" in total, key="rl.tokenbucket:denied" by
-- command, key="rl-bucket:keys_made" by kind, key="policy:plan:pro:denied" by policy, key="blocked:0:pool:waiting" by
-- database and key for which calls wait. Names of policies and keys may have colons; the name of a count has none, and
-- follows the last colon. INFO has at most 100 policies, those with the most calls.
local metrics = {}

local function add(name, field, value)
  metrics[#metrics + 1] = name .. ':' .. field
  metrics[#metrics + 1] = value
end

for name, value in redis.call('INFO', 'ratelimit'):gmatch('ratelimit_([^:\r\n]+):([^\r\n]+)') do
  local policy, counts = value:match('^name=([^,]*),(.*)$')
  local key, db, waiting = value:match('^key=([^,]*),db=(%d+),(.*)$')
  if policy then
    -- Many policies may be unused. Of a policy without calls, only `calls` and the fields before it become series.
    name, value = 'policy:' .. policy, counts:match('^version=%d+,scale=[%d.]+,scale_ms=%-?%d+,calls=0') or counts
  elseif key then
    -- The number in the field's name is left out: it changes, because the keys with the longest waits come first.
    name, value = 'blocked:' .. db .. ':' .. key, waiting
  end
  if name == 'policies_digest' then
    -- Not a count, although its sixteen hexadecimal digits may all be decimal.
  elseif value:match('^%d+$') then
    add('ratelimit', name, value)
  else
    for field, count in value:gmatch('([%w_]+)=(%-?[%d.]+)') do
      add(name, field, count)
    end
  end
end
return metrics
