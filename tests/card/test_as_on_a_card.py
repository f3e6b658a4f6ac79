"""What only a card runs, on a CPU that passes for one: its tensors lie here, its streams are those of a fake world."""

import warnings

import pytest

pytest.importorskip("torch")

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ampsim.card import probes
from ampsim.testing import known
from ampsim.torch import OptimizerThread
from tests.torch.test_fake_cuda import World, fake_cuda


def here(device: object) -> object:
    return "cpu" if str(device).startswith("cuda") else device


class OnCPU(TorchFunctionMode):
    """Make on the CPU what is asked for on a card."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if "device" in kwargs:
            kwargs["device"] = here(kwargs["device"])
        return func(*(here(arg) if isinstance(arg, str | torch.device) else arg for arg in args), **kwargs)


class Placed(TorchFunctionMode):
    """Keep in mind what was made on a card, say of it that it lies there, and note what is computed of both places."""

    MOVES = ("to", "cpu", "copy_", "__set__", "__get__")

    def __init__(self) -> None:
        super().__init__()
        self.card: dict[int, torch.UntypedStorage] = {}  # kept, so that no address is used twice
        self.mixed: set[str] = set()

    def storage(self, tensor: torch.Tensor) -> torch.UntypedStorage:
        with torch._C.DisableTorchFunction():
            return (tensor._values() if tensor.layout is torch.sparse_coo else tensor).untyped_storage()

    def is_on_card(self, tensor: torch.Tensor) -> bool:
        return self.storage(tensor)._cdata in self.card

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs, name = dict(kwargs or {}), func.__name__
        asked = getattr(func.__self__, "__name__", "") if name == "__get__" else ""
        if asked in ("device", "is_cuda"):
            on_card = self.is_on_card(args[0])
            return on_card if asked == "is_cuda" else torch.device("cuda", 0) if on_card else torch.device("cpu")
        if func is torch.device:
            return func(*args, **kwargs)
        places = [str(each) for each in (*args, kwargs.get("device")) if isinstance(each, str | torch.device)]
        to_card = any(place.startswith("cuda") for place in places)
        to_cpu = name == "cpu" or (name == "to" and "cpu" in places)
        tensors = [each for each in tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)]
        on_card = [self.is_on_card(each) for each in tensors]
        if any(on_card) and name not in self.MOVES:
            alone = (each.dim() for each, is_there in zip(tensors, on_card, strict=True) if not is_there)
            self.mixed |= {name} if any(alone) else set()  # a CPU's scalar may take part
        with OnCPU():
            out = func(*args, **kwargs)
        if (to_cpu and any(on_card)) or (name == "to" and to_card and not any(on_card)):
            out = out.clone()
        if to_card or (any(on_card) and not to_cpu):
            found = (self.storage(each) for each in tree_leaves(out) if isinstance(each, torch.Tensor))
            self.card |= {each._cdata: each for each in found}
        return out


class Generator(torch.Generator):
    def __new__(cls, device: object) -> torch.Generator:
        return super().__new__(cls, here(device))


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    cycles = []
    monkeypatch.setattr(torch, "Generator", Generator)
    monkeypatch.setattr(torch.cuda, "_sleep", cycles.append)
    monkeypatch.setattr(probes, "ELEMENTS", (64, 256))
    return cycles


def stepped(seed: int, monkeypatch: pytest.MonkeyPatch) -> tuple[object, World]:
    """Step a history behind a stream; return what came of it, and the world, which knows whether it was ordered."""
    with fake_cuda() as world, OnCPU(), world:

        class Watched(probes.GradScaler):
            def scale(self, outputs, *ticket, **options):
                for each in (scaled := super().scale(outputs, *ticket, **options)):
                    world.watch_release(each)
                return scaled

        def thread() -> OptimizerThread:
            made = OptimizerThread()
            made.launch(world.__enter__)
            return made

        monkeypatch.setitem(probes.SCALERS, "ampsim", Watched)
        monkeypatch.setattr(probes, "OptimizerThread", thread)
        return probes.step("behind", "cuda", seed), world


@pytest.mark.parametrize("seed", range(6))
def test_a_history_behind_a_stream_is_ordered_and_pauses_both_streams(seed: int, slept, monkeypatch) -> None:
    plain = probes.step("in order", "cpu", seed)
    found, world = stepped(seed, monkeypatch)
    assert found == plain
    assert world.wrong == []
    assert len(world.streams) == 2
    assert len(slept) == 2 * probes.ITERATIONS
    assert {*slept} == {*probes.CYCLES}


def test_parameters_that_are_read_before_their_stream_is_done_are_seen(slept, monkeypatch) -> None:
    monkeypatch.setattr("ampsim.torch.threads.optimizer_thread.come_behind", lambda event: None)
    assert any("may still be using" in said for said in stepped(0, monkeypatch)[1].wrong)


WAITS = "called a synchronizing CUDA operation (Triggered internally at CUDAFunctions.cpp:156.)"


class Waiting(TorchDispatchMode):
    """Say so, as torch's debug mode does, where the host would wait for a device."""

    mode = "default"

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if self.mode == "warn" and func is torch.ops.aten._local_scalar_dense.default:
            warnings.warn(WAITS, UserWarning, stacklevel=2)
        return func(*args, **(kwargs or {}))

    def set(self, mode: str) -> None:
        self.mode = mode


@pytest.mark.parametrize(("free", "sizes"), [(28 * 4, ["small"]), (28 * 5, ["small", "large"])])
def test_ways_to_step_on_a_card_are_timed_where_they_fit_and_waits_are_counted(free, sizes, monkeypatch) -> None:
    class Scaler(probes.GradScaler):
        def __init__(self, device: str, init_scale: float, *, fused_step: bool, **rule: object) -> None:
            told.append(fused_step)
            super().__init__("cpu", init_scale, **rule)

    told, torchs = [], torch.amp.GradScaler
    monkeypatch.setattr(probes, "SIZES", {"small": [2, 2], "large": [5]})
    monkeypatch.setattr(probes, "SECONDS", 0.001)
    monkeypatch.setattr(probes, "TORCHS", f"loss.item(); {probes.TORCHS}; loss.item()")
    monkeypatch.setattr(probes, "GradScaler", Scaler)
    monkeypatch.setattr(torch.amp, "GradScaler", lambda device, *rule, **more: torchs("cpu", *rule, **more))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (free, 2 * free))
    with Waiting() as waiting, OnCPU():
        monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", waiting.set)
        *_, found = probes.time_steps("cuda")
    assert [*found["sizes"]] == sizes
    assert told == [True] * len(sizes)
    assert waiting.mode == "default"
    for each in found["sizes"].values():
        assert {*each["waits"]} == {*each["ratios"]} == {"bare", "torch", "ours, fused step"}
        assert (each["waits"]["bare"], each["waits"]["torch"]) == (0, 20)


@pytest.mark.parametrize(("gib", "fits"), [(9, False), (10, True)])
def test_a_gpt_is_trained_where_its_memory_is_free(gib: int, fits: bool, monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (gib << 30, 80 << 30))
    monkeypatch.setattr(probes, "train", lambda kind, device, *shape: iter([{"name": kind}]))
    if fits:
        assert [*probes.train_both("gpt2-small", "cuda")] == [{"trajectories": [{"name": "torch"}, {"name": "ampsim"}]}]
    else:
        with pytest.raises(RuntimeWarning, match="needs 10 GiB of free memory on a card"):
            next(probes.train_both("gpt2-small", "cuda"))


@pytest.mark.parametrize("name", ["torch", "ampsim"])
@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_what_torchs_kernels_refuse_on_a_card_is_not_expected_to_go_wrong(name, device, monkeypatch) -> None:
    """libtorch_cuda's fused SGD checks strides; the CPU's does not: see the law, and `known.TORCH`."""
    asked = []
    monkeypatch.setattr("ampsim.testing.kit.judge.judge", lambda *_, expected, **__: iter(asked.append(expected) or ()))
    assert [*probes.ask_laws(name, device)] == []
    refused = {"fused_steps_follow_strides"} if device == "cuda" else set()
    assert asked[0].keys() == (known.TORCH.keys() - refused if name == "torch" else set())


@pytest.mark.parametrize("name", ["torch", "ampsim"])
def test_no_law_computes_of_a_card_and_of_the_cpu_at_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All laws, as on a card. What the CPU's fused SGD does here, whose tensors are there, it does not refuse."""
    monkeypatch.setattr(probes, "EXAMPLES", 2)
    monkeypatch.setattr(probes, "REFUSED", "")
    with fake_cuda(), Placed() as placed:
        *_, found = probes.ask_laws(name, "cuda")
        assert placed.mixed == set()
        assert len(placed.card) > 1000
        assert len(found["checks"]) == found["of"]
        assert found["findings"].keys() <= {"fused_steps_follow_strides", "never_steps_on_nonfinite_below_scale_one"}
        torch.ones(2, device="cuda") + torch.ones(2)
    assert placed.mixed == {"add"}
