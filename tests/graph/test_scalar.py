"""Scalar functions: as text, simplified, and differentiated."""

import math

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from doppler.graph.scalar import (
    DTYPES,
    FUNCTIONS,
    Apply,
    Element,
    Number,
    Scalar,
    count_flops,
    map_elements,
    parse_scalar,
    render,
)
from doppler.graph.scalar_algebra import (
    add,
    cast,
    conj,
    div,
    dtype_of,
    list_elements,
    mul,
    neg,
    power,
    sub,
)
from doppler.graph.scalar_derivative import adjoint_of

torch.set_num_threads(1)

SIMPLIFYING = {
    **{"add": add, "sub": sub, "mul": mul, "div": div, "neg": neg, "pow": power, "conj": conj}
}
TORCH = {
    **{"neg": torch.neg, "exp": torch.exp, "log": torch.log, "sqrt": torch.sqrt},
    **{"rsqrt": torch.rsqrt, "relu": torch.relu, "square": torch.square, "abs": torch.abs},
    **{"sigmoid": torch.sigmoid, "silu": torch.nn.functional.silu, "tanh": torch.tanh},
    **{"sign": torch.sign, "conj": torch.conj_physical},
    **{"sin": torch.sin, "cos": torch.cos, "erf": torch.erf},
    "where": lambda c, a, b: torch.where(c != 0, a, b),
    **{"add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div, "pow": torch.pow},
    **{"maximum": torch.maximum, "minimum": torch.minimum},
    "equal": lambda a, b: (a == b).double(),
    "less": lambda a, b: (a < b).double(),
    "f64": lambda a: a.double(),
    "f32": lambda a: a.float(),
}


def evaluate(scalar: Scalar, elements) -> torch.Tensor:
    if isinstance(scalar, Element):
        return elements[scalar.operand]
    if isinstance(scalar, Number):
        return torch.tensor(scalar.value, dtype=torch.float64)
    return TORCH[scalar.function](*(evaluate(one, elements) for one in scalar.arguments))


def simplified(scalar: Scalar) -> Scalar:
    """The scalar, put together again by the functions of scalar_algebra."""
    if not isinstance(scalar, Apply):
        return scalar
    arguments = tuple(simplified(argument) for argument in scalar.arguments)
    build = SIMPLIFYING.get(scalar.function)
    return build(*arguments) if build else Apply(scalar.function, arguments)


def scalars(functions) -> st.SearchStrategy[Scalar]:
    """Trees of functions over three elements and a few constants."""
    leaves = st.one_of(
        st.builds(Element, st.integers(0, 2)),
        st.builds(Number, st.sampled_from([-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0])),
    )

    def calls(inner):
        return st.sampled_from(sorted(functions)).flatmap(
            lambda name: st.tuples(*[inner] * FUNCTIONS[name][0]).map(
                lambda arguments: Apply(name, arguments)
            )
        )

    return st.recursive(leaves, calls, max_leaves=8)


# --- Text -----------------------------------------------------------------------------------------


@given(scalar=scalars(FUNCTIONS))
def test_text_and_back(scalar):
    assert parse_scalar(render(scalar)) == scalar


@pytest.mark.parametrize("value", [math.inf, -math.inf, -0.0, 1e-300, 0.1])
def test_numbers_keep_every_bit(value):
    (read,) = parse_scalar(render(Apply("neg", (Number(value),)))).arguments
    assert math.copysign(1.0, read.value) == math.copysign(1.0, value)
    assert read.value == value


@pytest.mark.parametrize(
    "text",
    [
        *("", "x", "y0", "exp", "exp(x0", "exp(x0, x1)", "add(x0)", "x0 + x1", "-x0", "'a'"),
        *("x0.x1", "x0,x1", "x0,", "exp()", "exp(x0,)", "exp(x0))", ")", "exp(,x0)", "1 2", "0x1"),
    ],
)
def test_what_is_no_scalar(text):
    with pytest.raises(ValueError, match=r"is not a scalar function$"):
        parse_scalar(text)


def test_text_may_be_nested_more_deeply_than_python_allows_brackets():
    scalar = Element(0)
    for _ in range(300):
        scalar = Apply("sin", (scalar,))
    assert render(parse_scalar(render(scalar))) == render(scalar)


def test_flops():
    silu = parse_scalar("mul(silu(x0),f32(x1))")
    assert count_flops(silu) == 4 + 1
    assert count_flops(parse_scalar("sub(mul(x0,conj(x1)),x2)"), is_complex=True) == 2 + 6 + 1
    assert count_flops(Element(0)) == count_flops(Number(1.0)) == 0


def test_elements():
    scalar = parse_scalar("add(x2,mul(x0,x2))")
    assert list_elements(scalar) == [2, 0]
    doubled = map_elements(scalar, lambda k: Element(2 * k))
    assert render(doubled) == "add(x4,mul(x0,x4))"


# --- Simplification -------------------------------------------------------------------------------

SIMPLE = {
    "mul(1,x0)": "x0",
    "mul(x0,0)": "0.0",
    "mul(x0,-1)": "neg(x0)",
    "mul(x0,3)": "mul(3.0,x0)",
    "mul(mul(2,x0),mul(x1,3))": "mul(6.0,mul(x0,x1))",
    "mul(neg(x0),x1)": "neg(mul(x0,x1))",
    "mul(neg(x0),neg(x1))": "mul(x0,x1)",
    "mul(0.5,neg(x0))": "mul(-0.5,x0)",
    "neg(neg(x0))": "x0",
    "neg(mul(2,x0))": "mul(-2.0,x0)",
    "neg(sub(x0,x1))": "sub(x1,x0)",
    "add(x0,0)": "x0",
    "add(0,x0)": "x0",
    "add(2,3)": "5.0",
    "add(x0,x0)": "mul(2.0,x0)",
    "add(mul(x0,x1),mul(x1,x0))": "mul(2.0,mul(x0,x1))",
    "add(x0,neg(x1))": "sub(x0,x1)",
    "add(neg(x0),x1)": "sub(x1,x0)",
    "sub(x0,0)": "x0",
    "sub(0,x0)": "neg(x0)",
    "sub(x0,neg(x1))": "add(x0,x1)",
    "sub(3,1)": "2.0",
    "div(x0,1)": "x0",
    "div(0,x0)": "0.0",
    "div(1,4)": "0.25",
    "div(1,0)": "div(1.0,0.0)",
    "div(neg(x0),x1)": "neg(div(x0,x1))",
    "div(mul(2,x0),x1)": "mul(2.0,div(x0,x1))",
    "pow(x0,0)": "1.0",
    "pow(x0,1)": "x0",
    "pow(x0,2)": "square(x0)",
    "pow(x0,3)": "pow(x0,3.0)",
    "conj(conj(x0))": "x0",
    "conj(2)": "2.0",
}


@pytest.mark.parametrize("text", SIMPLE)
def test_simplified(text):
    assert render(simplified(parse_scalar(text))) == SIMPLE[text]


@settings(max_examples=100, derandomize=True)
@given(
    scalar=scalars(["add", "sub", "mul", "div", "neg", "pow", "conj", "tanh"]),
    values=st.lists(st.floats(-2, 2), min_size=3, max_size=3),
)
def test_simplified_means_the_same(scalar, values):
    elements = torch.tensor(values, dtype=torch.float64)
    expected, result = evaluate(scalar, elements), evaluate(simplified(scalar), elements)
    assume(bool(torch.isfinite(expected)) and abs(expected) < 1e6)
    torch.testing.assert_close(result, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    "text",
    [
        *("mul(1e-30,mul(1e-30,x0))", "mul(mul(1e-30,x0),x1)", "mul(x0,mul(1e30,x1))"),
        "div(mul(1e-30,x0),x1)",
    ],
)
def test_products_with_extreme_constants_keep_their_order(text):
    assert simplified(parse_scalar(text)) == parse_scalar(text)


def test_dtypes():
    dtypes = ["f16", "f32", "f64", "c64"]
    assert dtype_of(parse_scalar("mul(x0,add(2,x1))"), dtypes) == "f32"
    assert dtype_of(parse_scalar("mul(f16(x2),x0)"), dtypes) == "f16"
    assert dtype_of(parse_scalar("mul(x3,2)"), dtypes) == "c64"
    assert dtype_of(Number(2.0), dtypes) is None
    assert cast(Element(0), "f16", dtypes) == Element(0)
    assert cast(Number(2.0), "f16", dtypes) == Number(2.0)
    assert render(cast(Element(2), "f16", dtypes)) == "f16(x2)"
    with pytest.raises(ValueError, match=r"^a complex number cannot be cast to f32$"):
        cast(Element(3), "f32", dtypes)


# --- Derivatives ----------------------------------------------------------------------------------

# x0 is the operand, x1 another one, x2 the adjoint of the value, x3 the value itself.
DERIVATIVES = {
    "neg(x0)": "neg(x2)",
    "exp(x0)": "mul(x2,x3)",
    "log(x0)": "div(x2,x0)",
    "sqrt(x0)": "mul(0.5,div(x2,x3))",
    "rsqrt(x0)": "mul(-0.5,mul(x2,mul(x3,square(x3))))",
    "relu(x0)": "mul(x2,less(0.0,x3))",
    "relu(relu(x0))": "mul(mul(x2,less(0.0,x3)),less(0.0,x0))",
    "square(x0)": "mul(2.0,mul(x2,x0))",
    "mul(x0,x0)": "mul(2.0,mul(x2,x0))",
    "abs(x0)": "mul(x2,sign(x0))",
    "tanh(x0)": "mul(x2,sub(1.0,square(x3)))",
    "sigmoid(x0)": "mul(x2,mul(x3,sub(1.0,x3)))",
    "sign(x0)": "0.0",
    "add(x0,x1)": "x2",
    "sub(x1,x0)": "neg(x2)",
    "mul(x0,x1)": "mul(x2,x1)",
    "mul(x1,x0)": "mul(x1,x2)",
    "mul(0.25,x0)": "mul(0.25,x2)",
    "div(x0,x1)": "div(x2,x1)",
    "div(x1,x0)": "neg(mul(x2,div(x3,x0)))",
    "pow(x0,3)": "mul(3.0,mul(x2,square(x0)))",
    "pow(x0,x1)": "where(x1,mul(x2,mul(x1,pow(x0,sub(x1,1.0)))),0.0)",
    "pow(x1,x0)": ("where(mul(equal(x1,0.0),sub(1.0,less(x0,0.0))),0.0,mul(x2,mul(x3,log(x1))))"),
    "pow(2,x0)": "mul(0.6931471805599453,mul(x2,x3))",
    "pow(1,x0)": "0.0",
    "pow(0,x0)": "where(sub(1.0,less(x0,0.0)),0.0,mul(x2,mul(x3,log(0.0))))",
    "f64(i64(x0))": "0.0",
    "f64(bool(x0))": "0.0",
    "maximum(x0,x1)": "mul(x2,add(less(x1,x0),mul(0.5,equal(x0,x1))))",
    "less(x0,x1)": "0.0",
    "exp(x1)": "0.0",
    "f32(x0)": "f64(x2)",
}


@pytest.mark.parametrize("text", DERIVATIVES)
def test_derivatives_are_what_a_person_writes(text):
    scalar = parse_scalar(text)
    dtypes = ["f64", "f64", dtype_of(scalar, ["f64"] * 2) or "f64", "f64"]
    adjoint = adjoint_of(scalar, 0, Element(2), dtypes, value=Element(3))
    assert render(adjoint) == DERIVATIVES[text]


def test_complex_derivatives_are_conjugated():
    scalar = parse_scalar("mul(conj(x0),sub(x1,x0))")
    adjoint = adjoint_of(scalar, 0, Element(2), ["c64"] * 3)
    assert render(adjoint) == "sub(conj(mul(x2,conj(sub(x1,x0)))),mul(x0,x2))"


@settings(max_examples=100, derandomize=True)
@given(
    scalar=scalars(set(FUNCTIONS) - set(DTYPES) - {"conj"}),
    values=st.lists(st.floats(-2, 2), min_size=3, max_size=3),
    operand=st.integers(0, 2),
)
def test_derivatives_of_random_functions(scalar, values, operand):
    """Against autograd, where both are finite: torch has limits at poles that are not repeated."""
    elements = torch.tensor(values, dtype=torch.float64).requires_grad_()
    value = evaluate(scalar, elements)
    assume(value.requires_grad and bool(torch.isfinite(value)))
    (expected,) = torch.autograd.grad(3 * value, elements)
    adjoint = adjoint_of(scalar, operand, Number(3.0), ["f64"] * 3)
    result = evaluate(adjoint, elements.detach())
    assume(bool(torch.isfinite(result)) and abs(expected[operand]) < 1e9)
    torch.testing.assert_close(result, expected[operand], rtol=1e-7, atol=1e-7)
