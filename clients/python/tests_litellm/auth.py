"""Custom authentication of the proxy, which accepts any key. A key such as sk-small-7 names its
policy.
"""

from fastapi import Request
from litellm.proxy._types import UserAPIKeyAuth


async def recognize(request: Request, api_key: str) -> UserAPIKeyAuth:  # noqa: ARG001  LiteLLM's
    _, policy, _ = api_key.split("-")
    return UserAPIKeyAuth(api_key=api_key, metadata={"ratelimit_policy": policy})
