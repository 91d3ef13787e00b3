"""`make vendors`: the libraries that are too heavy for the tests' environment, Stripe's and Svix's, beside the light ones."""

from __future__ import annotations

import argparse
import random
import sys
import time

from stripe import WebhookSignature
from svix.webhooks import Webhook as SvixWebhook

from tests.sources.oracles import Judge, Request, compare, github, slack, standard


def stripe() -> Judge:
    """Stripe's library; its clock is the host's, and it lets any future time in, so none is drawn."""

    def secret(dice: random.Random) -> str:
        return f"whsec_{dice.randbytes(dice.randrange(8, 40)).hex()}"

    def sign(secret: str, body: str, at_s: int, _: str) -> dict[str, str]:
        return {"stripe-signature": WebhookSignature.generate_signature_header(body, secret, at_s)}

    def judge(request: Request) -> object:
        signature = request.headers["stripe-signature"]
        return WebhookSignature.verify_header(request.body.encode(), signature, request.secret, tolerance=300)

    return Judge(
        "stripe", secret, sign, judge, signature="stripe-signature", apart_s=(0, 1, -1, 250, 400), frozen_clock=False
    )


def main() -> int:
    """Compare with each library and print what came of it; fails at the first difference."""
    options = argparse.ArgumentParser(prog="python -m tests.vendors", description=__doc__)
    options.add_argument("--cases", type=int, default=10_000, help="how many requests for each library")
    options.add_argument("--seed", type=int, default=random.randrange(2**32), help="what the requests are drawn from")
    chosen = options.parse_args()
    print(f"seed {chosen.seed}")
    judges = {
        "standardwebhooks": standard(json_parse=False),
        "svix": standard(SvixWebhook, "svix"),
        "stripe": stripe(),
        "slack_sdk": slack(),
        "gidgethub": github(),
    }
    for name, judge in judges.items():
        start = time.monotonic()
        told = compare(judge, chosen.cases, random.Random(chosen.seed))
        took = time.monotonic() - start
        print(
            f"{name:18} agrees on {told.total():,}: {told['accepted']:,} accepted, {told['refused']:,} refused ({took:.1f} s)"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
