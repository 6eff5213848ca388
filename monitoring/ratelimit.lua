-- What `INFO ratelimit` counts, for the Prometheus exporter for Redis (redis_exporter --script ratelimit.lua). Each count
-- becomes a series of redis_script_values: key="ratelimit:denied" in all, key="rl.tokenbucket:denied" by command,
-- key="rl-bucket:keys_made" by kind.
local metrics = {}

local function add(name, field, value)
  metrics[#metrics + 1] = name .. ':' .. field
  metrics[#metrics + 1] = value
end

for name, value in redis.call('INFO', 'ratelimit'):gmatch('ratelimit_([^:\r\n]+):([^\r\n]+)') do
  if value:match('^%d+$') then
    add('ratelimit', name, value)
  else
    for field, count in value:gmatch('([%w_]+)=(%d+)') do
      add(name, field, count)
    end
  end
end
return metrics
