-- Asks the gateway about each request. Requests pass while the gateway does not respond.
local gateway = "http://127.0.0.1:8080/check"
-- Timeout in milliseconds, longer than the gateway's own --timeout.
local timeout = 250
-- Request headers that belong to one connection.
local hop_by_hop = {
    ["connection"] = true, ["content-length"] = true, ["expect"] = true, ["host"] = true, ["keep-alive"] = true,
    ["proxy-connection"] = true, ["te"] = true, ["trailer"] = true, ["transfer-encoding"] = true, ["upgrade"] = true,
}

core.register_action("ratelimit", { "http-req" }, function(txn)
    local headers = {}
    for name, values in pairs(txn.http:req_get_headers()) do
        if not hop_by_hop[name] then headers[name] = values end
    end
    headers["x-forwarded-for"] = { txn.sf:src() }
    headers["x-forwarded-method"] = { txn.sf:method() }
    headers["x-forwarded-uri"] = { txn.sf:pathq() }
    local answer = core.httpclient():get({ url = gateway, headers = headers, timeout = timeout })
    if not answer then return end
    local function first(name) return answer.headers and answer.headers[name] and answer.headers[name][0] end
    local status = answer.status or 0
    if status >= 200 and status < 300 then
        if first("ratelimit") then
            txn:set_var("txn.ratelimit", first("ratelimit"))
            txn:set_var("txn.ratelimit_policy", first("ratelimit-policy"))
        end
        return
    end
    -- Without a response of the gateway, HAProxy creates a response itself, which has no Retry-After.
    local unanswered = status == 0 or status >= 502 and status <= 504 and not first("retry-after")
    if unanswered then return end
    local reply = txn:reply({ status = status, body = answer.body })
    for _, name in ipairs({ "content-type", "retry-after", "ratelimit", "ratelimit-policy" }) do
        if first(name) then reply:add_header(name, first(name)) end
    end
    txn:done(reply)
end, 0)
