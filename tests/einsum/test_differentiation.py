"""Training programs against torch.autograd: every rule, on programs small enough to read."""

from dataclasses import replace
from random import Random

import pytest
import torch
from autograd_oracle import check_training, draw_inputs, evaluate, random_splits

from doppler.einsum import (
    Einsum,
    Input,
    Program,
    Select,
    insert_formations,
    lower,
    parse_program,
    training_program,
)
from doppler.einsum.program import Piece
from doppler.executor import run_graph
from doppler.graph.scalar import DTYPES, FUNCTIONS, Apply, Element
from doppler.support.errors import InputError

torch.set_num_threads(1)


def program_of(text: str) -> Program:
    """Lines, separated by semicolons; without ``training`` all of it is the forward part."""
    lines = [line.strip() for line in text.replace(";", "\n").strip().splitlines()]
    if "training" not in lines:
        lines.insert(-1, "training")
    return parse_program("\n".join(["program test", *lines]), training=True)


def check(text: str, *, is_quantized: bool = False, num_splits: int = 3, tolerance: float = 1e-12):
    """The training program and two to three decompositions of it, on random inputs."""
    program = program_of(text)
    trained = training_program(program, learning_rate=0.5)
    rng = Random(0)
    splits = [{}, *(random_splits(trained, rng) for _ in range(num_splits - 1))]
    inputs = draw_inputs(program, is_quantized=is_quantized)
    return check_training(program, inputs, splits=splits, tolerance=tolerance)


def described(program: Program) -> dict[str, str]:
    """Per op, formations left out: its kernel as a whole, and what it reads."""
    return {
        node.name: f"{node.expression(tuple((0, extent) for extent in node.space))} of "
        + " ".join(program.nodes[operand].name for operand in node.operands)
        for node in program.nodes
        if node.kind not in ("input", "formation")
    }


# --- Einsums --------------------------------------------------------------------------------------

EINSUMS = {
    "contraction": "Y[i, k] = sum(j) W[i, j] * V[j, k]; loss[] = sum(i, k) square(Y[i, k])",
    "contraction with transposed operands": """
        Y[k, i] = sum(j) W[i, j] * V[j, k]; loss[] = sum(i, k) square(Y[k, i])""",
    "batched contraction over two dimensions": """
        P[i, j, k] = W[i, j] * V[j, k]
        Y[j] = sum(i, k) P[i, j, k] * W[i, j]
        loss[] = sum(j) tanh(Y[j])""",
    "contraction with its own transpose": """
        Y[i, k] = sum(j) W[i, j] * W[k, j]; loss[] = sum(i, k) square(Y[i, k]) * V[i, k]""",
    "loss that is a contraction": "loss[] = sum(i, j) W[i, j] * V[i, j]",
    "loss that is linear in a weight": "loss[] = sum(i, j, k) V[j, k] * 3 + W[i, j]",
    "three operands of different dimensions": """
        Y[i, k] = sum(j) W[i, j] * V[j, k] * tanh(b[i]); loss[] = sum(i, k) square(Y[i, k])""",
    "one operand read in two ways": """
        Y[i, k] = sum(j) V[i, j] * V[j, k] + W[i, k]; loss[] = sum(i, k) square(Y[i, k])""",
    "broadcast dimension": """
        Y[i, j, l=4] = W[i, j] * V[i, j]; Z[i, l] = sum(j) square(Y[i, j, l])
        loss[] = sum(i, l) tanh(Z[i, l])""",
    "aggregated broadcast dimension": """
        Y[i, l=4] = sum(j) W[i, j] * V[i, j]; loss[] = sum(i, l) square(Y[i, l])""",
    "scalars on the way": "s[] = sum(i) square(b[i]); Y[i] = b[i] / s[]; loss[] = max(i) exp(Y[i])",
    "loss that is read by its own gradient": """
        s[] = sum(i, j) square(W[i, j]); loss[] = sqrt(s[])""",
    "maximum": "Y[i] = max(j) W[i, j]; loss[] = sum(i) square(Y[i])",
    "minimum of everything": "loss[] = min(i, j) W[i, j]",
    "maximum of a function of two operands": """
        Y[j] = max(i, k) tanh(W[i, j] * V[j, k]); loss[] = sum(j) exp(Y[j])""",
    "product": "Y[i] = prod(j) W[i, j]; loss[] = sum(i) square(Y[i])",
    "product of a function of two operands": """
        Y[j] = prod(i, k) exp(W[i, j]) - V[j, k]; loss[] = sum(j) tanh(Y[j])""",
    "softmax, cross entropy": """
        top[i] = max(j) W[i, j]; shifted[i, j] = W[i, j] - top[i]
        powers[i, j] = exp(shifted[i, j]); total[i] = sum(j) powers[i, j]
        Y[i, j] = powers[i, j] / total[i]
        loss[] = sum(i, j) -V[i, j] * log(Y[i, j])""",
    "RMSNorm": """
        m[i] = sum(j) square(W[i, j]) * (1 / 3); scale[i] = rsqrt(m[i])
        Y[i, j] = W[i, j] * scale[i] * b[j]; loss[] = sum(i, j) V[i, j] * Y[i, j]""",
    "diamond": """
        A[i, j] = tanh(W[i, j]); B[i, j] = exp(A[i, j]); C[i, j] = A[i, j] * V[i, j]
        D[i, j] = square(A[i, j]); E[i, j] = B[i, j] * C[i, j] + D[i, j] * A[i, j]
        loss[] = sum(i, j) E[i, j]""",
    "nodes that nobody reads": """
        Y[i] = sum(j) W[i, j]; Z[i] = exp(Y[i]); loss[] = sum(i) square(Y[i])""",
    "names that are taken": """
        d_Y[i] = 2 * b[i]; Y[i] = exp(d_Y[i]); loss[] = sum(i) square(Y[i]) * d_Y[i]""",
    "function that is constant between steps": """
        S[i, j] = less(0.25, W[i, j]); T[i, j] = tanh(W[i, j])
        loss[] = sum(i, j) S[i, j] * T[i, j]""",
}


@pytest.mark.parametrize("text", EINSUMS.values(), ids=EINSUMS)
def test_einsums(text):
    weights = {name: f"weight {name}[3, 3] f64" for name in ("W", "V")} | {"b": "weight b[3] f64"}
    used = [line for name, line in weights.items() if f"{name}[" in text.replace("d_Y[", "")]
    check("\n".join([*used, text]))


@pytest.mark.parametrize("aggregation", ["max", "min"])
def test_ties_share_the_gradient(aggregation):
    check(
        f"""
        weight W[3, 4, 5] f64
        Y[i] = {aggregation}(j, k) W[i, j, k]
        Z[i, j] = {aggregation}(k) W[i, j, k] * 2
        A[i, j] = Z[i, j] + Y[i]
        loss[] = sum(i, j) exp(A[i, j])
        """,
        is_quantized=True,
    )


def test_a_tie_by_hand():
    program = program_of("weight W[4] f64; Y[] = max(i) W[i]; loss[] = 3 * Y[]")
    inputs = {"W": torch.tensor([2.0, 1.0, 2.0, 2.0], dtype=torch.float64)}
    trained = check_training(program, inputs, splits=[{}, {"d_Y.ties": (4,), "Y": (2,)}])
    kernels = described(trained)
    assert kernels["d_Y.ties"] == "i,->:equal(x0,x1):add of W Y.formation"
    assert kernels["d_Y.share"] == "->:div(3.0,x0) of d_Y.ties.formation"
    assert kernels["d_W"] == ",i,->i:mul(x0,equal(x1,x2)) of d_Y.share W Y.formation"
    new = evaluate(trained, inputs)["W.new"]
    assert new.tolist() == [1.5, 1.0, 1.5, 1.5]  # less half of 3 / 3 each


# --- Scalar functions -----------------------------------------------------------------------------

POSITIVE = ("log", "sqrt", "rsqrt")
UNARY = [name for name, (arity, _) in FUNCTIONS.items() if arity == 1 and name not in DTYPES]
BINARY = [name for name, (arity, _) in FUNCTIONS.items() if arity == 2]


@pytest.mark.parametrize("is_quantized", [False, True])
@pytest.mark.parametrize("name", UNARY)
def test_functions_of_one_argument(name, is_quantized):
    argument = "square(W[i]) + 0.5" if name in POSITIVE else "W[i]"
    check(
        f"""
        weight W[6] f64; weight V[6, 2] f64
        A[i] = {argument}
        Y[i] = {name}(A[i])
        Z[i, j] = V[i, j] - 3 * {name}({argument}) * V[i, j]
        loss[] = sum(i, j) Z[i, j] * (Y[i] + A[i])
        """,
        is_quantized=is_quantized,
        num_splits=2,
    )


@pytest.mark.parametrize("is_quantized", [False, True])
@pytest.mark.parametrize("name", BINARY)
def test_functions_of_two_arguments(name, is_quantized):
    one, other = "W[i]", "V[i, j]"
    if name == "div":
        other = "(square(V[i, j]) + 0.5)"
    elif name == "pow":
        one = "(square(W[i]) + 0.5)"
    check(
        f"""
        weight W[6] f64; weight V[6, 2] f64
        Y[i, j] = {name}({one}, {other})
        Z[i, j] = tanh(W[i] * {name}({one}, {other}))
        loss[] = sum(i, j) Z[i, j] + Y[i, j] * (W[i] + V[i, j])
        """,
        is_quantized=is_quantized,
        num_splits=2,
    )


@pytest.mark.parametrize("exponent", ["0", "1", "2", "3", "-1.5"])
def test_powers(exponent):
    base = "square(W[i]) + 0.1" if "." in exponent else "W[i]"
    check(f"weight W[6] f64; loss[] = sum(i) pow({base}, {exponent}) + pow(2, W[i])")


def test_powers_of_zero():
    values = torch.tensor([0.0, 0.0, 2.0, 0.5], dtype=torch.float64)
    exponents = torch.tensor([2.0, 0.0, 0.0, 1.5], dtype=torch.float64)
    text = "weight W[4] f64; weight V[4] f64; loss[] = sum(i) pow(W[i], V[i]) + pow(0, V[i])"
    check_training(program_of(text), {"W": values, "V": exponents}, splits=[{}])


def test_constants_that_are_far_from_1_do_not_overflow():
    text = """
        weight W[2] f32; input X[2] f32; input Z[2] f32
        loss[] = sum(i) 1e-30 * X[i] * W[i] * Z[i]"""
    inputs = {"W": torch.ones(2), "X": torch.full((2,), 1e25), "Z": torch.full((2,), 1e20)}
    trained = training_program(program_of(text), learning_rate=1.0)
    result = run_graph(lower(trained, {}), inputs)
    torch.testing.assert_close(result["W.new"], torch.full((2,), -1e15))


@pytest.mark.parametrize(("wide", "narrow"), [("f64", "f32"), ("f32", "f16"), ("f64", "f16")])
def test_casts(wide, narrow):
    """A gradient has the dtype of what it is the gradient of, and is summed in the wider one."""
    trained = check(
        f"""
        weight W[3, 4] {wide}; weight b[4] {narrow}; weight c[3] {narrow}
        X[i, j] = {narrow}(W[i, j])
        Y[i, j] = {wide}(X[i, j] * b[j]) + {wide}(c[i])
        m[j] = max(i) {narrow}(Y[i, j])
        loss[] = sum(i, j) square(Y[i, j]) + {wide}(m[j])
        """,
        tolerance={"f32": 1e-6, "f16": 5e-3}[narrow],
    )
    by_name = {node.name: node for node in trained.nodes}
    assert by_name["d_X"].dtype == by_name["d_b"].dtype == by_name["d_c"].dtype == narrow
    assert described(trained)["d_c"].split(" of ")[0] == "ij->i:x0:add"


# --- Other nodes ----------------------------------------------------------------------------------

VIEWS = {
    "squeezed away": """
        weight W[3, 1, 4] f64
        Y[i, j] = squeeze W[i, u, j]; loss[] = sum(i, j) exp(Y[i, j])""",
    "squeezed in": """
        weight W[3, 4] f64
        Y[i, u, j, v] = squeeze W[i, j]; Z[i, j, v] = sum(u) exp(Y[i, u, j, v])
        loss[] = sum(i, j, v) square(Z[i, j, v]) + Z[i, j, v]""",
    "squeezed both ways, under a sum": """
        weight W[3, 1, 4] f64
        Y[i, j, v] = squeeze W[i, u, j]; Z[i, v] = sum(j) Y[i, j, v]
        loss[] = sum(i, v) exp(Z[i, v])""",
    "squeezed, and then only repeated": """
        weight W[3, 1] f64
        Y[i] = squeeze W[i, u]; loss[] = sum(i) Y[i]""",
    "a slice": """
        weight W[5, 4] f64
        Y[i, j] = select W[i=1:4, j=2:4]; loss[] = sum(i, j) exp(Y[i, j])""",
    "slices that overlap": """
        weight W[5] f64
        Y[i] = select W[i=0:3]; Z[i] = select W[i=1:4]; loss[] = sum(i) exp(Y[i] * Z[i])""",
    "a sum of slices, which repeats": """
        weight W[5, 2] f64
        Y[i, j] = select W[i=1:3, j]; loss[] = sum(i, j) Y[i, j]""",
    "a concatenation": """
        weight W[2, 3] f64; weight V[4, 3] f64; input X[1, 3] f64
        Y[i, j] = concat(i) W[i, j], X[i, j], V[i, j]
        m[i] = max(j) Y[i, j]; loss[] = sum(i, j) square(Y[i, j]) + exp(m[i])""",
    "a concatenation with itself": """
        weight W[3, 2] f64
        Y[i, j] = concat(j) W[i, j], W[i, j]; loss[] = sum(i, j) exp(Y[i, j])""",
    "a transposed slice": """
        weight W[4, 3] f64; input V[3, 3] f64
        S[i, j] = select W[i=1:4, j]; Y[j, i] = S[i, j] + V[j, i]
        loss[] = sum(i, j) exp(Y[j, i]) * V[j, i]""",
    "a mask": """
        weight W[4, 4] f64; fill mask[4, 4] f64 lower 0 else -1e9
        Y[i, j] = W[i, j] + mask[i, j]; Z[i, j] = exp(Y[i, j]) * W[i, j]
        loss[] = sum(i, j) Z[i, j]""",
}


@pytest.mark.parametrize("text", VIEWS.values(), ids=VIEWS)
def test_views(text):
    check(text)


COMPLEX = {
    "pairs are rotated": """
        weight W[3, 4] f32; weight R[3, 2] c64
        P[i, c] = complex W[i, d]; T[i, c] = P[i, c] * R[i, c]; Y[i, d] = real T[i, c]
        loss[] = sum(i, d) exp(Y[i, d]) * W[i, d]""",
    "a contraction": """
        weight A[3, 4] c64; weight B[4, 2] c64
        C[i, k] = sum(j) A[i, j] * B[j, k]; Y[i, l] = real C[i, k]
        loss[] = sum(i, l) square(Y[i, l]) + Y[i, l]""",
    "sums, differences, conjugates": """
        weight A[3, 4] c64; weight b[4] c64
        C[i, j] = A[i, j] * conj(b[j] - 2 * A[i, j]) + -conj(A[i, j])
        s[j] = sum(i) c64(C[i, j]) * conj(A[i, j]) * b[j]
        Y[l] = real s[j]; loss[] = sum(l) tanh(0.1 * Y[l])""",
    "a loss that is linear in pairs": """
        weight A[3, 2] c64; Y[i, l] = real A[i, j]; loss[] = sum(i, l) 2 * Y[i, l]""",
}


@pytest.mark.parametrize("text", COMPLEX.values(), ids=COMPLEX)
def test_complex_numbers(text):
    check(text, tolerance=1e-5)


def test_a_complex_contraction_yields_contractions():
    kernels = described(check(COMPLEX["a contraction"], tolerance=1e-5))
    assert kernels["d_A"] == "ik,jk->ij of d_C d_A.conj"
    assert kernels["d_A.conj"] == "jk->jk:conj(x0) of B"
    assert kernels["d_B"] == "ij,ik->jk of d_B.conj d_C"


def test_an_op_that_rounds_its_result():
    """The model lets an op's dtype differ from that of its join."""
    program = program_of("weight W[5] f64; Y[i] = f32(W[i]); loss[] = sum(i) exp(Y[i])")
    rounding = replace(program.nodes[1], join=Element(0))
    program = replace(program, nodes=(program.nodes[0], rounding, *program.nodes[2:]))
    trained = check_training(program, draw_inputs(program), splits=[{}], tolerance=1e-6)
    assert described(trained)["d_W"] == "i->i:f64(x0) of d_Y"


def program_with_a_select(parts: tuple[Piece, ...]) -> Program:
    """The sum of exp of what is selected, nine elements, of four; no text says such a select."""
    weight = Input(name="W", shape=(4,), dtype="f64", is_weight=True)
    spread = Select(
        name="S",
        shape=(9,),
        dtype="f64",
        operands=(0,),
        operand_dtypes=("f64",),
        parts=parts,
    )
    powers = Einsum(
        name="Y",
        shape=(9,),
        dtype="f64",
        indices="i",
        operands=(1,),
        operand_dtypes=("f64",),
        extents=(9,),
        operand_dims=((0,),),
        join=Apply("exp", (Element(0),)),
    )
    fields = {"name": "loss", "shape": (), "operands": (2,), "indices": "i", "extents": (9,)}
    loss = replace(powers, **fields, join=Element(0), aggregation="add")
    nodes, finished = insert_formations([weight, spread, powers, loss])
    return Program(name="test", parameters={}, nodes=nodes, given_splits={}, loss=finished[-1])


def test_a_select_that_reads_elements_once_has_one_gradient():
    parts = Piece(0, ((0, 2),), (1,)), Piece(0, ((2, 4),), (5,))
    program = program_with_a_select(parts)
    trained = check_training(program, draw_inputs(program), splits=[{}, {"d_W": (3,)}])
    assert [name for name in described(trained) if name.startswith("d_W")] == ["d_W"]


def test_a_select_that_reads_elements_twice_and_pads():
    parts = Piece(0, ((0, 3),), (1,)), Piece(0, ((2, 4),), (5,)), Piece(0, ((1, 3),), (7,))
    program = program_with_a_select(parts)
    trained = check_training(program, draw_inputs(program), splits=[{}, {"d_W.part1": (3,)}])
    kernels = described(trained)
    assert "d_W.sum0" in kernels
    assert kernels["d_W.part0"] == "copy of Y"  # the derivative of exp, at hand


# --- What is built --------------------------------------------------------------------------------


def test_a_network_is_differentiated_as_by_hand():
    program = program_of(
        """
        input X[6, 4] f64; weight W1[4, 5] f64; weight W2[5, 3] f64; input T[6, 3] f64
        H[b, h] = sum(i) X[b, i] * W1[i, h]
        R[b, h] = relu(H[b, h])
        Y[b, o] = sum(h) R[b, h] * W2[h, o]
        training
        loss[] = sum(b, o) square(Y[b, o] - T[b, o]) * (1 / 2)
        """
    )
    trained = check_training(program, draw_inputs(program))
    before = described(program)
    assert {name: text for name, text in described(trained).items() if name not in before} == {
        "d_Y": "bo,bo->bo:sub(x0,x1) of Y.formation T",
        "d_R": "bo,ho->bh of d_Y W2",
        "d_H": "bh,bh->bh:mul(x0,less(0.0,x1)) of d_R.formation R",
        "d_W2": "bh,bo->ho of R d_Y",
        "d_W1": "bi,bh->ih of X d_H",
        "W1.new": "ih,ih->ih:sub(x0,mul(0.5,x1)) of W1 d_W1.formation",
        "W2.new": "ho,ho->ho:sub(x0,mul(0.5,x1)) of W2 d_W2.formation",
    }
    assert [node.name for node in trained.nodes if node.kind == "matmul"] == [
        *("H", "Y"),
        *("d_R", "d_W2", "d_W1"),
    ]


def test_what_only_repeats_is_not_stored():
    program = program_of(
        """
        weight W[3, 4] f64; weight v[3] f64
        m[i] = sum(j) W[i, j]; n[i] = m[i] * (1 / 4) + v[i]; Y[i, k=5] = n[i] + 1
        loss[] = sum(i, k) square(Y[i, k])
        """
    )
    trained = check_training(program, draw_inputs(program), splits=[{}, {"d_n": (3, 2)}])
    before = described(program)
    assert {name: text for name, text in described(trained).items() if name not in before} == {
        "d_Y": "ik->ik:mul(2.0,x0) of Y",
        "d_n": "ik->i:x0:add of d_Y",
        "d_m": "i->i:mul(0.25,x0) of d_n.formation",
        "W.new": "ij,i->ij:sub(x0,mul(0.5,x1)) of W d_m",
        "v.new": "i,i->i:sub(x0,mul(0.5,x1)) of v d_n.formation",
    }


def test_what_is_cut_out_of_a_gradient_is_stored_once():
    trained = check(
        """
        weight W[2, 3] f64; weight V[4, 3] f64
        Y[i, j] = concat(i) W[i, j], V[i, j]; m[i] = sum(j) Y[i, j]; loss[] = sum(i) exp(m[i])
        """
    )
    kernels = described(trained)
    assert kernels["d_Y.whole"] == "i->ij:x0 of d_m"
    assert kernels["d_W"] == kernels["d_V"] == "copy of d_Y.whole"


def test_contributions_are_summed_in_a_balanced_tree():
    uses = "; ".join(f"Y{k}[i] = {k + 1} * tanh(W[i])" for k in range(5))
    total = " * ".join(f"Y{k}[i]" for k in range(5))
    trained = check(f"weight W[3] f64; {uses}; loss[] = sum(i) {total}")
    kernels = described(trained)
    assert {name: kernels[name].split(" of ")[1] for name in kernels if "d_W" in name} == {
        **{f"d_W.Y{k}": f"d_Y{k} W" for k in range(5)},
        "d_W.sum0": "d_W.Y0 d_W.Y1",
        "d_W.sum1": "d_W.Y2 d_W.Y3",
        "d_W.sum2": "d_W.sum0 d_W.sum1",
        "d_W": "d_W.sum2 d_W.Y4",
    }


def test_given_splits_carry_over_by_index():
    program = program_of(
        """
        weight W[4, 6] f64; input X[5, 4] f64
        Y[b, o] = sum(i) X[b, i] * W[i, o] split b=2 i=4 o=3
        Z[b, o] = exp(Y[b, o]) split b=5
        loss[] = sum(b, o) Z[b, o]
        """
    )
    trained = training_program(program, learning_rate=0.5)
    assert trained.given_splits == {
        **program.given_splits,
        "d_W": (4, 3, 2),
        "W.new": (4, 3),
    }
    check_training(program, draw_inputs(program), splits=[trained.given_splits])


def test_a_gradient_of_zero_changes_nothing():
    program = program_of("weight W[3] f64; loss[] = sum(i) W[i] - W[i]")
    check_training(program, draw_inputs(program), splits=[{}])


FAULTS = {
    "weight W[3] f64; Y[i] = exp(W[i]); loss[] = sum(i) sign(Y[i])": (
        "program 'test': the loss does not depend on the weight 'W'"
    ),
    "input X[3] f64; loss[] = sum(i) X[i]": "program 'test' has no weights to train",
    "weight W[3, 3] f64; L[i, j] = cholesky W[i, j]; loss[] = sum(i, j) L[i, j]": (
        "op 'L': cholesky has no gradient here"
    ),
    "weight W[3] f64; loss[] = sum(i) f64(i64(W[i] * 9))": (
        "program 'test': the loss does not depend on the weight 'W'"
    ),
    "weight W[3] f64; Q[i] = i64(W[i]); loss[] = sum(i) f64(Q[i])": (
        "program 'test': the loss does not depend on the weight 'W'"
    ),
    "weight W[3] i64; loss[] = sum(i) f64(W[i])": (
        "program 'test': the weight 'W' is i64, which cannot be trained: make it an input, or a "
        "weight of f16, bf16, f32, f64 or c64"
    ),
    "weight W[3] f64; loss[] = sum(i) i64(W[i])": (
        "program 'test': the loss 'loss' is not one real number"
    ),
    "weight W[3] c64; loss[] = sum(i) W[i]": (
        "program 'test': the loss 'loss' is not one real number"
    ),
    "weight W[3] f32; C[i] = c64(W[i]); Y[j] = real C[i]; loss[] = sum(j) Y[j]": (
        "op 'C': a complex number cannot be cast to f32"
    ),
}


@pytest.mark.parametrize("text", FAULTS)
def test_faults(text):
    with pytest.raises(InputError) as raised:
        training_program(program_of(text), learning_rate=0.5)
    assert str(raised.value) == FAULTS[text]


def test_a_program_without_a_loss():
    program = parse_program("program test\nweight W[3] f64\nY[i] = exp(W[i])")
    with pytest.raises(InputError, match=r"^program .test. has no loss"):
        training_program(program, learning_rate=0.5)
