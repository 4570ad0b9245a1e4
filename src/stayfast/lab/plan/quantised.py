"""What a plan takes from the reports of `stayfast quantise`: memory, requests at a time, speed and losses, as measured.

Rule: a model's memory plan is made again with the bytes of the quantised weights. The change `quantise` of a log has the
smaller of both measured speed-ups, of the quickest model whose losses hold their bounds; without one, it stays assumed.
When it is wrong: the speed was measured with one request at a time on the machine of the report, which may be another one.
"""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import msgspec

from stayfast.core.units import format_digits
from stayfast.lab.plan.changes import Change
from stayfast.lab.plan.model_memory import MemoryPlan, plan_memory
from stayfast.lab.quantise.report import QuantiseReport, QuantiseVerdict
from stayfast.lab.quantise.report_text import format_bytes, format_change
from stayfast.policy.engines.sizing import ModelShape

_COLUMNS: Final = 80
_QUANTISE: Final = "quantise"


class QuantisedMemory(msgspec.Struct, frozen=True):
    """One quantised model beside the model it was made of. report: the file with all figures."""

    before: MemoryPlan
    after: MemoryPlan
    measured: QuantiseReport
    report: str

    @property
    def speed_up(self) -> float | None:
        """The smaller of both ratios, of prompts and of answers; None: not measured."""
        speed = self.measured.speed
        return None if speed is None else min(speed.prompt_ratio.value, speed.answer_ratio.value)


def plan_quantised(shape: ModelShape, reports: Mapping[Path, QuantiseReport], *, kv: str, live_tokens: float,
                   memory_bytes: float | None, bandwidth: float | None) -> list[QuantisedMemory]:
    """shape: of the model or of one that was made of it. Other parameters: those of `plan_memory`."""
    def plan(file: str, n_bytes: int) -> MemoryPlan:
        return plan_memory(replace(shape, name=file, file_bytes=n_bytes), dtype=None, kv=kv, live_tokens=live_tokens,
                           memory_bytes=memory_bytes, bandwidth=bandwidth)

    return [QuantisedMemory(plan(one.before.file, one.before.weight_bytes), plan(one.after.file, one.after.weight_bytes),
                            one, str(path)) for path, one in reports.items()]


def use_measured_speed(changes: Sequence[tuple[Change, float]],
                       found: Sequence[QuantisedMemory]) -> list[tuple[Change, float]]:
    """The changes, with the measured speed-up in the place of the assumed one. A value that the user gave stays."""
    good = [one for one in found if one.measured.verdict is QuantiseVerdict.HOLDS and one.speed_up is not None]
    best = max(good, key=lambda one: one.speed_up or 0.0, default=None)
    if best is None:
        return list(changes)
    speed_up = round(best.speed_up or 0.0, 3)
    change_to = f"weights in {best.measured.to}, {{}} times as fast"
    return [(replace(change, title=change_to, value=speed_up, source=f"measured: {Path(best.report).name}"), speed_up)
            if change.name == _QUANTISE and value == change.value else (change, value) for change, value in changes]


def format_quantised(found: Sequence[QuantisedMemory]) -> str:
    """Each quantised model as text of at most 80 columns."""
    lines = []
    for one in found:
        lines += [f"quantise to {one.measured.to}: {one.after.model}",
                  f"  weights {format_bytes(one.before.weight_bytes)} -> {format_bytes(one.after.weight_bytes)}"]
        if one.before.most_concurrent is not None:
            lines.append(f"  most requests at a time: {one.before.most_concurrent:,} -> {one.after.most_concurrent:,}")
        if one.before.tokens_per_s_alone is not None and one.after.tokens_per_s_alone is not None:
            lines.append(f"  by memory bandwidth: {format_digits(one.before.tokens_per_s_alone)} -> "
                         f"{format_digits(one.after.tokens_per_s_alone)} tokens/s for one answer")
        speed = one.measured.speed
        if speed is not None:
            ratio = speed.answer_ratio
            lines.append(f"  measured: {format_digits(speed.answer_before)} -> {format_digits(speed.answer_after)} tokens/s "
                         f"for one answer, x {ratio.value:.2f} [{ratio.low:.2f}, {ratio.high:.2f}]")
        lines += [f"  {format_change(one.measured)}", f"  source: {one.report}"]
    return "\n".join(part.rstrip() for line in lines for part in textwrap.wrap(
        line, _COLUMNS, subsequent_indent="    ", drop_whitespace=False)) + "\n"

