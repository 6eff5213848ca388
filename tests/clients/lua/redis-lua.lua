-- redis-lua, as docs/clients.md shows it; tests/support/libraries.py describes the questions.

-- [one server]
local redis = require("redis")

redis.commands.fixed = redis.command("RL.FIXED")
-- [end]
redis.commands.take = redis.command("RL.TAKE")
redis.commands.mtake = redis.command("RL.MTAKE")

local mode, port = arg[1], tonumber(arg[2])

-- [one server]
local client = redis.connect("127.0.0.1", port)
-- [end]

local first
if mode == "server" then
  -- [one server]
  local allowed, limit, remaining, wait_ms, reset_ms = unpack(client:fixed("user:42", 100, "1m"))
  -- [end]
  first = { allowed, limit, remaining, wait_ms, reset_ms }
end

local verbs = {
  first = function() return first end,
  call = function(name, ...)
    -- Commands become methods, whose names have no dot.
    return client[name:lower():gsub("^rl%.", "")](client, ...)
  end,
  one = function(key) return client:fixed(key, 100, "1m") end,
  several = function(tag)
    local keys = { "{" .. tag .. "}:minute", "{" .. tag .. "}:day" }
    return client:mtake(2, keys[1], keys[2], "FIXED", 100, "1m", "FIXED", 5000, "1d")
  end,
  pipeline = function(...)
    local keys = { ... }
    return client:pipeline(function(pipeline)
      for _, key in ipairs(keys) do pipeline:fixed(key, 100, "1m") end
    end)
  end,
}

local function integers(reply, found)
  if type(reply) ~= "table" then
    table.insert(found, string.format("%d", reply))
    return found
  end
  for _, item in ipairs(reply) do integers(item, found) end
  return found
end

for line in io.lines() do
  local words = {}
  for word in line:gmatch("%S+") do table.insert(words, word) end
  local verb = table.remove(words, 1)
  local is_ok, answer = pcall(function()
    return "= " .. table.concat(integers(verbs[verb](unpack(words)), {}), " ")
  end)
  if not is_ok then
    -- The library does not reconnect by itself.
    if tostring(answer):find("closed") then client = redis.connect("127.0.0.1", port) end
    answer = "! " .. tostring(answer):gsub("%s+", " ")
  end
  print(answer)
  io.flush()
end
