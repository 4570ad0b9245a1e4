"""Settings: the only package that reads settings files and environment variables."""

from stayfast.core.setting import Secret
from stayfast.settings.checks import advice, unusable, why_not_embedded
from stayfast.settings.environment import environment, overrides
from stayfast.settings.load import BUILT_IN, SettingsText, find, load
from stayfast.settings.model import Defaults, LogSettings, MetricsSettings, RouteSettings, Settings, TracingSettings
from stayfast.settings.problems import Problem, SettingsError
from stayfast.settings.upstreams import AddedUpstream, EmbeddedUpstream, HttpUpstream, TurnUpstreamSettings, Upstream
from stayfast.settings.yaml_nodes import Override

__all__ = ["BUILT_IN", "AddedUpstream", "Defaults", "EmbeddedUpstream", "HttpUpstream", "LogSettings", "MetricsSettings",
           "Override",
           "Problem", "RouteSettings", "Secret", "Settings", "SettingsError", "SettingsText", "TracingSettings",
           "TurnUpstreamSettings", "Upstream",
           "advice", "environment", "find", "load", "overrides", "unusable", "why_not_embedded"]
