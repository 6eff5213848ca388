"""Login with a few attempts per minute, and a ban for repeated denials."""

from hmac import compare_digest

from fastapi import APIRouter, HTTPException, Request
from pydantic import BaseModel, Field
from redis_ratelimit import Ban, Sliding
from redis_ratelimit.asgi import address
from starlette.responses import JSONResponse, Response
from tenants import denial, key_of

# Per account and address: many people may share an address, and attempts from other addresses must
# not lock out the owner of the account.
LIMIT = Sliding(5, "1m", name="login")
# The third denied attempt within ten minutes bans for an hour, even with the right password.
BAN = Ban(3, "10m", "1h")

# Placeholder for a user database, which would store only hashes of passwords.
ACCOUNTS = {"alice": ("correct horse battery staple", "alice-key")}

router = APIRouter()


class Credentials(BaseModel):
    # Part of a key, therefore bounded.
    account: str = Field(max_length=64)
    password: str = Field(max_length=1024)


@router.post("/login")
async def login(credentials: Credentials, request: Request) -> Response:
    # One tenant for all logins, because the user is not known yet.
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
