"""`heal speed --count`, `--predict` and `--growth`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from heal.cli.output import Format, Table, emit, emit_csv, note, say, show
from heal.errors import ConfigError

if TYPE_CHECKING:
    import torch

    from heal.cost_model import Device
    from heal.launches import Launches, Subject
    from heal.methods.heal import HEAL


def subject(preset: str | None, layers: int, batch: int, dtype: torch.dtype, device: str = "cpu") -> Subject:
    """The embedded model, or the random model of a preset."""
    from heal.launches import embedded_subject, random_subject

    if preset is None:
        return embedded_subject(batch, device)
    return random_subject(preset, layers, batch, dtype, device)


def count(method: HEAL, on: Subject, output: Format) -> None:
    from heal.launches import count as measured

    found = measured(on, method, progress=note)
    if output is Format.json:
        emit(found.to_dict())
    elif output is Format.csv:
        emit_csv(count_rows(found))
    else:
        _print_counts(found, output)


def count_rows(found: Launches) -> list[dict[str, Any]]:
    """One row per method."""
    return [
        {
            "method": m.name,
            "launches": m.mean.launches,
            "launches_between": m.between.launches,
            "launches_refresh": m.refresh.launches,
            "waits": m.between.waits,
            "waits_extra": m.extra_waits,
            "bytes_read": m.mean.read,
            "bytes_written": m.mean.written,
        }
        for m in found.methods
    ]


def count_table(found: Launches) -> Table:
    rows = [
        (
            m.name,
            f"{m.mean.launches:.1f}",
            f"{m.between.launches:.1f}",
            f"{m.refresh.launches:.1f}" if m.name.startswith("heal") else "",
            f"{m.between.waits:.2f}",
            f"{m.extra_waits:.2f}",
            f"{(m.mean.read + m.mean.written) / 1e6:.2f}",
        )
        for m in found.methods
    ]
    headings = ("method", "launches", "between refreshes", "at a refresh", "host waits", "beyond plain", "MB moved")
    title = f"{found.model}, {found.layers} layers, batch {found.batch}, {found.dtype}, interval {found.interval}: "
    return Table(headings, rows, title + "launches per token and layer, the rest per token")


def _print_counts(found: Launches, output: Format) -> None:
    show(count_table(found), output)
    for m in found.methods:
        own = [f"{w.place} ({w.operation}, {w.extra:.2f})" for w in m.waits if w.extra > 0]
        if own:
            say(f"{m.name} waits at: {', '.join(own)}")
    for m in found.methods:
        if m.name.startswith(("plain", "heal")):
            most = ", ".join(f"{name} {n:.1f}" for name, n in list(m.operations.items())[:8])
            say(f"{m.name} launches most: {most}")
    for name, reason in found.skipped.items():
        say(f"{name} was left out: {reason}")


def device(name: str, launch_us: float | None, bandwidth_gbs: float | None) -> Device:
    """A known GPU, possibly with other figures, or `custom` with both figures."""
    from heal.cost_model import DEVICES, Device

    if name == "custom":
        if launch_us is None or bandwidth_gbs is None:
            raise ConfigError("--predict custom needs --launch-us and --bandwidth-gbs")
        return Device(name, launch_us, bandwidth_gbs)
    if name not in DEVICES:
        raise ConfigError(f"unknown GPU {name!r}: choose one of {', '.join(DEVICES)}, or custom")
    known = DEVICES[name]
    return replace(
        known,
        launch_us=known.launch_us if launch_us is None else launch_us,
        bandwidth_gbs=known.bandwidth_gbs if bandwidth_gbs is None else bandwidth_gbs,
    )


def predict(on: Device, method: HEAL, output: Format) -> None:
    from heal import cost_model
    from heal.launches import count as measured
    from heal.launches import embedded_subject

    found = measured(embedded_subject(), method, progress=note, heal_only=True)
    launches = cost_model.counted({m.name: m.mean.launches for m in found.methods})
    rows = cost_model.predict(on, launches)
    if output is Format.json:
        emit({"label": cost_model.LABEL, "launches": launches, "rows": [row.to_dict() for row in rows]})
        return
    if output is Format.csv:
        emit_csv([row.to_dict() for row in rows])
        return
    cells = [
        (
            f"{row.model}, {row.path}",
            str(row.batch),
            str(row.context),
            f"{row.launch_ms:.1f}",
            f"{row.memory_ms:.1f}",
            f"{row.overlapped:.2f}",
            f"{row.serial:.2f}",
            f"{row.captured:.2f}",
        )
        for row in rows
    ]
    title = f"{on.name}, {on.launch_us:g} µs per launch, {on.bandwidth_gbs:g} GB/s, fp16: {cost_model.LABEL}"
    headings = ("model, path", "batch", "context", "launch ms", "memory ms", "overlapped", "serial", "CUDA graph")
    show(Table(headings, cells, title), output)
    say(f"{cost_model.LABEL}. The last three columns are ratios to the plain model.")


def growth(method: HEAL, threads: int, output: Format) -> None:
    from heal.growth import measure

    found = measure(method, threads=threads, progress=note)
    if output is Format.json:
        emit(found.to_dict())
        return
    if output is Format.csv:
        emit_csv([point.to_dict() for point in found.points])
        return
    cells = [
        (
            f"{p.context} × {p.batch}",
            f"{p.plain_ms:.1f}",
            f"{p.heal_ms:.1f}",
            f"{p.ratio:.3f}",
            f"{p.kv_bytes / 1e6:.1f}",
            f"{p.state_bytes / 1e6:.2f}",
            f"{p.workspace_bytes / 1e6:.2f}",
        )
        for p in found.points
    ]
    headings = ("context × batch", "plain ms", "HEAL ms", "ratio", "KV MB", "state MB", "workspace MB")
    show(Table(headings, cells, f"{found.layers} layers, {found.dtype}, random model, this machine"), output)
    for line in found.lines:
        say(f"{line.name}: {line.slope:.4g} × {line.axis} + {line.offset:.4g} ms, R² {line.r_squared:.4f}")
