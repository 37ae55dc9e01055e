"""Kernels: every expression that KernelSpec documents, against plain torch."""

import math

import pytest
import torch
from torch.nn.functional import silu

from doppler.executor import compile_kernel
from doppler.executor.elementwise import FUNCTIONS, TORCH_DTYPES
from doppler.graph import KernelSpec, scalar
from doppler.support.errors import InputError

# Relative to values of about 1: f16 has 11 bits.
TOLERANCE = {"f16": 2e-3, "f32": 1e-5, "f64": 1e-12, "c64": 1e-5}


def spec_of(expression, operands, output_shape, dtype, operand_dtypes=None):
    return KernelSpec(
        expression=expression,
        operand_shapes=tuple(tuple(shape) for shape in operands),
        operand_dtypes=tuple(operand_dtypes or [dtype] * len(operands)),
        output_shape=tuple(output_shape),
        dtype=dtype,
    )


def draw(shape, dtype, seed=0, positive=False):
    generator = torch.Generator().manual_seed(seed)
    wide = torch.complex64 if dtype == "c64" else torch.float64
    values = torch.randn(shape, generator=generator, dtype=wide)
    return (values.abs() + 0.1 if positive else values).to(TORCH_DTYPES[dtype])


def run(spec, operands):
    """The kernel's result; its shape, dtype and memory are as promised, its operands unchanged."""
    before = [operand.clone() for operand in operands]
    result = compile_kernel(spec)(operands)
    assert tuple(result.shape) == spec.output_shape
    assert result.dtype == TORCH_DTYPES[spec.dtype]
    assert result.is_contiguous()
    assert not result.is_conj()
    for operand in operands:
        assert result.untyped_storage().data_ptr() != operand.untyped_storage().data_ptr()
    for operand, old in zip(operands, before, strict=True):
        assert torch.equal(operand, old)
    return result


def assert_close(result, expected, dtype):
    """Equal but for the rounding of the dtype; the expected values are computed in f64."""
    wide = torch.complex128 if dtype == "c64" else torch.float64
    scale = expected.abs().max().item()
    torch.testing.assert_close(
        result.to(wide), expected.to(wide), rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype] * scale
    )


def wide(tensor):
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)


# --- Contractions ---------------------------------------------------------------------------------

CONTRACTIONS = {
    "ij,jk->ik": ([(5, 7), (7, 3)], (5, 3), lambda a, b: a @ b),
    "ij,kj->ik": ([(5, 7), (3, 7)], (5, 3), lambda a, b: a @ b.T),
    "ji,jk->ki": ([(7, 5), (7, 3)], (3, 5), lambda a, b: (a.T @ b).T),
    "bij,bjk->bik": ([(2, 5, 7), (2, 7, 3)], (2, 5, 3), torch.bmm),
    "bshd,bthd->bhst": (
        [(1, 4, 2, 3), (1, 5, 2, 3)],
        (1, 2, 4, 5),
        lambda q, k: q.permute(0, 2, 1, 3) @ k.permute(0, 2, 3, 1),
    ),
    "asd,dhe->ashe": (
        [(1, 4, 3), (3, 2, 5)],
        (1, 4, 2, 5),
        lambda x, w: torch.tensordot(x, w, dims=([2], [0])),
    ),
    "i,j->ij": ([(4,), (3,)], (4, 3), torch.outer),
    "i,i->": ([(9,), (9,)], (), torch.dot),
    "ij,ij->": ([(3, 4), (3, 4)], (), lambda a, b: (a * b).sum()),
    # j is an index of one operand only: it is summed all the same.
    "ij,k->ik": ([(3, 4), (5,)], (3, 5), lambda a, b: torch.outer(a.sum(1), b)),
    ",ij->ij": ([(), (3, 4)], (3, 4), lambda a, b: a * b),
}


@pytest.mark.parametrize("dtype", ["f16", "f32", "f64", "c64"])
@pytest.mark.parametrize("expression", CONTRACTIONS)
def test_a_contraction_sums_products(expression, dtype):
    shapes, output_shape, plain = CONTRACTIONS[expression]
    operands = [draw(shape, dtype, seed) for seed, shape in enumerate(shapes)]
    result = run(spec_of(expression, shapes, output_shape, dtype), operands)
    assert_close(result, plain(*map(wide, operands)), dtype)


def test_a_long_f16_contraction_accumulates_in_f32():
    # 4096 + 1 is no f16 number: a sum in f16 would stay at 4096.
    ones = torch.ones(1, 10_000, dtype=torch.float16)
    spec = spec_of("ij,kj->ik", [ones.shape, ones.shape], (1, 1), "f16")
    assert run(spec, [ones, ones]).item() == 10_000


def test_a_contraction_takes_operands_of_two_dtypes():
    a, b = draw((3, 4), "f16"), draw((4, 2), "f32", 1)
    spec = spec_of("ij,jk->ik", [(3, 4), (4, 2)], (3, 2), "f32", ["f16", "f32"])
    assert_close(run(spec, [a, b]), wide(a) @ wide(b), "f32")


def test_operands_may_be_views():
    base, other = draw((10, 12), "f32"), draw((12, 4), "f32", 1)
    a, b = base[2:8, 1:11].T, other[::2]
    spec = spec_of("ij,jk->ik", [(10, 6), (6, 4)], (10, 4), "f32")
    assert_close(run(spec, [a, b]), wide(a) @ wide(b), "f32")


# --- Joins ----------------------------------------------------------------------------------------

JOINS = {
    "ij->ij:exp(x0)": ([(3, 4)], (3, 4), torch.exp),
    "ij->ij:x0": ([(3, 4)], (3, 4), lambda a: a),
    "ij->ji:x0": ([(3, 4)], (4, 3), lambda a: a.T),
    "ij,i->ij:sub(x0,x1)": ([(3, 4), (3,)], (3, 4), lambda a, b: a - b[:, None]),
    "ij,j->ij:mul(x0,x1)": ([(3, 4), (4,)], (3, 4), lambda a, b: a * b),
    "kij,ji->jki:add(x0,x1)": (
        [(2, 3, 4), (4, 3)],
        (4, 2, 3),
        lambda a, b: a.permute(2, 0, 1) + b[:, None, :],
    ),
    "ij->ij:add(mul(x0,0.5),1e-06)": ([(3, 4)], (3, 4), lambda a: a * 0.5 + 1e-6),
    "ij->ij:sub(1.0,x0)": ([(3, 4)], (3, 4), lambda a: 1 - a),
    "ij->ij:mul(x0,sigmoid(x0))": ([(3, 4)], (3, 4), silu),
    "i,j,k->ijk:add(mul(x0,x1),x2)": (
        [(2,), (3,), (4,)],
        (2, 3, 4),
        lambda a, b, c: a[:, None, None] * b[:, None] + c,
    ),
    "ij->ij:neg(less(x0,0.2))": ([(3, 4)], (3, 4), lambda a: -1.0 * (a < 0.2)),
    "ij->i:less(0.0,x0):add": ([(3, 4)], (3,), lambda a: (a > 0).sum(1) * 1.0),
    "ij->i:x0:add": ([(3, 4)], (3,), lambda a: a.sum(1)),
    "ij->j:x0:max": ([(3, 4)], (4,), lambda a: a.amax(0)),
    "ij->j:neg(x0):min": ([(3, 4)], (4,), lambda a: (-a).amin(0)),
    "ij->i:square(x0):add": ([(3, 4)], (3,), lambda a: (a * a).sum(1)),
    "ijkl->ki:x0:mul": ([(2, 3, 4, 2)], (4, 2), lambda a: a.permute(2, 0, 1, 3).prod(3).prod(2)),
    "ijk->:x0:add": ([(2, 3, 4)], (), lambda a: a.sum()),
    "ijk->:x0:mul": ([(2, 3, 4)], (), lambda a: a.prod()),
    "ij,jk->ik:add(x0,x1):min": (
        [(3, 4), (4, 5)],
        (3, 5),
        lambda a, b: (a[:, :, None] + b).amin(1),
    ),
    "ij,ij->:abs(sub(x0,x1)):max": ([(3, 4), (3, 4)], (), lambda a, b: (a - b).abs().max()),
    # The join leaves out j: x0 counts once for each of its elements.
    "i,ij->i:x0:add": ([(3,), (3, 4)], (3,), lambda a, b: 4 * a),
    # Indices that no operand has are broadcast.
    "i->ij:x0": ([(3,)], (3, 5), lambda a: a[:, None].expand(3, 5)),
    "->ij:exp(x0)": ([()], (2, 3), lambda a: a.exp().expand(2, 3)),
    "ij->ij:2.5": ([(2, 3)], (2, 3), lambda a: torch.full_like(a, 2.5)),
    "->:neg(x0)": ([()], (), lambda a: -a),
    "ii->i:x0": ([(4, 4)], (4,), lambda a: a.diagonal()),
    "iji->j:x0:add": ([(2, 3, 2)], (3,), lambda a: a.diagonal(dim1=0, dim2=2).sum(1)),
}


@pytest.mark.parametrize("dtype", ["f16", "f32", "f64"])
@pytest.mark.parametrize("expression", JOINS)
def test_a_join_maps_aligned_elements_and_aggregates(expression, dtype):
    shapes, output_shape, plain = JOINS[expression]
    operands = [draw(shape, dtype, seed) for seed, shape in enumerate(shapes)]
    result = run(spec_of(expression, shapes, output_shape, dtype), operands)
    assert_close(result, plain(*map(wide, operands)), dtype)


PLAIN = {
    **{"neg": torch.neg, "exp": torch.exp, "log": torch.log, "sqrt": torch.sqrt},
    **{"rsqrt": lambda x: 1 / x.sqrt(), "relu": lambda x: x.clamp(min=0)},
    **{"square": lambda x: x * x, "abs": lambda x: torch.where(x < 0, -x, x)},
    **{"sigmoid": lambda x: 1 / (1 + (-x).exp()), "silu": lambda x: x / (1 + (-x).exp())},
    "tanh": lambda x: (x.exp() - (-x).exp()) / (x.exp() + (-x).exp()),
    **{"sign": lambda x: (x > 0) * 1.0 - (x < 0) * 1.0, "conj": lambda x: x},
    **{"add": lambda x, y: x + y, "sub": lambda x, y: x - y, "mul": lambda x, y: x * y},
    **{"div": lambda x, y: x / y, "pow": lambda x, y: x**y},
    "maximum": lambda x, y: torch.where(x > y, x, y),
    "minimum": lambda x, y: torch.where(x > y, y, x),
    **{"equal": lambda x, y: (x == y) * 1.0, "less": lambda x, y: (x < y) * 1.0},
    **{"sin": torch.sin, "cos": lambda x: torch.sin(x + math.pi / 2), "erf": torch.special.erf},
    "where": lambda c, x, y: x * (c != 0) + y * (c == 0),
}


@pytest.mark.parametrize("dtype", ["f16", "f32", "f64"])
@pytest.mark.parametrize("name", PLAIN)
def test_every_scalar_function(name, dtype):
    positive = name in ("log", "sqrt", "rsqrt", "pow", "div")
    operands = [draw((40,), dtype, seed, positive) for seed in range(scalar.FUNCTIONS[name][0])]
    if name == "equal":
        operands[1][:20] = operands[0][:20]
    call = f"{name}({','.join(f'x{k}' for k in range(len(operands)))})"
    spec = spec_of(
        f"{','.join('i' * len(operands))}->i:{call}", [(40,)] * len(operands), (40,), dtype
    )
    assert_close(run(spec, operands), PLAIN[name](*map(wide, operands)), dtype)


def test_no_scalar_function_is_forgotten():
    assert set(PLAIN) == set(FUNCTIONS) == set(scalar.FUNCTIONS) - set(scalar.DTYPES)
    assert set(TORCH_DTYPES) == set(scalar.DTYPES)


@pytest.mark.parametrize(
    ("expression", "plain"),
    [
        ("i,i->i:add(x0,x1)", lambda a, b: a + b),
        ("i,i->i:sub(x0,neg(x1))", lambda a, b: a + b),
        ("i,i->i:mul(x0,conj(x1))", lambda a, b: a * b.conj()),
        ("i,i->i:conj(x0)", lambda a, b: a.conj()),
        ("i,i->i:mul(x0,2.0)", lambda a, b: 2 * a),
        ("i,i->:mul(x0,conj(x1)):add", lambda a, b: (a * b.conj()).sum()),
    ],
)
def test_joins_of_complex_numbers(expression, plain):
    operands = [draw((6,), "c64", seed) for seed in range(2)]
    output_shape = () if expression.endswith(":add") else (6,)
    result = run(spec_of(expression, [(6,), (6,)], output_shape, "c64"), operands)
    assert_close(result, plain(*map(wide, operands)), "c64")


def test_joins_of_several_f16_functions_round_once():
    x = torch.tensor([300.0], dtype=torch.float16)
    # 90,000 is beyond the largest f16 number.
    spec = spec_of("i->i:sqrt(square(x0))", [(1,)], (1,), "f16")
    assert run(spec, [x]).item() == 300
    # A cast to f16 inside is meant to round.
    cast = spec_of("i->i:sqrt(f16(square(x0)))", [(1,)], (1,), "f16")
    assert run(cast, [x]).item() == math.inf
    many = torch.ones(5000, dtype=torch.float16)
    assert run(spec_of("i->:x0:add", [(5000,)], (), "f16"), [many]).item() == 5000
    product = torch.tensor([300.0, 300.0, 0.001], dtype=torch.float16)
    expected = wide(product).prod().item()
    result = run(spec_of("i->:x0:mul", [(3,)], (), "f16"), [product])
    assert result.item() == pytest.approx(expected, rel=1e-3)


def test_casts_and_results_of_another_dtype():
    x = draw((5,), "f16")
    widened = run(spec_of("i->i:f32(x0)", [(5,)], (5,), "f32", ["f16"]), [x])
    assert torch.equal(widened, x.float())
    narrowed = run(spec_of("i->i:f16(x0)", [(5,)], (5,), "f16", ["f32"]), [x.float() * 1.0001])
    assert torch.equal(narrowed, (x.float() * 1.0001).half())
    total = run(spec_of("i->:f32(x0):add", [(5,)], (), "f32", ["f16"]), [x])
    assert_close(total, wide(x).sum(), "f32")
    as_complex = run(spec_of("i->i:c64(x0)", [(5,)], (5,), "c64", ["f32"]), [x.float()])
    assert torch.equal(as_complex, x.to(torch.complex64))


WHOLE = {
    "add(x0,1.0)": lambda x: x + 1,
    "mul(3.0,x0)": lambda x: 3 * x,
    "div(x0,2.0)": lambda x: torch.div(x, 2, rounding_mode="trunc"),
    "div(x0,add(x0,1.0))": lambda x: torch.div(x, x + 1, rounding_mode="trunc"),
    "where(less(x0,0.0),0.0,x0)": lambda x: x.clamp(min=0),
    "maximum(x0,-5.0)": lambda x: x.clamp(min=-5),
    "pow(x0,2.0)": lambda x: x**2,
    "mul(x0,0.5)": lambda x: (x * 0.5).long(),
    "pow(x0,-1.0)": lambda x: (x.double() ** -1).long(),
}


@pytest.mark.parametrize("scalar", WHOLE)
def test_integers_keep_all_their_digits_beside_constants(scalar):
    x = torch.tensor([2**62 + 1, 2**53 + 1, -7, 2**62 - 1, 1])
    spec = spec_of(f"i->i:{scalar}", [(5,)], (5,), "i64")
    assert torch.equal(run(spec, [x]), WHOLE[scalar](x))


@pytest.mark.parametrize("dtype", ["i64", "i32", "i16", "i8", "u8"])
def test_integers_are_divided_by_zero_and_at_the_end_of_their_range(dtype):
    ends = torch.iinfo(TORCH_DTYPES[dtype])
    least, most = ends.min, ends.max
    x = torch.tensor([7, 0, most, least, least], dtype=TORCH_DTYPES[dtype])
    y = torch.tensor([0, 0, most, least or 1, most], dtype=TORCH_DTYPES[dtype])
    spec = spec_of("i,i->i:div(x0,x1)", [(5,), (5,)], (5,), dtype)
    assert run(spec, [x, y]).tolist() == [0, 0, 1, int(least < 0), -1 if least else 0]
    if least:
        negated = run(spec, [x, torch.full_like(x, -1)])
        assert torch.equal(negated, -x), "the least integer has no counterpart and stays"


def test_constants_count_in_the_dtype_of_the_elements():
    # 0.1 as f32 is not 0.1 as f64; also an operand without dimensions is compared as f32.
    for shape, letters in (((1,), "i"), ((), "")):
        x = torch.full(shape, 0.1, dtype=torch.float32)
        spec = spec_of(f"{letters}->{letters}:equal(x0,0.1)", [shape], shape, "f32")
        assert run(spec, [x]).item() == 1
    precise = spec_of("->:add(x0,0.1)", [()], (), "f64")
    assert run(precise, [torch.zeros((), dtype=torch.float64)]).item() == 0.1


# --- Formations, views, constants -----------------------------------------------------------------


FORMATIONS = [
    (aggregation, dtype)
    for aggregation in ("add", "mul", "max", "min")
    for dtype in ("f16", "f32", "f64", "c64")
    if dtype != "c64" or aggregation in ("add", "mul")  # complex numbers have no order
]


@pytest.mark.parametrize("num", [1, 2, 5])
@pytest.mark.parametrize(("aggregation", "dtype"), FORMATIONS)
def test_a_formation_aggregates_element_by_element(aggregation, dtype, num):
    shapes = [(3, 4)] * num
    operands = [draw((3, 4), dtype, seed) for seed in range(num)]
    stacked = torch.stack([wide(operand) for operand in operands])
    plain = {"add": torch.sum, "mul": torch.prod, "max": torch.amax, "min": torch.amin}
    result = run(spec_of(f"formation:{aggregation}", shapes, (3, 4), dtype), operands)
    assert_close(result, plain[aggregation](stacked, dim=0), dtype)


def test_a_formation_of_f16_adds_in_f32():
    parts = [torch.full((1,), value, dtype=torch.float16) for value in [2048.0, 1, 1, 1, 1]]
    result = run(spec_of("formation:add", [(1,)] * 5, (1,), "f16"), parts)
    assert result.item() == 2052


def test_pairs_become_complex_numbers_and_back():
    pairs = draw((3, 8), "f32")
    numbers = run(spec_of("complex", [(3, 8)], (3, 4), "c64", ["f32"]), [pairs])
    assert torch.equal(numbers.real, pairs[:, ::2])
    assert torch.equal(numbers.imag, pairs[:, 1::2])
    again = run(spec_of("real", [(3, 4)], (3, 8), "f32", ["c64"]), [numbers])
    assert torch.equal(again, pairs)


def test_complex_and_real_take_views():
    base = draw((6, 10), "f32")
    numbers = run(spec_of("complex", [(4, 6)], (4, 3), "c64", ["f32"]), [base[1:5, 3:9]])
    assert torch.equal(torch.view_as_real(numbers).reshape(4, 6), base[1:5, 3:9])
    pairs = run(spec_of("real", [(2, 2)], (2, 4), "f32", ["c64"]), [numbers[:2, 1:]])
    assert torch.equal(pairs, base[1:3, 5:9])


@pytest.mark.parametrize("dtype", ["f16", "f32", "f64", "c64"])
def test_copy_takes_the_elements_in_row_major_order(dtype):
    x = draw((4, 1, 3), dtype)
    result = run(spec_of("copy", [(4, 1, 3)], (1, 4, 3), dtype), [x])
    assert torch.equal(result[0], x[:, 0])
    view = draw((3, 4), dtype).T
    same = run(spec_of("copy", [(4, 3)], (4, 3), dtype), [view])
    assert torch.equal(same, view)


@pytest.mark.parametrize("dtype", ["f16", "f32", "f64"])
@pytest.mark.parametrize("offset", [-5, -1, 0, 2, 9])
def test_fill_takes_the_first_number_up_to_the_diagonal_and_the_second_above(offset, dtype):
    result = run(spec_of(f"fill:0.5,-inf,{offset}", [], (2, 3, 5), dtype), [])
    for row in range(3):
        for column in range(5):
            expected = 0.5 if column <= row + offset else -math.inf
            assert (result[:, row, column] == expected).all()


@pytest.mark.parametrize("dtype", ["f16", "f32", "f64", "c64"])
def test_fill_with_one_number_is_constant(dtype):
    result = run(spec_of("fill:1.5", [], (2, 3), dtype), [])
    assert (result == 1.5).all()
    assert run(spec_of("fill:0.0", [], (), dtype), []).item() == 0


# --- Opaque operators -----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["f16", "f32", "f64"])
def test_cholesky_reads_the_lower_triangle_and_returns_zeros_above(dtype):
    factor = (draw((6, 6), "f64") / 4).tril() + torch.eye(6)
    matrix = (factor @ factor.T).tril().to(TORCH_DTYPES[dtype])
    garbage = matrix + torch.full((6, 6), 7.0, dtype=matrix.dtype).triu(1)
    result = run(spec_of("cholesky", [(6, 6)], (6, 6), dtype), [garbage])
    assert_close(result, factor, dtype)
    assert (result.triu(1) == 0).all()


def test_cholesky_on_gpus_is_the_same_and_tells_by_nan_what_has_no_factor(monkeypatch):
    spec, factor = spec_of("cholesky", [(6, 6)], (6, 6), "f64"), draw((6, 6), "f64").tril()
    factor.diagonal().abs_().add_(1)
    raising = lambda *arguments: pytest.fail("the host waits for the GPU")  # noqa: E731
    monkeypatch.setattr(torch.linalg, "cholesky", raising)
    on_gpus = compile_kernel(spec, device="cuda:0")
    torch.testing.assert_close(on_gpus([factor @ factor.T]), factor)
    assert on_gpus([-torch.eye(6, dtype=torch.float64)]).isnan().all()


@pytest.mark.parametrize("dtype", ["f16", "f32", "f64"])
def test_solve_reads_the_lower_triangle_of_its_matrix(dtype):
    factor = ((draw((6, 6), "f64") / 4).tril() + torch.eye(6)).to(TORCH_DTYPES[dtype])
    solution = draw((6, 3), "f64", 1)
    right = (wide(factor) @ solution).to(TORCH_DTYPES[dtype])
    garbage = factor + torch.full((6, 6), 7.0, dtype=factor.dtype).triu(1)
    result = run(spec_of("solve", [(6, 6), (6, 3)], (6, 3), dtype), [garbage, right])
    tolerance = "f16" if dtype == "f16" else "f32"
    assert_close(result.double(), solution, tolerance)


# --- What is refused ------------------------------------------------------------------------------

REFUSED = {
    "no kernel": (("conv", [(2,)], (2,)), "no such kernel"),
    "empty": (("", [(2,)], (2,)), "no such kernel"),
    "operands": (("ij,jk->ik", [(2, 3)], (2, 3)), "1 operands instead of 2"),
    "rank": (("ij->i:x0:add", [(2,)], (2,)), "'ij' cannot index the shape (2,)"),
    "result": (("ij->i:x0:add", [(2, 3)], (2, 1)), "'i' cannot index the shape (2, 1)"),
    "extent": (("ij,jk->ik", [(2, 3), (4, 5)], (2, 5)), "index 'j' has 3 and 4 elements"),
    "unbound": (("ij->ik", [(2, 3)], (2, 4)), "no operand has the index 'k'"),
    "scalar": (("i->i:cube(x0)", [(2,)], (2,)), "'cube(x0)' is not a scalar function"),
    "element": (("i->i:exp(x1)", [(2,)], (2,)), "x1, but there are 1 operands"),
    "no aggregation": (("ij->i:x0", [(2, 3)], (2,)), "an aggregation exactly if"),
    "aggregation": (("i->i:x0:add", [(2,)], (2,)), "an aggregation exactly if"),
    "mean": (("ij->i:x0:mean", [(2, 3)], (2,)), "unknown aggregation 'mean'"),
    "formation": (("formation:mean", [(2,)], (2,)), "unknown aggregation 'mean'"),
    "formed shapes": (("formation:add", [(2,), (3,)], (2,)), "operands ((2,), (3,))"),
    "pairs": (("complex", [(5,)], (2,)), "(5,) does not hold pairs for (2,)"),
    "numbers": (("real", [(5,)], (5,)), "(5,) does not hold pairs of (5,)"),
    "copy": (("copy", [(2, 3)], (5,)), "(2, 3) cannot take the shape (5,)"),
    "fill": (("fill:zero", [], (5,)), "cannot fill the shape (5,)"),
    "triangle": (("fill:0.0,1.0", [], (5, 5)), "cannot fill the shape (5, 5)"),
    "flat triangle": (("fill:0.0,1.0,0", [], (5,)), "cannot fill the shape (5,)"),
    "factor of no square": (("cholesky", [(3, 4)], (3, 4)), "a matrix (3, 4) for a result (3, 4)"),
    "factor of a batch": (("cholesky", [(2, 3, 3)], (2, 3, 3)), "a matrix (2, 3, 3) for a result"),
    "solution": (("solve", [(3, 3), (4, 2)], (3, 2)), "(4, 2) instead of (3, 2) to solve for"),
    "system": (("solve", [(3, 4), (3, 2)], (3, 2)), "a matrix (3, 4) for a result (3, 2)"),
    "filled operand": (("fill:0.0", [(1,)], (5,)), "1 operands instead of 0"),
}


@pytest.mark.parametrize(("arguments", "reason"), REFUSED.values(), ids=REFUSED.keys())
def test_a_kernel_that_is_none_ends_in_one_line_with_its_expression(arguments, reason):
    with pytest.raises(InputError) as error:
        compile_kernel(spec_of(*arguments, "f32"))
    assert str(error.value).startswith(f"kernel {arguments[0]!r}: ")
    assert reason in str(error.value)
    assert "\n" not in str(error.value)


def test_dtypes_are_checked():
    with pytest.raises(InputError, match="kernel 'copy': unknown dtype 'q8'"):
        compile_kernel(spec_of("copy", [(2,)], (2,), "q8"))
    with pytest.raises(InputError, match="kernel 'copy': 1 operands, 2 dtypes"):
        compile_kernel(spec_of("copy", [(2,)], (2,), "f32", ["f32", "f32"]))


def test_equal_specs_share_a_kernel():
    one, other = (spec_of("i->i:exp(x0)", [(2,)], (2,), "f32") for _ in range(2))
    assert one is not other
    assert compile_kernel(one) is compile_kernel(other)
