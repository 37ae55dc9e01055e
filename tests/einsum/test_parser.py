import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from doppler.einsum import (
    Complexer,
    Einsum,
    Fill,
    Formation,
    Input,
    Select,
    Squeezer,
    load_workload,
    lower,
    parse_program,
)
from doppler.einsum.differentiation.reverse import training_program
from doppler.einsum.language.parser import parse
from doppler.einsum.language.scope import Constants
from doppler.einsum.opaque import Opaque
from doppler.einsum.program import Piece
from doppler.executor import run_graph
from doppler.graph.scalar import DTYPES, FUNCTIONS, parse_scalar, render
from doppler.support.errors import InputError

ROOT = Path(__file__).parents[2]
CHAINMM = ROOT / "workloads" / "chainmm.einsum"
DOCUMENTATION = (ROOT / "docs" / "einsum.md").read_text()

HEAD = """\
program test
param n: paper=8 small=4
input A[n, n] f32
input B[n, 2] f32
input H[n, n] f16
input C[n, n] c64
input K[1, n, 1] f32
"""
# Reads what a line under test does not: every input is read.
TAIL = """
use_A[i, j] = A[i, j]
use_B[i, j] = B[i, j]
use_H[i, j] = H[i, j]
use_C[i, j] = C[i, j]
use_K[i, j, k] = K[i, j, k]
"""


def resolve(lines: str, **options):
    return parse_program(HEAD + lines + TAIL, file="test.einsum", **options)


def node_of(lines: str, name: str = "Y", **options):
    return next(node for node in resolve(lines, **options).nodes if node.name == name)


def whole(node):
    return tuple((0, extent) for extent in node.space)


def test_chainmm_is_what_its_text_says():
    program = parse_program(CHAINMM.read_text())
    assert program.name == "chainmm"
    assert program.parameters == {"n": 10_000}
    assert program.loss is None
    assert [node.name for node in program.nodes] == [
        *"ABCDE",
        *("DE", "DE.formation", "CDE", "CDE.formation", "AB", "AB.formation", "Y"),
    ]
    assert program.given_splits == {
        "DE": (2, 2, 4),
        "CDE": (4, 2, 2),
        "AB": (4, 2, 2),
        "Y": (4, 2),
    }
    cde, formation, total = program.nodes[7], program.nodes[8], program.nodes[11]
    assert cde == Einsum(
        name="CDE",
        shape=(10_000, 10_000),
        dtype="f32",
        indices="ikj",
        extents=(10_000, 10_000, 10_000),
        operands=(2, 6),  # C, and DE from its formation
        operand_dtypes=("f32", "f32"),
        operand_dims=((0, 2), (2, 1)),
        join=parse_scalar("mul(x0,x1)"),
        aggregation="add",
    )
    assert formation == Formation(
        name="CDE.formation",
        shape=(10_000, 10_000),
        dtype="f32",
        operands=(7,),
        operand_dtypes=("f32",),
        aggregation="add",
    )
    assert total.operands == (10, 8)


def test_the_examples_of_the_documentation():
    chainmm, everything = re.findall(r"```\n(.*?)```", DOCUMENTATION, re.DOTALL)
    assert chainmm == CHAINMM.read_text()
    for preset in ("paper", "small"):
        program = parse_program(everything, preset=preset, training=True)
        assert lower(program, program.given_splits).num_ops > 40
    assert len(program.given_splits) == 6  # of three ops, in two layers


def test_the_documentation_names_every_function():
    (listed,) = re.findall(r"- of one argument:(.*?)\n\n", DOCUMENTATION, re.DOTALL)
    assert set(re.findall(r"`(\w+)(?:\(.*?\))?`", listed)) == set(FUNCTIONS)


def test_values_of_parameters():
    assert parse_program(CHAINMM.read_text(), preset="small").parameters == {"n": 512}
    assert parse_program(CHAINMM.read_text(), params={"n": 7 * 64}).parameters == {"n": 448}
    # A program without presets takes all its values from outside.
    bare = parse_program(
        "program p\nparam m\ninput A[m, 3] f64\nY[i] = sum(j) A[i, j]", params={"m": 2}
    )
    assert bare.nodes[0] == Input(name="A", shape=(2, 3), dtype="f64")


def test_weights_are_inputs_that_are_trained():
    program = parse_program("program p\ninput A[3] f32\nweight W[3] f32\nY[i] = A[i] * W[i]")
    assert program.nodes[:2] == (
        Input(name="A", shape=(3,), dtype="f32"),
        Input(name="W", shape=(3,), dtype="f32", is_weight=True),
    )


@pytest.mark.parametrize(
    ("extents", "shape"),
    [
        ("n", (8,)),
        ("2 * n + 1, n / 4", (17, 2)),
        ("(n - 2) * 3 / 9, 7", (2, 7)),
        ("n / 3 * 3, 2 - -n", (8, 10)),
        ("sqrt(2 * n), maximum(n, 9)", (4, 9)),
        ("", ()),
    ],
)
def test_extents_are_computed(extents, shape):
    assert node_of(f"fill Y[{extents}] f32 0").shape == shape


@pytest.mark.parametrize(
    ("text", "expression", "kind", "flops_per_element"),
    [
        ("Y[i, k] = sum(j) A[i, j] * B[j, k]", "ij,jk->ik", "matmul", 2),
        ("Y[k] = sum(i, j) A[i, j] * B[j, k]", "ij,jk->k", "matmul", 2),
        ("Y[i, K] = sum(j) A[i, j] * B[j, K]", "ij,jK->iK", "matmul", 2),
        ("Y[i, j] = A[i, j] + A[i, j]", "ij->ij:add(x0,x0)", "elementwise", 1),
        ("Y[i, j] = A[i, j] - A[j, i]", "ij,ji->ij:sub(x0,x1)", "elementwise", 1),
        ("Y[i, j, k] = A[i, j] * B[j, k]", "ij,jk->ijk:mul(x0,x1)", "elementwise", 1),
        ("Y[i, j] = A[i, j] / A[j, i] / 2", "ij,ji->ij:div(div(x0,x1),2.0)", "elementwise", 2),
        ("Y[i, j] = 1 - A[i, j] * A[j, i]", "ij,ji->ij:sub(1.0,mul(x0,x1))", "elementwise", 2),
        ("Y[i, j] = (1 - A[i, j]) * -A[j, i]", "ij,ji->ij:mul(sub(1.0,x0),neg(x1))", None, 3),
        ("Y[i, j] = exp(A[i, j] * (1 / n))", "ij->ij:exp(mul(x0,0.125))", "elementwise", 2),
        ("Y[i, j] = f16(silu(A[i, j]))", "ij->ij:f16(silu(x0))", "elementwise", 4),
        ("Y[i, j] = f32(H[i, j]) + A[i, j]", "ij,ij->ij:add(f32(x0),x1)", "elementwise", 1),
        ("Y[i, j] = C[i, j] * conj(C[j, i])", "ij,ji->ij:mul(x0,conj(x1))", "elementwise", 7),
        ("Y[i] = sum(j) C[i, j]", "ij->i:x0:add", "reduction", 2),
        ("Y[i] = sum(j) A[i, j]", "ij->i:x0:add", "reduction", 1),
        ("Y[i] = max(j) A[i, j]", "ij->i:x0:max", "reduction", 1),
        ("Y[i] = min(j) -A[i, j]", "ij->i:neg(x0):min", "reduction", 2),
        ("Y[i] = prod(j) A[i, j]", "ij->i:x0:mul", "reduction", 1),
        ("Y[] = sum(i, j) A[i, j] * A[j, i]", "ij,ji->", "matmul", 2),
        ("Y[i] = sum(j) square(A[i, j])", "ij->i:square(x0):add", "reduction", 2),
        ("Y[i, j, k=3] = A[i, j]", "ij->ijk:x0", "elementwise", 0),
        ("Y[i] = sum(k, j) pow(A[i, j], 2) + A[i, k]", "ij,ik->i:add(pow(x0,2.0),x1):add", None, 3),
    ],
)
def test_expressions(text, expression, kind, flops_per_element):
    op = node_of(text)
    assert isinstance(op, Einsum)
    assert expression in (None, op.expression(whole(op)))
    assert kind in (None, op.kind)
    assert op.flops(whole(op)) == flops_per_element * math.prod(op.space)


def test_an_op_has_the_dtype_of_its_expression():
    assert node_of("Y[i, j] = H[i, j] * 2").dtype == "f16"
    assert node_of("Y[i, j] = f64(H[i, j]) * 2").dtype == "f64"
    assert node_of("Y[i, j] = H[i, j] + f16(A[i, j])").dtype == "f16"
    assert node_of("Y[i, j] = less(H[i, j], 0)").dtype == "f16"
    assert node_of("Y[i, j] = c64(A[i, j]) * C[i, j]").dtype == "c64"


def test_a_broadcast_has_its_own_extent():
    op = node_of("Y[k=2*n, i, j] = A[i, j] split k=4")
    assert (op.shape, op.indices, op.operand_dims) == ((16, 8, 8), "kij", ((1, 2),))


def test_tensors_without_dimensions():
    program = resolve("T[] = sum(i, j) A[i, j]\nY[i, j] = A[i, j] / T[]")
    total, finished, quotient = program.nodes[5:8]
    assert total.shape == finished.shape == ()
    assert quotient.operand_dims == ((0, 1), ())
    assert quotient.operands == (0, 6)


ARGUMENTS = {1: (0.3,), 2: (0.3, 0.7), 3: (0.3, 0.7, -0.2)}
MEANING = {
    "rsqrt": lambda x: x**-0.5,
    "relu": lambda x: np.maximum(x, 0),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "div": np.divide,
    "sub": np.subtract,
    "mul": np.multiply,
    "neg": np.negative,
    "pow": np.power,
    "erf": math.erf,
} | dict.fromkeys(DTYPES, lambda x: x)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_constants_are_one_number(name):
    arguments = ARGUMENTS[FUNCTIONS[name][0]]
    expected = MEANING.get(name) or getattr(np, name)
    for signs in ((1, 1, 1), (-1, 1, 1)):
        values = [sign * value for sign, value in zip(signs, arguments, strict=False)]
        if values[0] < 0 and name in ("log", "sqrt", "rsqrt", "pow"):
            continue
        text = f"{name}({', '.join(map(str, values))})"
        op = node_of(f"Y[i, j] = A[i, j] * {text}")
        assert op.join.arguments[1].value == pytest.approx(float(expected(*values)), rel=1e-12)


def test_constants_know_parameters_and_infinity():
    assert render(node_of("Y[i, j] = A[i, j] + (n / 3 - -inf)").join) == "add(x0,inf)"
    assert render(node_of("Y[i, j] = maximum(-inf, A[i, j])", preset="small").join) == (
        "maximum(-inf,x0)"
    )
    # A constant of the program may have the name of a function.
    program = parse_program(
        "program p\nparam exp: paper=3\ninput A[exp] f32\nY[i] = exp(A[i]) * exp"
    )
    assert render(program.nodes[1].join) == "mul(exp(x0),3.0)"


def test_words_of_the_language_are_names_elsewhere():
    text = "program sum\ninput max[2] f32\nfill lower[2] f32 1\nsummary[s] = lower[s] * f32[s]"
    program = parse_program(text.replace("max", "f32"))
    assert (program.name, program.nodes[-1].name) == ("sum", "summary")


def test_fills():
    assert node_of("fill Y[n, 3] f16 -inf") == Fill(
        name="Y", shape=(8, 3), dtype="f16", below=-math.inf
    )
    assert node_of("fill Y[n, n] f32 lower 1 / n else -2.5e-1") == Fill(
        name="Y", shape=(8, 8), dtype="f32", below=0.125, above=-0.25
    )


def test_complex_and_real():
    there = node_of("Y[i, c] = complex A[i, j] split i=2 c=4")
    common = {"operands": (0,), "operand_dtypes": ("f32",)}
    assert there == Complexer(name="Y", shape=(8, 4), dtype="c64", indices="ic", **common)
    back = node_of("Y[i, d] = real C[i, c] split d=8")
    common = {"operands": (3,), "operand_dtypes": ("c64",)}
    assert back == Complexer(name="Y", shape=(8, 16), dtype="f32", indices="id", **common)


@pytest.mark.parametrize(
    ("line", "shape", "dims"),
    [
        ("Y[j] = squeeze K[i, j, k]", (8,), (None, 0, None)),
        ("Y[j, k] = squeeze K[i, j, k]", (8, 1), (None, 0, 1)),
        ("Y[a, i, j, b, k] = squeeze K[i, j, k]", (1, 1, 8, 1, 1), (1, 2, 4)),
        ("Y[j, a] = squeeze K[i, j, k] split j=3", (8, 1), (None, 0, None)),
    ],
)
def test_squeeze(line, shape, dims):
    node = node_of(line)
    assert isinstance(node, Squeezer)
    assert (node.shape, node.dims, node.dtype) == (shape, dims, "f32")


def test_select_reads_ranges():
    node = node_of("Y[i, j] = select H[i=n/2:n, j] split i=2 j=3")
    assert node == Select(
        name="Y",
        shape=(4, 8),
        dtype="f16",
        indices="ij",
        operands=(2,),
        operand_dtypes=("f16",),
        parts=(Piece(0, ((4, 8), (0, 8)), (0, 0)),),
    )


def test_concat_puts_operands_behind_each_other():
    node = node_of("Y[i, j] = concat(j) A[i, j], B[i, j], A[i, j]")
    assert isinstance(node, Select)
    assert (node.shape, node.operands) == ((8, 18), (0, 1, 0))
    assert node.parts == (
        Piece(0, ((0, 8), (0, 8)), (0, 0)),
        Piece(1, ((0, 8), (0, 2)), (0, 8)),
        Piece(2, ((0, 8), (0, 8)), (0, 10)),
    )


def test_opaque_ops():
    factor = node_of("Y[i, j] = cholesky A[i, j]")
    solution = node_of("Y[i, k] = solve A[i, j], B[j, k]")
    assert isinstance(factor, Opaque)
    assert (factor.kind, factor.shape, factor.expression(whole(factor))) == (
        "cholesky",
        (8, 8),
        "cholesky",
    )
    assert (solution.kind, solution.shape, solution.operands) == ("solve", (8, 2), (0, 1))
    assert (factor.flops(whole(factor)), solution.flops(whole(solution))) == (8**3 // 3, 8**2 * 2)
    assert [operand.shape for operand in solution.kernel_operands(whole(solution))] == [
        (8, 8),
        (8, 2),
    ]


def test_given_splits_are_those_of_the_statements_that_have_them():
    program = resolve(
        "P[i, c] = complex A[i, j] split c=2\nY[i, k] = sum(j) A[i, j] * B[j, k] split j=4\n"
        "Z[i, k] = Y[i, k] + 1"
    )
    assert program.given_splits == {"P": (1, 2), "Y": (1, 1, 4)}


TRAINING = """
program p
input A[6] f32
weight W[6] f32
Y[i] = A[i] * W[i]
training
input T[6] f32
far[i] = square(Y[i] - T[i])
loss[] = {loss}
"""


def test_the_training_section():
    text = TRAINING.format(loss="sum(i) far[i]")
    forward, training = parse_program(text), parse_program(text, training=True)
    assert [node.name for node in forward.nodes] == ["A", "W", "Y"]
    assert forward.loss is None
    assert training.nodes[:3] == forward.nodes
    assert training.nodes[training.loss].name == "loss.formation"
    assert training.nodes[training.loss].shape == ()


def test_a_loss_that_aggregates_nothing_is_its_own_node():
    text = TRAINING.format(loss="sum(i) far[i]") + "doubled[] = 2 * loss[]"
    program = parse_program(text, training=True)
    assert program.nodes[program.loss].name == "doubled"


@pytest.mark.parametrize(
    ("lines", "place", "message"),
    [
        ("loss[i] = far[i]", "8:1", "not with 'loss'"),
        ("fill one[] f32 1", "8:6", "not with 'one'"),
        ("S[a, i] = squeeze far[i]", "8:1", "not with 'S'"),
    ],
)
def test_the_training_section_ends_with_the_loss(lines, place, message):
    text = TRAINING.strip().replace("loss[] = {loss}", lines)
    assert parse_program(text, file="f").loss is None
    with pytest.raises(InputError, match=f"f:{place}: section 'training' ends with .* {message}"):
        parse_program(text, file="f", training=True)


def test_faults_of_the_training_section():
    with pytest.raises(InputError, match=r"^f: program 'chainmm' has no section 'training'$"):
        parse_program(CHAINMM.read_text(), file="f", training=True)
    with pytest.raises(InputError, match=r"^f:4:1: 'training' appears twice, in 'training'$"):
        parse_program("program p\nfill A[2] f32 1\ntraining\ntraining", file="f")
    empty = "program p\ninput A[2] f32\nY[i] = A[i]\ntraining"
    with pytest.raises(InputError, match=r"^f:4:1: section 'training' has no loss, in 'training'$"):
        parse_program(empty, file="f", training=True)
    # What is not part of the program must still follow the grammar.
    with pytest.raises(InputError, match=r"^f:5:7: found the end of the line, expected an exp"):
        parse_program(empty + "\nZ[i] =", file="f")


@pytest.mark.parametrize(
    ("line", "column", "message"),
    [
        # indices
        ("Y[i, k] = sum(z) A[i, j] * B[j, k]", 15, "unknown index 'z'"),
        ("Y[i, z] = sum(j) A[i, j] * B[j, k]", 6, "unknown output index 'z'"),
        ("Y[i, k] = A[i, j] * B[j, k]", 16, "index 'j' is neither in the output nor aggregated"),
        ("Y[i, j] = sum(j) A[i, j]", 15, "index 'j' appears twice"),
        ("Y[i] = A[i, i]", 13, "index 'i' appears twice"),
        ("Y[row, j] = A[row, j]", 15, "index 'row' must be one letter"),
        ("Y[_, j] = A[_, j]", 13, "index '_' must be one letter"),
        ("Y[i, j=n] = A[i, j]", 6, "index 'j' already has its extent from the operands"),
        ("Y[i, j] = A[i, j] + B[i, j]", 26, "index 'j' has 2 elements in 'B', but 8 in 'A'"),
        # splits
        ("Y[i, j] = A[i, j] split k=2", 25, "unknown index 'k'; the indices are i, j"),
        ("Y[i, j] = A[i, j] split i=2 i=4", 29, "'i' is set twice"),
        ("Y[i, j] = A[i, j] split i=0", 27, "'i' is 0, not a positive integer"),
        ("Y[i, j] = A[i, j] split i=1.5", 27, "'i' is 1.5, not a positive integer"),
        ("Y[i, j] = B[i, j] split j=4", 27, "index 'j', which has 2 elements, into 4 parts"),
        ("Y[i, c] = complex B[i, j] split c=2", 35, "'c', which has 1 elements, into 2 parts"),
        ("Y[i, j] = cholesky A[i, j] split i=2", 36, "'cholesky' cannot be split"),
        # tensors and names
        ("Y[i, j] = A[i, j] + Z[i, j]", 21, "unknown tensor 'Z'; so far there are A, B, H, C, K"),
        ("Y[i] = A[i]", 8, "'A' has 2 dimensions, not 1"),
        ("Y[i] = A[]", 8, "'A' has 2 dimensions, not 0"),
        ("A[i, j] = B[i, j]", 1, "tensor 'A' is defined twice"),
        ("Y[i=n] = 2 * n", 1, "'Y' reads no tensor: constants are made with 'fill'"),
        ("input X[n] f32", 7, "input 'X' is never read"),
        ("weight X[n] f32", 8, "weight 'X' is never read"),
        # functions and dtypes
        ("Y[i, j] = gelu(A[i, j])", 11, "unknown function 'gelu'; the functions are neg, exp, log"),
        ("Y[i, j] = exp(A[i, j], 2)", 11, "'exp' takes 1 argument, not 2"),
        ("Y[i, j] = pow(A[i, j])", 11, "'pow' takes 2 arguments, not 1"),
        ("Y[i, j] = A[i, j] + H[i, j]", 19, "'+' joins f32 and f16: cast one, as in f32(...)"),
        ("Y[i, j] = maximum(H[i, j], A[i, j])", 11, "'maximum' joins f16 and f32"),
        ("Y[i, j] = exp(C[i, j])", 11, "'exp' is not defined where c64 is read; defined are add"),
        ("Y[i, j] = C[i, j] * c64(exp(A[i, j]))", 25, "'exp' is not defined where c64 is read"),
        ("Y[i, j] = f32(C[i, j])", 11, "'f32' is not defined where c64 is read"),
        ("Y[i] = max(j) C[i, j]", 8, "'max' is not defined where c64 is read, only sum"),
        ("Y[i] = mean(j) A[i, j]", 16, "found 'A' behind ')': only sum, max, min and prod stand"),
        # constants
        ("Y[i, j] = A[i, j] * (1 / (n - 8))", 24, "'/' of 1.0, 0.0 has no value"),
        ("Y[i, j] = A[i, j] * log(-n)", 21, "'log' of -8.0 has no value"),
        ("Y[i, j] = A[i, j] * m", 21, "unknown parameter 'm'; the parameters are n"),
        ("input X[m] f32", 9, "unknown parameter 'm'; the parameters are n"),
        (
            "input X[square(square(square(square(square(9999999999)))))] f32",
            9,
            "'square' of 99999999840000000119 has no value",
        ),
        ("input X[0] f32", 9, "0 is not a number of elements: it must be whole, and at least 1"),
        ("input X[3, n / 3] f32", 12, "is not a number of elements"),
        ("input X[-n] f32", 9, "-8 is not a number of elements"),
        ("input X[1 / (n - n)] f32", 11, "'/' of 1, 0 has no value"),
        ("input X[A[i, j]] f32", 9, "'A' is a tensor, where a constant must be"),
        ("input X[gelu(n)] f32", 9, "unknown function 'gelu'"),
        (
            "input X[n] f31",
            12,
            "unknown dtype 'f31'; the dtypes are bool, u8, i8, i16, i32, i64, f16, bf16, f32, "
            "f64, c64",
        ),
        ("fill X[n] f31 0", 11, "unknown dtype 'f31'"),
        ("fill X[n] f16 1e6", 11, "f16 has no number 1000000.0"),
        ("fill X[n] u8 -1", 11, "u8 has no number -1"),
        ("fill X[n] i64 1 / 2", 11, "i64 has no number 0.5"),
        ("fill X[n] i32 inf", 11, "i32 has no number inf"),
        ("fill X[n] bool 2", 11, "bool has no number 2"),
        ("fill X[n] i64 9007199254740993", 11, "i64 has no number 9007199254740993"),
        ("Y[i, j] = A[i, j] + 9007199254740993", 21, "9007199254740993 has more digits than f64"),
        ("Y[i, j] = 1 - bool(A[i, j])", 13, "'-' is not defined for bool: cast it, as in f32(...)"),
        ("fill X[n] f32 lower 0 else 1", 6, "'X' has no lower triangle: it takes 2 dimensions"),
        # parameters
        ("param n: paper=1", 7, "parameter 'n' is declared twice"),
        ("param m: small=1", 7, "parameter 'm' has no value for preset 'paper'; its presets are"),
        ("param m", 7, "parameter 'm' has no value for preset 'paper'; its presets are none"),
        ("param m: paper=2.5", 16, "'paper' is 2.5, not a positive integer"),
        # views
        ("Y[i, c=4] = complex A[i, j]", 6, "'complex' determines the extent of index 'c'"),
        ("Y[i, c] = complex H[i, j]", 19, "'H' is f16; 'complex' needs f32"),
        ("Y[i, c] = real A[i, j]", 16, "'A' is f32; 'real' needs c64"),
        ("Y[i, j] = complex A[i, j]", 6, "index 'j' has another extent here: use another letter"),
        ("Y[j, c] = complex A[i, j]", 3, "index 'j' of the output is where 'A' has 'i'"),
        ("Y[c] = complex A[i, j]", 1, "'Y' has 1 dimensions, but 'A' has 2"),
        ("Y[i, j, c] = complex K[i, j, k]", 30, "index 'k' has 1 elements, but pairs need an even"),
        ("Y[i, i] = squeeze A[i, j]", 6, "index 'i' appears twice"),
        ("Y[i] = squeeze A[i, j]", 21, "index 'j' has 8 elements: only one can be dropped"),
        ("Y[j, i, k] = squeeze K[i, j, k]", 3, "index 'j' is not in the same order as in"),
        ("Y[i, j] = select A[i=0:9, j]", 20, "no range 0:9: it has 8 elements in 'A'"),
        ("Y[i, j] = select A[i=4:4, j]", 20, "index 'i' has no range 4:4"),
        ("Y[i, j] = select A[i=-1:4, j]", 22, "-1 is not a number of elements: it must be whole"),
        ("Y[j, i] = select A[i=0:4, j]", 3, "index 'j' of the output is where 'A' has 'i'"),
        ("Y[i, j] = concat(k) A[i, j], B[i, j]", 18, "unknown index 'k'; the indices are i, j"),
        ("Y[i, j] = concat(i) A[i, j], B[i, j]", 35, "'j' has 2 elements in 'B', but 8 in 'A'"),
        ("Y[i, j] = concat(j) A[i, j], H[i, j]", 30, "'H' is f16, but 'A' is f32"),
        ("Y[i, j] = concat(j) A[i, j], B[j, i]", 3, "of the output is where 'B' has 'j'"),
        ("Y[i, j] = cholesky B[i, j]", 20, "'B' is not square"),
        ("Y[j, i] = cholesky A[i, j]", 1, "the indices of the output are i, j"),
        ("Y[i, j] = cholesky H[i, j]", 20, "'H' is f16; 'cholesky' needs f32 or f64"),
        ("Y[i, j] = cholesky K[i, j, k]", 20, "'K' has 3 dimensions, not 2"),
        ("Y[i, k] = solve A[i, j], B[k, j]", 26, "is written X[i, k] = solve L[i, j], B[j, k]"),
        ("Y[k, i] = solve A[i, j], B[j, k]", 1, "the indices of the output are i, k"),
        # grammar
        ("Y[i, j] = A[i, j] @ B[i, j]", 19, "found '@'"),
        ("Y[i, j] A[i, j]", 9, "found 'A', expected '='"),
        ("Y[i, j] =   # nothing", 13, "found the end of the line, expected an expression"),
        ("Y[i, j] = A[i, j] +", 20, "found the end of the line, expected an expression"),
        ("Y[i, j] = sum A[i, j]", 15, "found 'A', expected '('"),
        ("Y[i, j] = (A[i, j]", 19, "found the end of the line, expected ')' or '+' or '-'"),
        ("Y[i, k] = solve A[i, j]", 24, "found the end of the line, expected ','"),
        ("fill X[n, n] f32 lower 0", 25, "found the end of the line, expected"),
        ("input X[n]", 11, "found the end of the line, expected a name"),
        ("Y[i, j] = A[i, j] split i=x", 27, "found 'x', expected a number"),
        ("program again", 9, "found 'again', expected '['"),
    ],
)  # fmt: skip
def test_faults_are_one_line_that_points(line, column, message):
    with pytest.raises(InputError) as caught:
        resolve(line)
    text = str(caught.value)
    assert text.startswith(f"test.einsum:8:{column}: "), text
    assert message in text
    assert text.endswith(f"in {line!r}")
    assert "\n" not in text


def test_expressions_may_be_long_but_not_endless():
    x = torch.arange(64.0).view(8, 8)
    for num in (115, 130):
        text = f"program p\ninput A[8, 8] f32\nY[i, j] = {' + '.join(num * ['A[i, j]'])}"
        if num == 115:
            result = run_graph(lower(parse_program(text), {}), {"A": x})
            torch.testing.assert_close(result["Y"], num * x)
        else:
            with pytest.raises(InputError, match="nested too deeply: name a part of it, in 'Y"):
                parse_program(text)


@pytest.mark.parametrize("deep", ["A[i, j] * ", "sin("])
def test_what_is_nested_as_deeply_as_may_be_is_differentiated(deep):
    expression = 118 * deep + "A[i, j]" + (118 * ")" if deep == "sin(" else "")
    text = f"program p\nweight A[2, 2] f32\ntraining\nloss[] = sum(i, j) {expression}"
    assert len(training_program(parse_program(text, training=True), learning_rate=0.1).nodes) > 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"preset": "large"}, "unknown preset 'large'; the presets are paper, small"),
        ({"params": {"m": 3}}, "unknown parameter 'm'; the parameters are n"),
        ({"params": {"n": 0}}, "parameter 'n' is 0, not a positive integer"),
        ({"params": {"n": 2.5}}, "parameter 'n' is 2.5, not a positive integer"),
    ],
)
def test_faults_of_the_choices_name_the_file(options, message):
    with pytest.raises(InputError) as caught:
        resolve("", **options)
    assert str(caught.value) == f"test.einsum: {message}"


def test_a_text_that_is_no_program():
    with pytest.raises(InputError, match=r"^test.einsum:1:1: found .*, expected 'program'"):
        parse_program("", file="test.einsum")
    with pytest.raises(InputError, match=r"^test.einsum:2:1: found 'input', expected 'program'"):
        parse_program("# a comment\ninput A[1] f32", file="test.einsum")
    with pytest.raises(InputError, match=r"^test.einsum:1:9: program 'p' has no ops, in"):
        parse_program("program p\nfill A[1] f32 0", file="test.einsum")


def test_a_number_of_elements_is_at_the_start_of_its_expression():
    source = parse("program p\ninput A[(n + 1) / 2 - 8] f32", "f").source
    (statement,) = parse(source.text, "f").statements
    with pytest.raises(InputError, match=r"f:2:10: -6.0 is not a number of elements"):
        Constants(source, {"n": 3}).extent(statement.extents[0])


def test_files_that_cannot_be_read(tmp_path):
    missing = str(tmp_path / "missing.einsum")
    with pytest.raises(InputError, match=r"missing\.einsum: .*No such file"):
        load_workload(program=missing)
    (tmp_path / "binary.einsum").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match=r"binary\.einsum: .*not UTF-8"):
        load_workload(program=str(tmp_path / "binary.einsum"))
