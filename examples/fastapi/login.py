"""Logging in: a few tries a minute, and whoever goes on guessing is banned."""

from hmac import compare_digest

from fastapi import APIRouter, HTTPException, Request
from pydantic import BaseModel, Field
from redis_ratelimit import Ban, Sliding
from redis_ratelimit.asgi import address
from starlette.responses import JSONResponse, Response
from tenants import denial, key_of

# Of one account and from one address: behind an address may be a thousand people, and whoever
# guesses from elsewhere must not lock the account's owner out.
LIMIT = Sliding(5, "1m", name="login")
# The third try within ten minutes that is denied bans for an hour, the right password too.
BAN = Ban(3, "10m", "1h")

# Stands for whatever knows passwords, and knows them only as hashes.
ACCOUNTS = {"alice": ("correct horse battery staple", "alice-key")}

router = APIRouter()


class Credentials(BaseModel):
    # It becomes part of a key.
    account: str = Field(max_length=64)
    password: str = Field(max_length=1024)


@router.post("/login")
async def login(credentials: Credentials, request: Request) -> Response:
    # One tenant for all, since who it is is not known yet.
    ip = address(request.scope) or "unknown"
    caller = {"tenant": "public", "account": credentials.account, "ip": ip}
    key = key_of("login:{account}:{ip}", caller)
    decision = await request.app.state.limiter.take(key, LIMIT, ban=BAN)
    if not decision:
        return denial(decision)
    password, api_key = ACCOUNTS.get(credentials.account, ("", ""))
    if not (api_key and compare_digest(credentials.password.encode(), password.encode())):
        raise HTTPException(401, "wrong account or password")
    return JSONResponse({"api_key": api_key})
