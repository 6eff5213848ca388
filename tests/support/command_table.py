"""Metadata of each command: arity, flags and keys, with a call of each."""

# Arity, flags, and the positions of the first and the last key with the step between keys.
COMMANDS = {
    "rl.tokenbucket": (-5, {"write", "fast"}, (1, 1, 1)),
    "rl.leakybucket": (-5, {"write", "fast"}, (1, 1, 1)),
    "rl.fixed": (-4, {"write", "fast"}, (1, 1, 1)),
    "rl.sliding": (-4, {"write", "fast"}, (1, 1, 1)),
    "rl.slidinglog": (-4, {"write", "fast"}, (1, 1, 1)),
    "rl.sketch": (-6, {"write", "fast"}, (1, 1, 1)),
    "rl.take": (-3, {"write", "fast"}, (1, 1, 1)),
    "rl.peek": (-3, {"readonly", "fast"}, (1, 1, 1)),
    "rl.mtake": (-4, {"write", "movablekeys"}, (2, 2, 1)),
    "rl.mpeek": (-4, {"readonly", "movablekeys"}, (2, 2, 1)),
    "rl.limit": (-3, {"write", "fast"}, (1, 1, 1)),
    "rl.delay": (-3, {"write", "fast"}, (1, 1, 1)),
    "rl.acquire": (-5, {"write", "blocking"}, (1, 1, 1)),
    "rl.release": (-3, {"write", "fast"}, (1, 1, 1)),
    "rl.ban": (3, {"write", "fast"}, (1, 1, 1)),
    "rl.throttle": (-5, {"write", "fast"}, (1, 1, 1)),
    "rl.info": (2, {"readonly", "fast"}, (1, 1, 1)),
    "rl.top": (-1, {"loading", "stale"}, (0, 0, 0)),
    "rl.policyset": (-3, {"write"}, (0, 0, 0)),
    "rl.policyscale": (-3, {"write"}, (0, 0, 0)),
    "rl.policyget": (2, {"readonly"}, (0, 0, 0)),
    "rl.policylist": (-1, {"readonly"}, (0, 0, 0)),
    "rl.policydel": (-2, {"write"}, (0, 0, 0)),
    "rl.policyeffect": (-2, {"write"}, (0, 0, 0)),
    "rl.effect": (-3, {"write"}, (1, -1, 2)),
}

# Keys in a sample call of each command.
KEYS = {
    "RL.TOKENBUCKET a 10 1 1s COST 2": ["a"],
    "RL.LEAKYBUCKET a 10 1 1s": ["a"],
    "RL.FIXED a 10 60s ALIGNED": ["a"],
    "RL.SLIDING a 10 60s": ["a"],
    "RL.SLIDINGLOG a 10 60s": ["a"],
    "RL.SKETCH a item 10 1 1s": ["a"],
    "RL.TAKE a FIXED 10 60s": ["a"],
    "RL.PEEK a FIXED 10 60s": ["a"],
    "RL.MTAKE 2 a b FIXED 10 60s FIXED 10 60s": ["a", "b"],
    "RL.MPEEK 2 a b FIXED 10 60s FIXED 10 60s": ["a", "b"],
    "RL.LIMIT a policy OR other": ["a"],
    "RL.DELAY a policy OR other": ["a"],
    "RL.ACQUIRE a 10 60s holder": ["a"],
    "RL.RELEASE a holder other": ["a"],
    "RL.BAN a 60s": ["a"],
    "RL.THROTTLE a 10 1 60": ["a"],
    "RL.INFO a": ["a"],
    "RL.TOP COUNT 5": [],
    "RL.POLICYSET a FIXED 10 60s": [],
    "RL.POLICYSCALE a 0.5": [],
    "RL.POLICYGET a": [],
    "RL.POLICYLIST MATCH a*": [],
    "RL.POLICYDEL a b": [],
    "RL.POLICYEFFECT record": [],
    "RL.EFFECT a effect b effect": ["a", "b"],
}
# Calls without a key, which concern the entire server.
KEYLESS = {call for call, keys in KEYS.items() if not keys}
# First version of a server on which modules can document their commands.
DOCUMENTED = (7, 0)
