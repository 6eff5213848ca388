-- Asks the gateway whether a request may pass. Without an answer it passes.
core.register_action("ratelimit", { "http-req" }, function(txn)
    local answer = core.httpclient():get({
        url = "http://127.0.0.1:8080/check",
        headers = {
            ["x-forwarded-for"] = { txn.sf:src() },
            ["x-forwarded-method"] = { txn.sf:method() },
            ["x-forwarded-uri"] = { txn.sf:pathq() },
        },
        timeout = 1000,
    })
    if not answer or not answer.headers then return end
    local function first(name) return answer.headers[name] and answer.headers[name][0] end
    txn:set_var("txn.ratelimit_status", answer.status)
    txn:set_var("txn.ratelimit_body", answer.body or "")
    txn:set_var("txn.ratelimit_retry", first("retry-after") or "")
    if first("ratelimit") then txn:set_var("txn.ratelimit", first("ratelimit")) end
end, 0)
