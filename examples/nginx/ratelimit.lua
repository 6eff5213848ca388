-- Asks a Redis or Valkey server with redis-ratelimit about each request, before nginx passes it on.
--
--     init_by_lua_block   { limits = require("ratelimit").new { redis = "redis://10.0.0.7" } }
--     access_by_lua_block { limits:check { by = "address", whose = limits.network(), policies = { "anonymous" } } }
--
-- What is allowed is on the server, as policies. nginx.conf, beside this file, is a whole configuration.

local Limits = {}
Limits.__index = Limits

-- What a policy with all its limits in the shadow says: there is no limit to tell of.
local NO_LIMIT = 1000000000000

-- Whether a request passes that nobody decided, since the server was away or refused the call.
local PASSES = { open = true, closed = false }

--- For all workers; to be called once, in init_by_lua.
--
-- @param settings a table, all of it optional:
--   redis       redis://[[user]:password@]host[:port]. A host by its name needs nginx's `resolver`.
--   timeout_ms  how long a decision may take, with connecting: 100. After that nobody decided.
--   pool_size   idle connections that each worker keeps: 32.
--   idle_ms     for how long it keeps one: 60000.
--   failures    after so many calls in a row without a reply: 5 ...
--   pause_ms    ... a worker makes none for so long, then one, and if that has a reply all again: 1000.
--   on_outage   "open" (default) lets a request pass that nobody decided; "closed" answers 503.
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
        -- Of this worker: each finds out by itself.
        failed = 0,
        asks_again_at = 0,
        tells_again_at = 0,
    }
    self.pool = self.user .. "@" .. host .. ":" .. self.port
    assert(PASSES[self.on_outage] ~= nil, "on_outage is neither open nor closed: " .. self.on_outage)
    return setmetatable(self, Limits)
end

--- Charges a request, or answers it: 429 if it is denied, 503 if nobody decided and it fails closed.
--
-- A request is charged once, although nginx comes here again when it sends one on to another URI
-- by itself (index, error_page, try_files).
--
-- @param limit a table:
--   by         what kind of limit it is, such as "customer": in keys, and in what clients are told.
--   whose      who is limited; as proved by authentication, or an address.
--   policies   names of policies. The first that exists on the server rules.
--   cost       units: 1.
--   fields     false: clients are told of a denial only, and the call is cheaper (RL.DELAY).
--   on_outage  if it is another than in the settings.
function Limits:check(limit)
    if assert(ngx.var.ratelimit, "nginx.conf has no $ratelimit") ~= "" then
        return
    end
    ngx.var.ratelimit = "asked"
    local on_outage = limit.on_outage or self.on_outage
    local passes = PASSES[on_outage]
    assert(passes ~= nil, "on_outage is neither open nor closed: " .. on_outage)

    local words = { limit.fields == false and "RL.DELAY" or "RL.LIMIT", "rl:" .. limit.by .. ":" .. limit.whose }
    for n, policy in ipairs(limit.policies) do
        if n > 1 then
            words[#words + 1] = "OR"
        end
        words[#words + 1] = policy
    end
    if limit.cost then
        words[#words + 1] = "COST"
        words[#words + 1] = tostring(limit.cost)
    end

    local reply = self:ask(words)
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
        self.tell(limit.by, reply)
    else
        allowed, wait_ms = reply == 0, reply
    end
    if allowed then
        ngx.var.ratelimit = "admitted"
        -- Its turn in a leaky bucket.
        if wait_ms > 0 then
            ngx.sleep(wait_ms / 1000)
        end
        return
    end
    ngx.var.ratelimit = "denied"
    -- A wait of -1 is for ever: this costs more than the limit, and no retry will help.
    if wait_ms >= 0 then
        ngx.header["Retry-After"] = math.ceil(wait_ms / 1000)
    end
    return ngx.exit(ngx.HTTP_TOO_MANY_REQUESTS)
end

--- The network that a client comes from, as text. An IPv6 user has a whole /64 to come from, and an
-- IPv4 address may be written as an IPv6 one.
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

-- X-RateLimit-*, which many clients know, in seconds from now; RateLimit and RateLimit-Policy as
-- draft-ietf-httpapi-ratelimit-headers-10 has them. Of several limits in the policy the reply is
-- that of the one that governs.
function Limits.tell(name, reply)
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
    local till = until_ms >= 0 and (";t=%d"):format(math.ceil(until_ms / 1000)) or ""
    header["RateLimit"] = ('"%s";r=%d%s'):format(name, remaining, till)
end

-- The reply to a call, or nil if nobody decided. No call is sent again: it could charge twice.
function Limits:ask(words)
    local away = self.failed >= self.failures
    if away then
        if ngx.now() < self.asks_again_at then
            return nil
        end
        -- One request tries; the others go on meanwhile.
        self.asks_again_at = ngx.now() + self.pause_ms / 1000
    end
    local reply, problem = self:call(words)
    if reply == nil then
        self.failed = self.failed + 1
        self.asks_again_at = ngx.now() + self.pause_ms / 1000
        ngx.log(ngx.ERR, "Redis is away: ", problem)
        return nil
    end
    if away then
        ngx.log(ngx.WARN, "Redis is back")
    end
    self.failed = 0
    -- An error that the server sent, such as NOPOLICY, is no reason to stop asking: it came at once.
    if type(reply) == "table" and reply.problem then
        if ngx.now() >= self.tells_again_at then
            self.tells_again_at = ngx.now() + 1
            ngx.log(ngx.ERR, "Redis refuses ", words[1], ": ", reply.problem)
        end
        return nil
    end
    return reply
end

-- The reply to a call, or nil and why there is none, after timeout_ms at the latest.
function Limits:call(words)
    local deadline = ngx.now() * 1000 + self.timeout_ms
    local socket = ngx.socket.tcp()
    -- Each step of a call has the time that those before it have left.
    local function in_time(step, ...)
        local left = deadline - ngx.now() * 1000
        if left <= 0 then
            return nil, "timeout"
        end
        socket:settimeout(math.ceil(left)) -- less than 1 would mean nginx's own
        return step(socket, ...)
    end
    local function exchange(request)
        local sent, problem = in_time(socket.send, Limits.encoded(request))
        if not sent then
            return nil, problem
        end
        return Limits.read(in_time, socket)
    end

    local connected, problem = in_time(socket.connect, self.host, self.port, { pool = self.pool })
    if not connected then
        return nil, problem
    end
    if self.password and socket:getreusedtimes() == 0 then
        local welcome, why = exchange({ "AUTH", self.user, self.password })
        if not welcome or welcome.problem then
            socket:close()
            return welcome, why
        end
    end
    local reply
    reply, problem = exchange(words)
    -- One that still owes a reply must not be used again: the next caller would take it for theirs.
    if reply == nil then
        socket:close()
    else
        socket:setkeepalive(self.idle_ms, self.pool_size)
    end
    return reply, problem
end

-- Debian has no lua-resty-redis, and all that is needed of the protocol is this: calls are arrays
-- of texts, replies are integers, arrays of integers, errors and OK.
function Limits.encoded(words)
    local parts = { "*" .. #words .. "\r\n" }
    for _, word in ipairs(words) do
        parts[#parts + 1] = "$" .. #word .. "\r\n" .. word .. "\r\n"
    end
    return parts
end

function Limits.read(in_time, socket)
    local line, problem = in_time(socket.receive)
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
        return nil, "not what a server with redis-ratelimit replies: " .. line
    end
    local items = {}
    for n = 1, tonumber(rest) do
        items[n], problem = Limits.read(in_time, socket)
        if items[n] == nil then
            return nil, problem
        end
    end
    return items
end

return Limits
