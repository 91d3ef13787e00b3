"""Addresses that nobody calls unasked: judged by network, and held against what Python knows of them."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from postroom.carriers.webhook_address import closed_kind


@pytest.mark.parametrize(
    ("address", "kind"),
    [
        ("127.0.0.1", "loopback"),
        ("127.255.255.254", "loopback"),
        ("0.0.0.0", "unspecified"),
        ("10.1.2.3", "private"),
        ("172.16.0.1", "private"),
        ("172.31.255.255", "private"),
        ("192.168.1.1", "private"),
        ("169.254.169.254", "link-local"),
        ("100.64.0.1", "shared (carrier-grade NAT)"),
        ("100.127.255.255", "shared (carrier-grade NAT)"),
        ("224.0.0.1", "multicast"),
        ("255.255.255.255", "reserved"),
        ("::", "unspecified"),
        ("::1", "loopback"),
        ("::ffff:8.8.8.8", "IPv4-mapped"),
        ("::ffff:127.0.0.1", "IPv4-mapped"),
        ("::127.0.0.1", "reserved"),
        ("64:ff9b::7f00:1", "NAT64"),
        ("64:ff9b:1::1", "NAT64"),
        ("2002:7f00:1::", "6to4"),
        ("2001:0:1::", "reserved"),
        ("fe80::1", "link-local"),
        ("fe80::1%eth0", "link-local"),
        ("fec0::1", "site-local"),
        ("fd00:ec2::254", "private"),
        ("ff02::1", "multicast"),
        ("localhost", "unreadable"),
        ("", "unreadable"),
        ("0x7f.1", "unreadable"),
        ("8.8.8.8", None),
        ("172.15.255.255", None),
        ("172.32.0.0", None),
        ("100.63.255.255", None),
        ("100.128.0.0", None),
        ("2606:4700:4700::1111", None),
        ("2a00:1450:4001::1", None),
    ],
)
def test_each_kind_has_its_word(address: str, kind: str | None) -> None:
    assert closed_kind(address) == kind


ADDRESSES = st.one_of(
    st.integers(0, 2**32 - 1).map(IPv4Address),
    st.integers(0, 2**128 - 1).map(IPv6Address),
    st.integers(0x2000 << 112, (0x4000 << 112) - 1).map(IPv6Address),
)


@given(ADDRESSES)
@example(ip_address("192.0.0.9"))
@example(ip_address("2001:1::1"))
def test_whatever_python_calls_closed_is_closed(address: IPv4Address | IPv6Address) -> None:
    closed = closed_kind(str(address))
    if (
        not address.is_global
        or address.is_private
        or address.is_loopback
        or address.is_link_local
        or address.is_multicast
        or address.is_unspecified
        or address.is_reserved
    ):
        assert closed is not None
    if closed is None:
        assert address.is_global


@given(st.integers(0, 2**32 - 1), st.sampled_from([0xFFFF << 32, 0, 0x64FF9B << 96, (0x64FF9B << 96) + (1 << 80)]))
def test_no_ipv4_address_is_reached_in_disguise(inner: int, prefix: int) -> None:
    assert closed_kind(str(IPv6Address(prefix + inner))) is not None


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**80 - 1))
def test_nor_through_a_tunnel(inner: int, rest: int) -> None:
    assert closed_kind(str(IPv6Address((0x2002 << 112) + (inner << 80) + rest))) == "6to4"


@given(st.text(max_size=60))
def test_whatever_it_is_given_it_answers(text: str) -> None:
    assert closed_kind(text) is None or isinstance(closed_kind(text), str)
