"""`all_finite` and `select_tree`."""

import math

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ampsim import Rule
from ampsim.jax import LossScale, all_finite, select_tree
from tests.examples import examples

VALUES = st.sampled_from([0.0, -1.0, 65504.0, math.inf, -math.inf, math.nan])
DTYPES = st.sampled_from([np.float32, np.float16, ml_dtypes.bfloat16, np.complex64])
sizes = st.just([]) | st.lists(VALUES, min_size=3, max_size=3)  # each is compiled
leaves = st.builds(lambda values, dtype: np.array(values, dtype), sizes, DTYPES)


@settings(max_examples=examples(ms=10))
@given(st.lists(leaves, max_size=3))
@example([np.array([1.0, math.nan, 0.0], np.complex64)])
@example([complex(1.0, math.inf)])
def test_all_finite_matches_numpy(tree) -> None:
    result = all_finite({"a": tree, "n": np.arange(3)})
    assert (result.shape, result.dtype) == ((), bool)
    assert bool(result) == all(np.isfinite(leaf).all() for leaf in tree)


@st.composite
def many_leaves(draw):
    """A nested tree of up to 200 leaves: floats, integers, empty arrays, and empty containers."""
    kinds = st.sampled_from(
        [np.ones(3), np.ones((), np.float16), np.arange(2), np.ones((0, 2))]
    )
    count = draw(st.integers(65, 200))
    leaves = [draw(kinds) for _ in range(count)]
    return {"a": {"b": leaves[::2], "none": None}, "c": ({"d": leaves[1::2]}, [], {})}


@settings(max_examples=examples(ms=20))
@given(many_leaves(), st.data())
def test_one_of_many_leaves_is_found(tree, data) -> None:
    leaves, structure = jax.tree.flatten(tree)
    floats = [
        i for i, leaf in enumerate(leaves) if leaf.size and leaf.dtype.kind == "f"
    ]
    assert all_finite(tree)
    if not floats:
        return
    place = data.draw(st.sampled_from(floats))
    leaves[place] = leaves[place] * np.float16(math.inf)
    assert not all_finite(jax.tree.unflatten(structure, leaves))


@settings(max_examples=examples(ms=20))
@given(many_leaves())
def test_each_of_many_leaves_is_unscaled(tree) -> None:
    unscaled = jax.tree.leaves(LossScale.create(Rule(4.0)).unscale(tree))
    for before, after in zip(jax.tree.leaves(tree), unscaled, strict=True):
        expected = before / 4 if before.dtype.kind == "f" else before
        assert np.array_equal(after, expected)


def test_all_finite_over_a_mapped_axis() -> None:
    rows = jnp.array([[1.0, 2.0], [1.0, jnp.inf]])
    everywhere = jax.jit(jax.vmap(lambda x: all_finite(x, "d"), axis_name="d"))
    assert jax.jit(jax.vmap(all_finite))(rows).tolist() == [True, False]
    assert everywhere(rows).tolist() == [False, False]
    assert everywhere(rows.at[1, 1].set(0.0)).tolist() == [True, True]


@pytest.mark.parametrize("pred", [True, False])
def test_select_tree_is_bit_exact(pred) -> None:
    a = {"x": jnp.array([math.nan, -0.0, 1e-45]), "n": jnp.array(3)}
    b = {"x": jnp.array([1.0, math.inf, 0.0]), "n": jnp.array(4)}
    for select in (select_tree, jax.jit(select_tree)):
        got, expected = select(jnp.array(pred), a, b), a if pred else b
        assert jax.tree.map(lambda x: np.asarray(x).tobytes(), got) == jax.tree.map(
            lambda x: np.asarray(x).tobytes(), expected
        )


@pytest.mark.parametrize("pred", [1, 1.0, np.ones(2, bool)], ids=str)
def test_select_tree_non_scalar_predicate_raises(pred) -> None:
    with pytest.raises(ValueError, match="expected one bool"):
        select_tree(pred, 1.0, 2.0)


class Name(str):
    """A leaf that equals a string and is none."""

    __slots__ = ()


OTHERS = [jax.nn.relu, "float32", jnp.float32, np.float16, object()]


@pytest.mark.parametrize(
    "other", OTHERS, ids=lambda other: type(other).__name__
)  # no addresses: workers must agree
def test_non_array_leaves_are_ignored(other) -> None:
    assert all_finite({"w": jnp.array([1.0]), "other": other})
    tree = {"w": jnp.array([math.inf]), "other": other}
    assert not all_finite(tree)
    for result in (
        LossScale.create().scale(tree),
        LossScale.create().unscale(tree, widen=True),
    ):
        assert result["other"] is other
    chosen = select_tree(jnp.bool_(0), {**tree, "w": jnp.zeros(1)}, tree)
    assert (chosen["other"], chosen["w"].tolist()) == (other, [math.inf])


class Wrapped:
    """What says that it is an array, and JAX takes for none."""

    def __jax_array__(self) -> jax.Array:
        return jnp.array(math.inf)


def test_jax_array_protocol_leaf_raises() -> None:
    with pytest.raises(TypeError):
        all_finite({"w": Wrapped()})


def test_torch_tensor_leaf_raises() -> None:
    torch = pytest.importorskip("torch")
    for call in (all_finite, LossScale.create().unscale):
        with pytest.raises(TypeError):
            call({"w": torch.tensor([math.inf])})


def test_select_tree_keeps_equal_static_leaves() -> None:
    tree = {"p": 0.5, "inference": False, "name": "relu", "w": jnp.ones(2)}
    same = select_tree(jnp.bool_(1), tree, {**tree, "name": "".join(["re", "lu"])})
    assert {k: type(v) for k, v in same.items()} == {
        k: type(v) for k, v in tree.items()
    }
    assert same["w"] is tree["w"]
    assert select_tree(jnp.bool_(0), 1.0, 2.0) == 2.0


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (jax.nn.relu, jax.nn.gelu),
        ("a", "b"),
        (jnp.ones(1), "a"),
        ("a", Name("a")),
        (Name("a"), "a"),
    ],
    ids=lambda leaf: type(leaf).__name__,
)
def test_select_tree_differing_static_leaves_raise(a, b) -> None:
    with pytest.raises(ValueError, match="expected arrays or equal leaves"):
        select_tree(jnp.bool_(1), {"x": a}, {"x": b})
