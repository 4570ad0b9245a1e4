"""Tracing as the settings want it: nothing at all unless they say so."""

import os
from collections.abc import Mapping
from importlib import import_module
from random import Random
from typing import cast

from stayfast import __version__
from stayfast.http.client.client import split_base_url
from stayfast.observe.log import LogSink
from stayfast.observe.trace.config import TraceConfig
from stayfast.observe.trace.names import Peer, provider_of
from stayfast.observe.trace.sink import Exporter, Tracing
from stayfast.settings import HttpUpstream, Settings


def tracing(settings: Settings, log: LogSink) -> Tracing | None:
    """Where spans are made and sent from; None: nowhere, and nothing is imported for it."""
    its = settings.tracing
    if its.exporter == "none":
        return None
    config = TraceConfig(its.endpoint, {name: value.reveal() for name, value in its.headers.items()}, its.sample,
                         its.timeout_s, its.service_name)

    def exporter() -> Exporter:
        otlp = import_module("stayfast.observe.trace.otlp")  # here: it needs packages that only an extra brings
        return cast("Exporter", otlp.OtlpExporter(config, __version__, Random(os.urandom(16))))

    def say(level: str, event: str, reason: str) -> None:
        log.say(event, level=level, error=reason or None)

    return Tracing(config, exporter, say, Random(os.urandom(16)))


def peers(settings: Settings) -> Mapping[str, Peer]:
    """Who stands behind each upstream on the network; the others are in this machine and need no address."""
    found = {}
    for name, its in settings.upstreams.items():
        if isinstance(its, HttpUpstream):
            url = split_base_url(its.base_url)
            found[name] = Peer(provider_of(its.kind, url.host), url.host, url.port)
    return found
