"""Settings: the only package that reads settings files and environment variables."""

from stayfast.core.setting import Secret
from stayfast.settings.added_kinds import AddedStore, AddedUpstream
from stayfast.settings.consistency import embedded_engine_problem, find_unusable_files, find_warnings
from stayfast.settings.environment import overrides_from, read_environment
from stayfast.settings.load import BUILT_IN, SettingsText, load_settings, read_settings_file
from stayfast.settings.model import Defaults, LogSettings, MetricsSettings, RouteSettings, Settings, TracingSettings
from stayfast.settings.problems import Problem, SettingsError
from stayfast.settings.upstreams import (
           EmbeddedUpstream,
           EncoderUpstreamSettings,
           HttpUpstream,
           TurnUpstreamSettings,
           Upstream,
)
from stayfast.settings.yaml_nodes import Override

__all__ = ["BUILT_IN", "AddedStore", "AddedUpstream", "Defaults", "EmbeddedUpstream", "EncoderUpstreamSettings",
           "HttpUpstream", "LogSettings",
           "MetricsSettings", "Override", "Problem", "RouteSettings", "Secret", "Settings", "SettingsError",
           "SettingsText", "TracingSettings", "TurnUpstreamSettings", "Upstream", "embedded_engine_problem",
           "find_unusable_files", "find_warnings", "load_settings", "overrides_from", "read_environment",
           "read_settings_file"]
