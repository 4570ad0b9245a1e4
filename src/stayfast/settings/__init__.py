"""Settings: the only package that reads settings files and environment variables."""

from stayfast.core.setting import Secret
from stayfast.settings.checks import find_warnings, find_unusable_files, embedded_engine_problem
from stayfast.settings.environment import read_environment, overrides_from
from stayfast.settings.load import BUILT_IN, SettingsText, read_settings_file, load_settings
from stayfast.settings.model import Defaults, LogSettings, MetricsSettings, RouteSettings, Settings, TracingSettings
from stayfast.settings.problems import Problem, SettingsError
from stayfast.settings.upstreams import AddedUpstream, EmbeddedUpstream, HttpUpstream, TurnUpstreamSettings, Upstream
from stayfast.settings.yaml_nodes import Override

__all__ = ["BUILT_IN", "AddedUpstream", "Defaults", "EmbeddedUpstream", "HttpUpstream", "LogSettings", "MetricsSettings",
           "Override",
           "Problem", "RouteSettings", "Secret", "Settings", "SettingsError", "SettingsText", "TracingSettings",
           "TurnUpstreamSettings", "Upstream",
           "find_warnings", "read_environment", "read_settings_file", "load_settings", "overrides_from", "find_unusable_files", "embedded_engine_problem"]
