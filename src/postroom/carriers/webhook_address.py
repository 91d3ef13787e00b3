"""Addresses that a webhook may not be at unless its settings allow it: whatever is not of the public internet.

The tables are IANA's registries of special-purpose addresses, kept here so that every Python judges alike.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

_KINDS_4 = [
    ("0.0.0.0/8", "unspecified"),
    ("10.0.0.0/8", "private"),
    ("100.64.0.0/10", "shared (carrier-grade NAT)"),
    ("127.0.0.0/8", "loopback"),
    ("169.254.0.0/16", "link-local"),
    ("172.16.0.0/12", "private"),
    ("192.0.0.0/24", "reserved"),
    ("192.0.2.0/24", "documentation"),
    ("192.88.99.0/24", "reserved"),
    ("192.168.0.0/16", "private"),
    ("198.18.0.0/15", "benchmarking"),
    ("198.51.100.0/24", "documentation"),
    ("203.0.113.0/24", "documentation"),
    ("224.0.0.0/4", "multicast"),
    ("240.0.0.0/4", "reserved"),
]
_KINDS_6 = [
    ("::/128", "unspecified"),
    ("::1/128", "loopback"),
    ("::ffff:0:0/96", "IPv4-mapped"),
    ("64:ff9b::/96", "NAT64"),
    ("64:ff9b:1::/48", "NAT64"),
    ("2001::/23", "reserved"),
    ("2001:db8::/32", "documentation"),
    ("2002::/16", "6to4"),
    ("3fff::/20", "documentation"),
    ("fc00::/7", "private"),
    ("fe80::/10", "link-local"),
    ("fec0::/10", "site-local"),
    ("ff00::/8", "multicast"),
]
_TABLE_4 = [(IPv4Network(network), kind) for network, kind in _KINDS_4]
_TABLE_6 = [(IPv6Network(network), kind) for network, kind in _KINDS_6]
_GLOBAL_6 = IPv6Network("2000::/3")
"""All of IPv6 that is given out as global unicast."""


def closed_kind(address: str) -> str | None:
    """What kind of address this is that nobody calls unasked, in a word; None for one of the public internet.

    `address` is as a resolver gives it: numbers, perhaps with an IPv6 zone. What cannot be read is closed too.
    """
    try:
        parsed = ip_address(address)
    except ValueError:
        return "unreadable"
    if isinstance(parsed, IPv4Address):
        return next((kind for network, kind in _TABLE_4 if parsed in network), None)
    return _kind_6(parsed)


def _kind_6(parsed: IPv6Address) -> str | None:
    bare = IPv6Address(int(parsed))
    for network, kind in _TABLE_6:
        if bare in network:
            return kind
    return None if bare in _GLOBAL_6 else "reserved"
