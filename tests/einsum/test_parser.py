from pathlib import Path

import pytest

from doppler.einsum import Apply, Einsum, Formation, Input, load_workload, parse_program
from doppler.errors import InputError

ROOT = Path(__file__).parents[2]
CHAINMM = ROOT / "workloads" / "chainmm.einsum"

HEAD = """\
program test
param n: paper=8 small=4
input A[n, n] f32
input B[n, 2] f32
input H[n, n] f16
"""


def resolve(line: str, **options):
    return parse_program(HEAD + line, file="test.einsum", **options)


def test_chainmm_is_what_its_text_says():
    program = parse_program(CHAINMM.read_text())
    assert program.name == "chainmm"
    assert program.parameters == {"n": 10_000}
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
        dtype="f32",
        indices="ikj",
        extents=(10_000, 10_000, 10_000),
        output_rank=2,
        operands=(2, 6),  # C, and DE from its formation
        operand_dims=((0, 2), (2, 1)),
        join=Apply("mul", (0, 1)),
        aggregation="add",
    )
    assert formation == Formation(
        name="CDE.formation", shape=(10_000, 10_000), dtype="f32", operand=7, aggregation="add"
    )
    assert isinstance(total, Einsum)
    assert total.operands == (10, 8)


def test_the_example_of_the_documentation_is_the_workload():
    assert CHAINMM.read_text() in (ROOT / "docs" / "einsum.md").read_text()


def test_values_of_parameters():
    assert parse_program(CHAINMM.read_text(), preset="small").parameters == {"n": 512}
    assert parse_program(CHAINMM.read_text(), params={"n": 7 * 64}).parameters == {"n": 448}
    # A program without presets takes all its values from outside.
    bare = parse_program("program p\nparam m\ninput A[m, 3] f64", params={"m": 2})
    assert bare.nodes == (Input(name="A", shape=(2, 3), dtype="f64"),)


@pytest.mark.parametrize(
    ("text", "expression", "kind", "flops_per_join_element"),
    [
        ("Y[i, k] = sum(j) A[i, j] * B[j, k]", "ij,jk->ik", "matmul", 2),
        ("Y[k] = sum(i, j) A[i, j] * B[j, k]", "ij,jk->k", "matmul", 2),
        ("Y[i, j] = A[i, j] + A[i, j]", "ij->ij:add(0,0)", "elementwise", 1),
        ("Y[i, j] = A[i, j] + A[j, i]", "ij,ji->ij:add(0,1)", "elementwise", 1),
        ("Y[i, j, k] = A[i, j] * B[j, k]", "ij,jk->ijk:mul(0,1)", "elementwise", 1),
        (
            "Y[i, j] = A[i, j] + A[i, j] * A[j, i]",
            "ij,ji->ij:add(0,mul(0,1))",
            "elementwise",
            2,
        ),
        ("Y[i] = sum(j) A[i, j]", "ij->i:0:add", "reduction", 1),
        ("Y[i] = sum(j) A[i, j] * A[i, j]", "ij->i:mul(0,0):add", "reduction", 2),
    ],
)
def test_expressions(text, expression, kind, flops_per_join_element):
    op = next(node for node in resolve(text).nodes if node.name == "Y")
    assert isinstance(op, Einsum)
    assert (op.expression, op.kind) == (expression, kind)
    assert op.flops_per_join_element == flops_per_join_element


def test_plain_functions_are_named_without_indices():
    total = resolve("C[i, j] = A[i, j] + A[j, i]\nY[i, j] = A[i, j] + C[i, j]").nodes[-1]
    assert isinstance(total, Einsum)
    assert total.expression == "add"


@pytest.mark.parametrize(
    ("line", "column", "message"),
    [
        ("Y[i, k] = sum(z) A[i, j] * B[j, k]", 15, "unknown index 'z'"),
        ("Y[i, z] = sum(j) A[i, j] * B[j, k]", 6, "unknown output index 'z'"),
        ("Y[i, k] = A[i, j] * B[j, k]", 16, "index 'j' is neither in the output nor aggregated"),
        ("Y[i, j] = sum(j) A[i, j]", 15, "index 'j' is here twice"),
        ("Y[i] = A[i, i]", 13, "index 'i' is here twice"),
        ("Y[row, j] = A[row, j]", 15, "index 'row' must be one letter"),
        ("Y[i, j] = A[i, j] split k=2", 25, "unknown index 'k'; the indices are i, j"),
        ("Y[i, j] = A[i, j] split i=2 i=4", 29, "'i' is set twice"),
        ("Y[i, j] = A[i, j] split i=0", 27, "'i' is 0, not a positive integer"),
        ("Y[i, j] = B[i, j] split j=4", 27, "index 'j', which has 2 elements, into 4 parts"),
        ("Y[i, j] = A[i, j] + Z[i, j]", 21, "unknown tensor 'Z'; so far there are A, B, H"),
        ("Y[i, j] = A[i, j] + B[i, j]", 26, "index 'j' has 2 elements in 'B', but 8 in 'A'"),
        ("Y[i, j] = A[i, j] + H[i, j]", 21, "'H' is f16, but 'A' is f32"),
        ("Y[i] = A[i]", 8, "'A' has 2 dimensions, not 1"),
        ("A[i, j] = B[i, j]", 1, "tensor 'A' is defined twice"),
        ("Y[i] = mean(j) A[i, j]", 8, "unknown aggregation 'mean'; the aggregations are sum"),
        ("input X[m] f32", 9, "unknown parameter 'm'; the parameters are n"),
        ("input X[0] f32", 9, "at least 1 element"),
        ("input X[n] f31", 12, "unknown dtype 'f31'; the dtypes are f16, f32, f64"),
        ("param n: paper=1", 7, "parameter 'n' is declared twice"),
        ("param m: small=1", 7, "parameter 'm' has no value for preset 'paper'; its presets are"),
        ("param m", 7, "parameter 'm' has no value for preset 'paper'; its presets are none"),
        ("Y[i, j] = A[i, j] @ B[i, j]", 19, "found '@'"),
        ("Y[i, j] A[i, j]", 9, "found 'A', expected '='"),
        ("Y[i, j] =   # nothing", 13, "found the end of the line, expected a name"),
        ("input X[n]", 11, "found the end of the line, expected a name"),
        ("Y[i, j] = A[i, j] split i=x", 27, "found 'x', expected a number"),
    ],
)
def test_faults_are_one_line_that_points(line, column, message):
    with pytest.raises(InputError) as caught:
        resolve(line)
    text = str(caught.value)
    assert text.startswith(f"test.einsum:6:{column}: ")
    assert message in text
    assert text.endswith(f"in {line!r}")
    assert "\n" not in text


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


def test_files_that_cannot_be_read(tmp_path):
    missing = str(tmp_path / "missing.einsum")
    with pytest.raises(InputError, match=r"missing\.einsum: .*No such file"):
        load_workload(program=missing)
    (tmp_path / "binary.einsum").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match=r"binary\.einsum: .*not UTF-8"):
        load_workload(program=str(tmp_path / "binary.einsum"))
