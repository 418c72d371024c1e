"""Reads cases from standard input, and prints whether the package from PyPI accepts each."""

import json
import sys

from standardwebhooks import Webhook, WebhookVerificationError


def accepts(case):
    try:
        Webhook(case["secret"]).verify(case["body"], case["headers"])
    except WebhookVerificationError:
        return False
    return True


print(json.dumps([accepts(case) for case in json.load(sys.stdin)]))
