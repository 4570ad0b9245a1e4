"""The rule files for Prometheus and sloth."""

from collections.abc import Mapping
from typing import Any

import yaml

from stayfast.observe.alerts.rules import AlertsConfig, Group, latency_group
from stayfast.observe.alerts.slo_alerts import SloRules, slo_rules
from stayfast.observe.alerts.symptom_alerts import symptom_groups
from stayfast.observe.alerts.target_alerts import target_groups
from stayfast.policy.slo import Slo

HEAD = """\
# Written by `stayfast alerts` from the settings: change these, not this file.
# Thresholds and actions: docs/alerts.md.
"""


class _Dumper(yaml.SafeDumper):
    """Multi-line queries as blocks, no aliases: readable."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def all_groups(slos: Mapping[str, Slo], config: AlertsConfig) -> list[Group]:
    """All groups of rules. `slos`: by route."""
    return [latency_group(), *(group for promise in slo_rules(slos, config) for group in promise.groups()),
            *target_groups(slos, config), *symptom_groups(config)]


def prometheus_rules(slos: Mapping[str, Slo], config: AlertsConfig) -> str:
    """A file for Prometheus's `rule_files`."""
    return HEAD + _yaml({"groups": [group.to_yaml_dict(config.runbook) for group in all_groups(slos, config)
                                    if group.rules]})


def sloth_specification(slos: Mapping[str, Slo], config: AlertsConfig) -> str:
    """A specification for `sloth_specification generate`, with the SLOs only."""
    return HEAD + _yaml({
        "version": "prometheus/v1", "service": "stayfast",
        "slos": [_sloth(promise, config) for promise in slo_rules(slos, config)],
    })


def _sloth(promise: SloRules, config: AlertsConfig) -> dict[str, Any]:
    objective = promise.objective
    window = "{{.window}}"
    return {
        "name": promise.name, "objective": round(objective.share * 100, 6),
        "description": f"{objective.name} of route {promise.route}",
        "labels": {"route": promise.route, "slo": objective.name},
        "sli": {"events": {"error_query": promise.bad_rate(window), "total_query": promise.counted_rate(window)}},
        "alerting": {
            "name": "StayfastBudgetBurn",
            "annotations": {"runbook_url": f"{config.runbook}#stayfastbudgetburnpage"},
            "page_alert": {"labels": {"severity": "page"}}, "ticket_alert": {"labels": {"severity": "ticket"}},
        },
    }


def _yaml(document: Any) -> str:
    return yaml.dump(document, Dumper=_Dumper, sort_keys=False, width=10_000, allow_unicode=True)
