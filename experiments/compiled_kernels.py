"""What would a GPU run of each Triton kernel: how many registers, spills, instructions, and bytes per access?

Each kernel is compiled as its caller launches it, with the caller's tiles and options, by the installed Triton and the
assembler that comes with it, for GPUs that need not be there, and the machine code is read. Nothing runs: this is no
measurement, and says nothing of time.

The committed data is of Triton 3.6, which torch 2.11 for CUDA brings; another version makes other code. Device: cpu.
"""

import ast
import hashlib
import os
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any
from unittest import mock

import triton
from rich.table import Table
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from ampsim import _triton
from ampsim.probe import kernels as probe
from ampsim.records import Record
from ampsim.torch.gradients import adam, kernels, kernels_adam
from experiments import runner
from experiments.runner.provenance import essence

DEVICES = ("cpu",)
REQUIRES = ("triton",)
DTYPES = ("float32", "float16", "bfloat16")
TOOL = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
ACCESSES = {"LDG": "loads", "STG": "stores"}  # of machine code
WIDE = 16  # bytes; narrower accesses are of a tensor's last tile, and of tables
COMBINED = 4096  # tiles that `_combine` adds at once

TYPES = {
    "tiles": "*i32", "table": "*i64", "tensors": "*i64", "counts": "*i64", "done": "*i32", "tracker": "*i32",
    "counted": "*i32", "number": "i32", "interval": "i32",
    **dict.fromkeys(("factor", "found", "found_inf", "divisor", "scale", "current", "powers1", "powers2"), "*fp32"),
}  # fmt: skip  # of arguments; those that are not named here are float32
ALIGNED = {"tiles", "table", "tensors", "counts", "partials", "powers1", "powers2"}  # memory of their own, aligned


@dataclass(frozen=True)
class Kernel:
    """A kernel with what its caller passes beside tensors: AdamW with decay, a clip by a number, torch's update."""

    module: Any
    elements: int  # of a tile, or what one program of `adam` steps
    options: Mapping[str, Any]
    constants: Mapping[str, Any]
    partials: str = "*fp32"
    dtypes: tuple[str, ...] = DTYPES


BLOCK, PART = kernels.BLOCK, adam.PART
UPDATE = {"BOUND": "number", "PARTS": adam.PARTS, "GROWTH": 2.0, "BACKOFF": 0.5, "LOW": 2.0**-126, "HIGH": None}
ADAMW = {"DECAYS": True, "DECOUPLED": True, "MAXIMIZE": False, "PART": PART}
KERNELS = {
    "check": Kernel(kernels_adam, BLOCK, kernels.OPTIONS, {**UPDATE, "BLOCK": BLOCK}, "*fp64"),
    "adam": Kernel(kernels_adam, PART, adam.STEP_OPTIONS, {**ADAMW, "BLOCK": BLOCK}),
    "_read": Kernel(kernels, BLOCK, kernels.OPTIONS, {"BLOCK": BLOCK}),
    "_multiply": Kernel(kernels, BLOCK, kernels.MULTIPLY_OPTIONS, {"BLOCK": BLOCK}),
    "_combine": Kernel(kernels, COMBINED, kernels.OPTIONS, {"BLOCK": COMBINED}, dtypes=("float32",)),
    "_count": Kernel(probe, probe.BLOCK, probe.OPTIONS, {"TENSORS": 256, "BLOCK": probe.BLOCK}),
}


@dataclass(frozen=True)
class Config(runner.Config):
    steps: int = 1  # a kernel is compiled once
    seeds: tuple[int, ...] = (0,)  # nothing is drawn
    kernels: Annotated[tuple[str, ...], runner.one_of(KERNELS)] = tuple(KERNELS)
    capabilities: Annotated[tuple[str, ...], runner.one_of(("80", "90", "100"))] = ("80", "90", "100")


SMOKE = Config(kernels=("_combine",), capabilities=("90",))


@dataclass(frozen=True)
class Arm:
    """One kernel for gradients of one dtype and GPUs of one compute capability, 90 for 9.0."""

    kernel: str
    dtype: str
    capability: int


def arms(config: Config) -> Mapping[str, Arm]:
    """Return kernel x dtype x capability."""
    made = [(name, dtype) for name in config.kernels for dtype in KERNELS[name].dtypes]
    return {f"{name} {dtype} sm_{of}": Arm(name, dtype, int(of)) for name, dtype in made for of in config.capabilities}


def inputs() -> dict[str, str]:
    """Return the sha256 of each module with kernels, without its comments and docstrings."""
    files = [Path(str(module.__file__)) for module in (kernels, kernels_adam, probe)]
    texts = {f"{file.parent.name}/{file.name}": essence(ast.parse(file.read_bytes())) for file in files}
    return {name: hashlib.sha256(text.encode()).hexdigest() for name, text in texts.items()}


def run(config: Config, arm: Arm, seed: int, device: str, tick: Callable[[int], None]) -> Record:
    """Compile one kernel and read its code; the columns are explained in `data/README.md`."""
    kernel = KERNELS[arm.kernel]
    made = compiled(kernel, arm)
    cubin = made.asm["cubin"]
    used = dict(re.findall(r"(REG|STACK|LOCAL):(\d+)", told("--dump-resource-usage", cubin)))
    code = re.findall(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?\w+\s+)?([A-Z][\w.]*)", told("-sass", cubin))
    code = [instruction for instruction in code if instruction != "NOP"]  # fill the end
    moved = {name: Counter(width(each) for each in code if each.startswith(name)) for name in ("LDG", "STG")}
    tick(1)
    return {
        "triton": triton.__version__,
        "warps": kernel.options["num_warps"],
        "elements": kernel.elements,
        "registers": int(used["REG"]),
        "spilled": int(used["STACK"]) + int(used["LOCAL"]),
        "shared": made.metadata.shared,
        "occupancy": occupancy(int(used["REG"]), kernel.options["num_warps"]),
        "instructions": len(code),
        **{names: {str(k): moved[name][k] for k in sorted(moved[name])} for name, names in ACCESSES.items()},
        "words": {names: words(moved[name], kernel) for name, names in ACCESSES.items()},
    }


def compiled(kernel: Kernel, arm: Arm) -> Any:
    """Return what Triton makes of a kernel; its cache is an empty one."""
    function = getattr(kernel.module, arm.kernel)
    given = {"dtype": getattr(_triton.tl, arm.dtype), **kernel.constants}
    constants = {name: value for name, value in given.items() if name in function.arg_names}
    types = TYPES | {"partials": kernel.partials} | dict.fromkeys(constants, "constexpr")
    signature = {name: types.get(name, "fp32") for name in function.arg_names}
    aligned = {(i,): [["tt.divisibility", 16]] for i, name in enumerate(function.arg_names) if name in ALIGNED}
    source, target = ASTSource(function, signature, constants, aligned), GPUTarget("cuda", arm.capability, 32)
    with tempfile.TemporaryDirectory() as cache, mock.patch.dict(os.environ, TRITON_CACHE_DIR=cache):
        return triton.compile(source, target=target, options=dict(kernel.options))


def told(option: str, cubin: bytes) -> str:
    """Return what `cuobjdump` of Triton's package says of machine code."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(TOOL), option, file.name]
        said: str = subprocess.run(command, capture_output=True, text=True, check=True).stdout  # noqa: S603
    return said


def occupancy(registers: int, warps: int) -> float:
    """Return the share of a multiprocessor's 64 warps that run at once, by their registers alone."""
    taken = -(-registers // 8) * 8 * 32 * warps  # of 65,536, in blocks of 256 per warp
    return warps * min(64 // warps, 32, 2**16 // taken) / 64


def width(instruction: str) -> int:
    """Return the bytes that a thread's access to the GPU's memory moves, as its name says."""
    bits = re.search(r"\.(?:[US]?(8|16)|(64|128|256))(?:\.|$)", instruction)
    return int(bits[1] or bits[2]) // 8 if bits else 4


def words(accesses: Mapping[int, int], kernel: Kernel) -> float:
    """Return the numbers of 4 bytes per element that accesses of 16 bytes move: those of whole tiles."""
    wide = sum(each * count for each, count in accesses.items() if each >= WIDE)
    return wide * 32 * int(kernel.options["num_warps"]) / kernel.elements / 4


def table(rows: Sequence[Record]) -> Table:
    """Return one line per kernel: what its code needs and moves."""
    shown = Table("kernel", "registers", "spilled", "shared", "occupancy", "instructions", "words read", "written")
    for row in rows:
        cells = (row[name] for name in ("registers", "spilled", "shared", "occupancy", "instructions"))
        shown.add_row(row["arm"], *map(str, cells), *(f"{each:g}" for each in row["words"].values()))
    return shown


if __name__ == "__main__":
    raise SystemExit(runner.main("compiled_kernels"))
