-- Charges each request to limits on a Redis or Valkey server with redis-ratelimit, before nginx forwards it.
--
--     init_by_lua_block   { limits = require("ratelimit").new { redis = "redis://10.0.0.7" } }
--     access_by_lua_block { limits:check { by = "address", whose = limits.network(), policies = { "anonymous" } } }
--
-- The limits are policies on the server. nginx.conf in the same folder is a complete configuration.

local Limits = {}
Limits.__index = Limits

-- Limit in the reply of a policy whose limits are all in shadow mode. It is not shown to clients.
local NO_LIMIT = 1000000000000

-- Values of on_outage: `true` if a request passes without a decision (outage, or error of the server).
local PASSES = { open = true, closed = false }

--- Creates the limits for all workers. Call it once, in init_by_lua.
--
-- @param settings a table of optional settings:
--   redis       redis://[[user]:password@]host[:port]. A host name needs nginx's `resolver`.
--   timeout_ms  maximum duration of a decision, including the connection: 100.
--   pool_size   idle connections that each worker keeps: 32.
--   idle_ms     idle time after which a connection is closed: 60000.
--   failures    calls in a row without a reply that begin an outage: 5.
--   pause_ms    pause of a worker between single calls during an outage: 1000.
--   on_outage   "open" (default) passes requests without a decision; "closed" responds 503.
function Limits.new(settings)
    local url = settings.redis or "redis://127.0.0.1"
    local user, password, address = url:match("^redis://([^:/@]*):(.+)@(.*)$")
    local host, port = (address or url:gsub("^redis://", "")):match("^([^:/@]+):?(%d*)$")
    assert(host, "not redis://[[user]:password@]host[:port]: " .. url)
    local self = {
        host = host,
        port = tonumber(port) or 6379,
        user = user ~= "" and user or "default",
        password = password and ngx.unescape_uri(password),
        timeout_ms = settings.timeout_ms or 100,
        pool_size = settings.pool_size or 32,
        idle_ms = settings.idle_ms or 60000,
        failures = settings.failures or 5,
        pause_ms = settings.pause_ms or 1000,
        on_outage = settings.on_outage or "open",
        -- State of this worker. Workers detect outages separately.
        consecutive_failures = 0,
        retry_at = 0,
        log_again_at = 0,
    }
    self.pool = self.user .. "@" .. host .. ":" .. self.port
    assert(PASSES[self.on_outage] ~= nil, "on_outage is neither open nor closed: " .. self.on_outage)
    return setmetatable(self, Limits)
end

--- Charges a request. Responds 429 if it is denied, or 503 without a decision if on_outage is "closed".
--
-- A request is charged once, although nginx calls this again after an internal redirect (index,
-- error_page, try_files).
--
-- @param limit a table:
--   by         name of the limit, such as "customer", in keys and header fields.
--   whose      authenticated name or address of the caller.
--   policies   names of policies. The first that exists on the server applies.
--   cost       units, 1 by default.
--   fields     false: no header fields but Retry-After, and a cheaper call (RL.DELAY).
--   on_outage  replaces the value of the settings.
function Limits:check(limit)
    if assert(ngx.var.ratelimit, "nginx.conf has no $ratelimit") ~= "" then
        return
    end
    ngx.var.ratelimit = "pending"
    local on_outage = limit.on_outage or self.on_outage
    local passes = PASSES[on_outage]
    assert(passes ~= nil, "on_outage is neither open nor closed: " .. on_outage)

    local words = { limit.fields == false and "RL.DELAY" or "RL.LIMIT", "rl:" .. limit.by .. ":" .. limit.whose }
    for index, policy in ipairs(limit.policies) do
        if index > 1 then
            words[#words + 1] = "OR"
        end
        words[#words + 1] = policy
    end
    if limit.cost then
        words[#words + 1] = "COST"
        words[#words + 1] = tostring(limit.cost)
    end

    local reply = self:decide(words)
    if not reply then
        ngx.var.ratelimit = on_outage
        if passes then
            return
        end
        ngx.header["Retry-After"] = math.ceil(self.pause_ms / 1000)
        return ngx.exit(ngx.HTTP_SERVICE_UNAVAILABLE)
    end

    local allowed, wait_ms
    if type(reply) == "table" then
        allowed, wait_ms = reply[1] == 1, reply[4]
        self.set_fields(limit.by, reply)
    else
        allowed, wait_ms = reply == 0, reply
    end
    if allowed then
        ngx.var.ratelimit = "admitted"
        -- Delay of a leaky bucket.
        if wait_ms > 0 then
            ngx.sleep(wait_ms / 1000)
        end
        return
    end
    ngx.var.ratelimit = "denied"
    -- A wait of -1 means never: the request costs more than the limit.
    if wait_ms >= 0 then
        ngx.header["Retry-After"] = math.ceil(wait_ms / 1000)
    end
    return ngx.exit(ngx.HTTP_TOO_MANY_REQUESTS)
end

--- Returns the network of a client as text. IPv6 clients are counted by their /64, which a provider
-- assigns to one customer, and IPv4-mapped addresses as IPv4.
function Limits.network()
    local address = ngx.var.binary_remote_addr
    if #address == 16 and address:sub(1, 12) == ("\0"):rep(10) .. "\255\255" then
        address = address:sub(13)
    end
    if #address == 4 then
        return table.concat({ address:byte(1, 4) }, ".")
    elseif #address == 16 then
        return ("%02x%02x:%02x%02x:%02x%02x:%02x%02x::/64"):format(address:byte(1, 8))
    end
    return address -- of a Unix socket: "unix:"
end

-- Sets X-RateLimit-*, which many clients know, in seconds from now, and RateLimit and RateLimit-Policy
-- of draft-ietf-httpapi-ratelimit-headers-10. Of several limits in a policy, the reply describes the
-- one that governs.
function Limits.set_fields(name, reply)
    local allowed, limit, remaining, wait_ms, reset_ms = unpack(reply)
    if limit == NO_LIMIT then
        return
    end
    local header = ngx.header
    header["X-RateLimit-Limit"] = limit
    header["X-RateLimit-Remaining"] = remaining
    header["X-RateLimit-Reset"] = math.ceil(reset_ms / 1000)
    header["RateLimit-Policy"] = ('"%s";q=%d'):format(name, limit)
    local until_ms = allowed == 1 and reset_ms or wait_ms
    local time_field = until_ms >= 0 and (";t=%d"):format(math.ceil(until_ms / 1000)) or ""
    header["RateLimit"] = ('"%s";r=%d%s'):format(name, remaining, time_field)
end

-- Returns the reply to a call, or nil without a decision. No call is sent again: it could charge twice.
function Limits:decide(words)
    local in_outage = self.consecutive_failures >= self.failures
    if in_outage then
        if ngx.now() < self.retry_at then
            return nil
        end
        -- Only this request makes a call; others pass or are denied by on_outage meanwhile.
        self.retry_at = ngx.now() + self.pause_ms / 1000
    end
    local reply, problem = self:call(words)
    if reply == nil then
        self.consecutive_failures = self.consecutive_failures + 1
        self.retry_at = ngx.now() + self.pause_ms / 1000
        ngx.log(ngx.ERR, "Redis is away: ", problem)
        return nil
    end
    if in_outage then
        ngx.log(ngx.WARN, "Redis is back")
    end
    self.consecutive_failures = 0
    -- An error of the server, such as NOPOLICY, does not begin an outage, because the server replies.
    if type(reply) == "table" and reply.problem then
        if ngx.now() >= self.log_again_at then
            self.log_again_at = ngx.now() + 1
            ngx.log(ngx.ERR, "Redis refuses ", words[1], ": ", reply.problem)
        end
        return nil
    end
    return reply
end

-- Returns the reply to a call, or nil and an error, after at most timeout_ms.
function Limits:call(words)
    local deadline = ngx.now() * 1000 + self.timeout_ms
    local socket = ngx.socket.tcp()
    -- Runs a step of a call with the remaining time.
    local function with_remaining_time(step, ...)
        local remaining_ms = deadline - ngx.now() * 1000
        if remaining_ms <= 0 then
            return nil, "timeout"
        end
        socket:settimeout(math.ceil(remaining_ms)) -- 0 would mean nginx's default
        return step(socket, ...)
    end
    local function exchange(request)
        local sent, problem = with_remaining_time(socket.send, Limits.encode(request))
        if not sent then
            return nil, problem
        end
        return Limits.read_reply(with_remaining_time, socket)
    end

    local connected, problem = with_remaining_time(socket.connect, self.host, self.port, { pool = self.pool })
    if not connected then
        return nil, problem
    end
    if self.password and socket:getreusedtimes() == 0 then
        local auth_reply, auth_problem = exchange({ "AUTH", self.user, self.password })
        if not auth_reply or auth_reply.problem then
            socket:close()
            return auth_reply, auth_problem
        end
    end
    local reply
    reply, problem = exchange(words)
    -- A connection with an outstanding reply is closed, because the next call would read that reply.
    if reply == nil then
        socket:close()
    else
        socket:setkeepalive(self.idle_ms, self.pool_size)
    end
    return reply, problem
end

-- The required part of the protocol, because Debian has no lua-resty-redis: calls are arrays of strings,
-- replies are integers, arrays of integers, errors and OK.
function Limits.encode(words)
    local parts = { "*" .. #words .. "\r\n" }
    for _, word in ipairs(words) do
        parts[#parts + 1] = "$" .. #word .. "\r\n" .. word .. "\r\n"
    end
    return parts
end

function Limits.read_reply(with_remaining_time, socket)
    local line, problem = with_remaining_time(socket.receive)
    if not line then
        return nil, problem
    end
    local kind, rest = line:sub(1, 1), line:sub(2)
    if kind == ":" then
        return tonumber(rest)
    elseif kind == "-" then
        return { problem = rest }
    elseif kind == "+" then
        return {}
    elseif kind ~= "*" then
        return nil, "unexpected reply: " .. line
    end
    local items = {}
    for index = 1, tonumber(rest) do
        items[index], problem = Limits.read_reply(with_remaining_time, socket)
        if items[index] == nil then
            return nil, problem
        end
    end
    return items
end

return Limits
