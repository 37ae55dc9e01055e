"""Recorded kernels repeat what the kernels do, into the same tensors."""

from collections.abc import Callable
from functools import partial

import pytest
import torch

from doppler.executor.kernels import compile_kernel
from doppler.executor.recording import Scratch, record
from doppler.graph import KernelSpec


def spec(expression: str, operands: list[tuple], output: tuple, dtype: str = "f32") -> KernelSpec:
    return KernelSpec(
        expression=expression,
        operand_shapes=tuple(operands),
        operand_dtypes=(dtype,) * len(operands),
        output_shape=output,
        dtype=dtype,
    )


SPECS = [
    spec("ij,jk->ik", [(5, 7), (7, 6)], (5, 6)),
    spec("ij,jk->ik", [(5, 7), (7, 6)], (5, 6), "f16"),
    spec("bij,bjk->bki", [(2, 5, 7), (2, 7, 6)], (2, 6, 5)),
    spec("ij->ji", [(5, 7)], (7, 5)),
    spec("ij,j->ij:exp(sub(x0,mul(x1,0.5)))", [(5, 7), (7,)], (5, 7)),
    spec("ij->ij:relu(x0)", [(5, 7)], (5, 7)),
    spec("ij->i:exp(x0):max", [(5, 7)], (5,)),
    spec("ij->:x0:mul", [(5, 7)], ()),
    spec("ij->i:x0:add", [(5, 7)], (5,), "f16"),
    spec("i,i->i:mul(less(x0,x1),x0)", [(9,), (9,)], (9,)),
    spec("formation:add", [(4, 3)] * 3, (4, 3), "f16"),
    spec("formation:max", [(4, 3)], (4, 3)),
    spec("copy", [(4, 3)], (2, 6)),
    spec("fill:0.0,-inf,1", [], (2, 4, 4)),
    spec("cholesky", [(6, 6)], (6, 6)),
    spec("solve", [(6, 6), (6, 4)], (6, 4)),
]


def operands_of(kernel: KernelSpec) -> list[torch.Tensor]:
    dtype = {"f32": torch.float32, "f16": torch.float16}[kernel.dtype]
    operands = [torch.randn(shape).to(dtype) for shape in kernel.operand_shapes]
    if kernel.expression in ("cholesky", "solve"):
        operands[0] = operands[0] @ operands[0].T + 6 * torch.eye(6)
    return operands


def steps(action: Callable) -> list[partial]:
    """The torch calls that an action consists of."""
    if isinstance(action, partial):
        return [action]
    assert action.__closure__ is not None
    return list(action.__closure__[0].cell_contents)


@pytest.mark.parametrize("kernel", SPECS, ids=lambda kernel: f"{kernel.expression} {kernel.dtype}")
@pytest.mark.parametrize("is_inference", [False, True])
def test_a_repetition_computes_anew_from_what_the_operands_hold_then(kernel, is_inference):
    torch.manual_seed(0)
    with torch.inference_mode(False):
        operands, others = operands_of(kernel), operands_of(kernel)
    compute = compile_kernel(kernel)
    with torch.inference_mode(is_inference):
        repeat, result = record(lambda: compute(operands), Scratch())
        assert torch.equal(result, compute(operands))
        result.fill_(7.0)
        for operand, other in zip(operands, others, strict=True):
            operand.copy_(other)
        address = result.data_ptr()
        repeat()
        assert torch.equal(result, compute(others))
        assert result.data_ptr() == address


@pytest.mark.parametrize(
    "kernel",
    [one for one in SPECS if "relu" not in one.expression],
    ids=lambda kernel: f"{kernel.expression} {kernel.dtype}",
)
def test_repetitions_write_into_what_is_there(kernel):
    """Every call has its results among its arguments: none makes a tensor of its own."""
    with torch.inference_mode(False):
        operands = operands_of(kernel)
    compute = compile_kernel(kernel)
    repeat, _ = record(lambda: compute(operands), Scratch())
    for step in steps(repeat):
        func = step.func
        schema = getattr(func, "_schema", None)
        if schema is None:  # a copy into a tensor that is bound to it
            assert func.__name__ == "copy_"
            continue
        assert not schema.returns or any(
            argument.alias_info is not None and argument.alias_info.is_write
            for argument in schema.arguments
        ), func


def test_one_product_is_one_call():
    operands = operands_of(SPECS[0])
    compute = compile_kernel(SPECS[0])
    repeat, _ = record(lambda: compute(operands), Scratch())
    names = [str(getattr(step.func, "_schema", step.func)) for step in steps(repeat)]
    assert len(names) == 1, names
    assert "mm" in names[0]


def test_what_a_kernel_refuses_is_refused_again():
    good = torch.eye(3)
    compute = compile_kernel(spec("cholesky", [(3, 3)], (3, 3)))
    repeat, _ = record(lambda: compute([good]), Scratch())
    good.zero_()
    with pytest.raises(RuntimeError, match="positive-definite"):
        repeat()


def test_a_constant_is_copied_before_it_is_a_result():
    constant = torch.ones(3)
    repeat, result = record(lambda: constant, Scratch())
    result.fill_(7.0)
    assert constant.tolist() == [1, 1, 1]
    repeat()
    assert result.tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.nn.functional.layer_norm(x, (6,)),
        lambda x: x.sort(1).values,
        lambda x: torch.cat(x.split(2, dim=1)[::-1], 1),
        lambda x: torch.nn.functional.scaled_dot_product_attention(x[None], x[None], x[None])[0],
        lambda x: torch.nn.functional.gelu(x) * x.argmax(1, keepdim=True),
    ],
)
def test_any_function_of_torch_is_repeated(function):
    torch.manual_seed(0)
    x, other = torch.randn(4, 6), torch.randn(4, 6)
    repeat, result = record(lambda: function(x), Scratch())
    x.copy_(other)
    repeat()
    assert torch.equal(result, function(other))


# What f16 operands are widened to; a difference of the kind that the result is of.
@pytest.mark.parametrize("kernel", [SPECS[1], SPECS[4]], ids=lambda kernel: kernel.expression)
def test_functions_share_what_they_need_in_between_but_no_result(kernel):
    torch.manual_seed(0)
    scratch = Scratch()
    operands = [operands_of(kernel) for _ in range(3)]
    compute = compile_kernel(kernel)
    recorded = [record(partial(compute, each), scratch) for each in operands]
    results = {result.data_ptr() for _, result in recorded}
    assert len(results) == 3
    between = [
        {out.data_ptr() for step in steps(repeat) for out in step_outputs(step)}
        - {result.data_ptr()}
        for repeat, result in recorded
    ]
    assert between[0] == between[1] == between[2] != set()
    assert not between[0] & results
    for _, result in recorded:
        result.fill_(7.0)
    for repeat, _ in recorded:
        repeat()
    for (_, result), each in zip(recorded, operands, strict=True):
        assert torch.equal(result, compute(each))


def step_outputs(step: partial) -> list[torch.Tensor]:
    if hasattr(step.func, "__self__") and isinstance(step.func.__self__, torch.Tensor):
        return [step.func.__self__]
    return [step.keywords["out"]]
