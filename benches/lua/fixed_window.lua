-- A counter that expires with its window.
local count = redis.call('INCR', KEYS[1])
if count == 1 then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
local limit = tonumber(ARGV[1])
return {count <= limit and 1 or 0, math.max(0, limit - count)}
