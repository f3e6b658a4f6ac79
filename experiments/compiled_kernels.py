"""What would a GPU run of each Triton kernel: how many registers, spills, instructions, and bytes per access?

Each kernel is compiled as its caller launches it, with the caller's tiles and options, by the installed Triton and the
assembler that comes with it, for GPUs that need not be there, and the machine code is read. Nothing runs: this is no
measurement, and says nothing of time. Beside them stands torch's own fused AdamW, as its wheel for CUDA has it.

The committed data is of Triton 3.6, which torch 2.11 for CUDA brings; another version makes other code. Device: cpu.
"""

import ast
import hashlib
import json
import os
import re
import subprocess
import tempfile
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple
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
_LINE = re.compile(r"/\*([0-9a-f]{4,})\*/\s+(@!?\w+\s+)?([A-Z][\w.]*)([^;]*);")
_USED = re.compile(r"(REG|STACK|LOCAL):(\d+)")
ACCESSES = {"LDG": "loads", "STG": "stores"}  # of machine code
WIDE = 16  # bytes; narrower accesses are of a tensor's last tile, and of tables
PEER = Path(__file__).parent / "inputs" / "torch_adamw.json"  # what `read` found in torch's library

TYPES = {
    "tiles": "*i32", "table": "*i64", "state": "*i64", "tensors": "*i64", "counts": "*i64", "done": "*i32",
    "tracker": "*i32", "counted": "*i32", "number": "i32", "interval": "i32",
    **dict.fromkeys(("factor", "found", "found_inf", "divisor", "scale", "current", "powers1", "powers2"), "*fp32"),
}  # fmt: skip  # of arguments; those that are not named here are float32
ALIGNED = TYPES.keys() - {"number", "interval"} | {"partials"}  # all addresses are multiples of 16


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
UPDATE = {"BOUND": "number", "GROWTH": 2.0, "BACKOFF": 0.5, "LOW": 2.0**-126, "HIGH": None}
CHECK = {**UPDATE, "PARTS": kernels.PARTS, "BLOCK": BLOCK, "SLOT": kernels.SLOT}
ADAMW = {"DECAYS": True, "DECOUPLED": True, "MAXIMIZE": False, "PART": PART}
KERNELS = {
    "_check": Kernel(kernels, BLOCK, kernels.OPTIONS, CHECK, "*fp64"),
    "adam": Kernel(kernels_adam, PART, adam.STEP_OPTIONS, {**ADAMW, "BLOCK": BLOCK}),
    "_multiply": Kernel(kernels, BLOCK, kernels.MULTIPLY_OPTIONS, {"BLOCK": BLOCK}),
    "_count": Kernel(probe, probe.BLOCK, probe.OPTIONS, {"TENSORS": 256, "BLOCK": probe.BLOCK}),
}
TORCHS = "torch's fused AdamW"


@dataclass(frozen=True)
class Config(runner.Config):
    steps: int = 1  # a kernel is compiled once
    seeds: tuple[int, ...] = (0,)  # nothing is drawn
    kernels: Annotated[tuple[str, ...], runner.one_of([*KERNELS, TORCHS])] = (*KERNELS, TORCHS)
    capabilities: Annotated[tuple[str, ...], runner.one_of(("80", "90", "100"))] = ("80", "90", "100")


SMOKE = Config(kernels=("_multiply", TORCHS), capabilities=("90",))


@dataclass(frozen=True)
class Arm:
    """One kernel for gradients of one dtype and GPUs of one compute capability, 90 for 9.0."""

    kernel: str
    dtype: str
    capability: int


def arms(config: Config) -> Mapping[str, Arm]:
    """Return kernel x dtype x capability."""
    made = [
        (name, dtype)
        for name in config.kernels
        for dtype in (KERNELS[name].dtypes if name in KERNELS else ("float32",))
    ]
    return {f"{name} {dtype} sm_{of}": Arm(name, dtype, int(of)) for name, dtype in made for of in config.capabilities}


def inputs() -> dict[str, str]:
    """Return the sha256 of each module with kernels, without its comments and docstrings, and of what torch has."""
    files = [Path(str(module.__file__)) for module in (kernels, kernels_adam, probe)]
    texts = {f"{file.parent.name}/{file.name}": essence(ast.parse(file.read_bytes())) for file in files}
    texts[PEER.name] = PEER.read_text(encoding="utf-8")
    return {name: hashlib.sha256(text.encode()).hexdigest() for name, text in texts.items()}


def run(config: Config, arm: Arm, seed: int, device: str, tick: Callable[[int], None]) -> Record:
    """Compile one kernel and read its code; the columns are explained in `data/README.md`."""
    if arm.kernel == TORCHS:
        tick(1)
        torchs: Record = json.loads(PEER.read_text(encoding="utf-8"))["code"][str(arm.capability)]
        return torchs
    kernel = KERNELS[arm.kernel]
    made = compiled(kernel, arm)
    warps = int(kernel.options["num_warps"])
    tick(1)
    return {
        "triton": triton.__version__,
        "elements": kernel.elements,
        "shared": made.metadata.shared,
        **read(made.asm["cubin"], warps, kernel.elements / (32 * warps)),
    }


def read(cubin: bytes, warps: int, each: float, function: str = "") -> Record:
    """Return what machine code needs and moves, of whose kernel's tile each thread has `each` elements.

    Args:
        cubin: machine code for one compute capability.
        warps: of one program.
        each: elements of a thread, per turn if it has a loop.
        function: the kernel's name, where there are several.
    """
    said = told(cubin, "--dump-resource-usage")
    used = {name: int(number) for name, number in _USED.findall(said[said.find(function) :].partition("CONSTANT")[0])}
    code = [Line(*each) for each in _LINE.findall(told(cubin, "-sass", *(["-fun", function] if function else [])))]
    code = [line for line in code if line.name != "NOP"]  # they fill the end, or are where branches meet
    run = way_through(code)
    moved = {name: Counter(width(line.name) for line in code if line.name.startswith(name)) for name in ACCESSES}
    return {
        "warps": warps,
        "registers": used["REG"],
        "spilled": used["STACK"] + used["LOCAL"],
        "occupancy": occupancy(used["REG"], warps),
        "instructions": len(code),
        "executed": round(len(run) / each, 2),
        **{names: {str(k): moved[name][k] for k in sorted(moved[name])} for name, names in ACCESSES.items()},
        "words": {
            names: words([line for line in run if line.name.startswith(name)], each) for name, names in ACCESSES.items()
        },
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


def told(cubin: bytes, *options: str) -> str:
    """Return what `cuobjdump` of Triton's package says of machine code."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(TOOL), *options, file.name]
        said: str = subprocess.run(command, capture_output=True, text=True, check=True).stdout  # noqa: S603
    return said


class Line(NamedTuple):
    """An instruction of machine code."""

    address: str
    guard: str  # a predicate; empty: it always runs
    name: str
    rest: str


def way_through(code: Sequence[Line]) -> list[Line]:
    """Return what a thread runs for a whole tile, at least: once round its loop, or from end to end.

    The shortest way by way of the first access of 16 bytes: without what a branch leaves out, as a division does its
    rare cases, and torch's kernel a scale.
    """
    places = [int(line.address, 16) for line in code]
    after = [_after(number, code, places) for number in range(len(code))]
    wide = {number for number, line in enumerate(code) if line.name.startswith("LDG") and width(line.name) >= WIDE}
    ends = {number for number, line in enumerate(code) if line.name == "EXIT"}
    begin = _way(after, 0, wide)
    loop = _way(after, begin[-1], {begin[-1]})
    return [code[number] for number in loop or [0, *begin, *_way(after, begin[-1], ends)]]


def _after(number: int, code: Sequence[Line], places: Sequence[int]) -> list[int]:
    """Return the instructions that may come next; a jump to one that was left out goes on behind it."""
    line = code[number]
    target = re.search(r"\b0x[0-9a-f]+$", line.rest.strip())
    jumps = [bisect_left(places, int(target[0], 16))] if target and line.name.startswith("BRA") else []
    never = line.name.startswith(("EXIT", "RET", "BRA")) and not line.guard and not re.search(r"\bU?P\d", line.rest)
    return jumps if never and not line.name.startswith("BRA.DIV") else [*jumps, *range(len(code))[number + 1 :][:1]]


def _way(after: Sequence[Sequence[int]], start: int, goals: Collection[int]) -> list[int]:
    """Return the shortest way from one instruction, which is left out, to one of several; empty if there is none."""
    before, waiting = dict.fromkeys(after[start], start), deque(after[start])
    while waiting:
        number = waiting.popleft()
        if number in goals:
            way = [number]
            while before[way[-1]] != start:
                way.append(before[way[-1]])
            return way[::-1]
        fresh = [each for each in after[number] if each not in before]
        before |= dict.fromkeys(fresh, number)
        waiting += fresh
    return []


def occupancy(registers: int, warps: int) -> float:
    """Return the share of a multiprocessor's 64 warps that run at once, by their registers alone."""
    taken = -(-registers // 8) * 8 * 32 * warps  # of 65,536, in blocks of 256 per warp
    return warps * min(64 // warps, 32, 2**16 // taken) / 64


def width(instruction: str) -> int:
    """Return the bytes that a thread's access to the GPU's memory moves, as its name says."""
    bits = re.search(r"\.(?:[US]?(8|16)|(64|128|256))(?:\.|$)", instruction)
    return int(bits[1] or bits[2]) // 8 if bits else 4


def words(accesses: Sequence[Line], each: float) -> float:
    """Return the numbers of 4 bytes per element that accesses of 16 bytes move: those of whole tiles.

    Of accesses under a predicate and under its opposite one kind is run.
    """
    yes = {line.guard for line in accesses if "!" not in line.guard}
    run = (line for line in accesses if "!" not in line.guard or line.guard.replace("!", "") not in yes)
    sizes = [width(line.name) for line in run]
    return sum(size for size in sizes if size >= WIDE) / each / 4


def table(rows: Sequence[Record]) -> Table:
    """Return one line per kernel: what its code needs and moves."""
    shown = Table(
        "kernel", "registers", "spilled", "occupancy", "instructions", "run per element", "words read", "written"
    )
    for row in rows:
        cells = (row[name] for name in ("registers", "spilled", "occupancy", "instructions", "executed"))
        shown.add_row(row["arm"], *map(str, cells), *(f"{each:g}" for each in row["words"].values()))
    return shown


if __name__ == "__main__":
    raise SystemExit(runner.main("compiled_kernels"))
