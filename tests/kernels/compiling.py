"""Compile kernels for GPUs that are not there, and read what they need. Run as a program: JSON in, JSON out.

It has a process of its own, because with TRITON_INTERPRET=1 a kernel is no source that can be compiled.
"""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

POINTERS = {
    "query": "", "key": "", "value": "", "weight": "", "outputs": "", "stream": "", "groups": "*u8",
    **dict.fromkeys(["mean", "squared", "count", "table", "places", "least", "targets", "results"], "*fp32"),
    **dict.fromkeys(["means", "lses", "counts", "moved", "random", "sums", "out"], "*fp32"),
}  # fmt: skip
"""Without a type: that of the model."""
FLOATS = {"scale", "softcap", "limit"}
ONES = {"query_dim", "key_dim", "value_dim", "group_step", "weight_column"}
"""Strides that are 1 in a model: Triton compiles for the constant."""
STEPS = {"query_row", "query_head", "key_row", "key_head", "key_step", "value_row", "value_head", "value_step"}
"""Strides that are multiples of 16, which Triton is told."""


def compiled(job: dict[str, Any]) -> dict[str, int]:
    """Registers, bytes of spills and shared memory of one kernel: module, kernel, dtype, constants, warps, stages."""
    import importlib

    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kernel = getattr(importlib.import_module(job["module"]), job["kernel"])
    signature, constants, attributes = {}, {}, {}
    for index, name in enumerate(inspect.signature(kernel.fn).parameters):
        if name in job["constants"] or name in ONES:
            signature[name] = "constexpr"
            constants[(index,)] = job["constants"].get(name, 1)
            continue
        assert not name.isupper(), f"{job['kernel']} needs {name}"
        pointer = POINTERS.get(name)
        other = "fp32" if name in FLOATS else "i32"
        signature[name] = other if pointer is None else pointer or f"*{job['dtype']}"
        if pointer is not None or name in STEPS:
            attributes[(index,)] = [["tt.divisibility", 16]]
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=attributes)
    options = {"num_warps": job["warps"], "num_stages": job["stages"], "enable_fp_fusion": True}
    made = triton.compile(source, target=GPUTarget("cuda", job["capability"], 32), options=options)
    return {**resources(made.asm["cubin"]), "shared": made.metadata.shared}


def resources(binary: bytes) -> dict[str, int]:
    """Registers per thread and bytes of stack, where spilled registers go, from the tool that Triton brings."""
    import triton

    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile("wb", suffix=".cubin") as file:
        file.write(binary)
        file.flush()
        command = [str(tool), "--dump-resource-usage", file.name]
        told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+) .*LOCAL:(\d+)", told)
    assert found is not None, told
    return {"registers": int(found[1]), "spills": int(found[2]) + int(found[3])}


if __name__ == "__main__":
    print(json.dumps([compiled(job) for job in json.load(sys.stdin)]))
