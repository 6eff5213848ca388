"""Django settings of the tests, which a process can configure only once."""

import django
from django.conf import settings

settings.configure(
    SECRET_KEY="tests",
    ALLOWED_HOSTS=["*"],
    INSTALLED_APPS=["django.contrib.auth", "django.contrib.contenttypes", "rest_framework"],
    MIDDLEWARE=["redis_ratelimit.django.RateLimitMiddleware"],
    REST_FRAMEWORK={
        "DEFAULT_THROTTLE_RATES": {"user": "2/min", "anon": "1/min", "exports": "1/hour"},
        "UNAUTHENTICATED_USER": None,
    },
)
django.setup()
