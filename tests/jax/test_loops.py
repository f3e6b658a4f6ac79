"""The loops of ``ampsim/jax/loops.md``, each where its library is installed."""

import doctest
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "ampsim/jax/loops.md"
HEAD, *SECTIONS = PAGE.read_text().split("\n## ")
LOOPS = {section.partition("\n")[0]: section for section in SECTIONS}
IMPORTS = {
    "optax": ["optax"],
    "Gradient accumulation": ["optax"],
    "Sharded parameters and batches": ["optax"],
    "equinox": ["equinox", "optax"],
    "flax.nnx": ["flax", "optax"],
    "flax.linen": ["flax", "optax"],
    "haiku": ["haiku", "optax"],
    "Checkpoints with orbax": ["orbax"],
    "Checkpoints with equinox": ["equinox"],
    "jax.export": ["flatbuffers", "optax"],
    "jax_debug_nans": ["optax"],
    "bfloat16 and TPUs": ["optax"],
    "Test the loop": ["optax"],
}
DEEP = {name: [pytest.mark.deep] for name in ("haiku", "flax.linen", "flax.nnx")}


@pytest.mark.parametrize(
    "library",
    [
        pytest.param(
            name, marks=[*DEEP.get(name, []), pytest.mark.framework(*IMPORTS[name])]
        )
        for name in IMPORTS
    ],
)
def test_documented_loop_runs(library) -> None:
    test = doctest.DocTestParser().get_doctest(
        HEAD + LOOPS[library], {}, library, str(PAGE), 0
    )
    result = doctest.DocTestRunner().run(test)
    assert (result.attempted > 6, result.failed) == (True, 0)


def test_each_documented_loop_lists_imports() -> None:
    assert LOOPS.keys() == IMPORTS.keys()
    assert "pip install -c constraints.txt --group frameworks" in HEAD
