"""Kernels that are calls of torch's operators."""

import pytest
import torch

from doppler.executor import compile_kernel
from doppler.graph import KernelSpec
from doppler.support.errors import InputError


def spec_of(call: str, shape: tuple[int, ...], output: tuple[int, ...], dtype="f32") -> KernelSpec:
    return KernelSpec(
        expression=f"torch:{call}",
        operand_shapes=(shape,),
        operand_dtypes=("f32",),
        output_shape=output,
        dtype=dtype,
    )


def test_factors_are_taken_together_and_apart_again():
    """[2, 3, 4] as a matrix of 2 x 12, whose rows are added up from the left."""
    call = 'aten.cumsum.default:{"args": [{"x": 0, "factors": [1, 2]}, 1], "kwargs": {}}'
    x = torch.arange(24.0).reshape(2, 3, 4)
    result = compile_kernel(spec_of(call, (2, 3, 4), (2, 3, 4)))([x])
    assert torch.equal(result, x.reshape(2, 12).cumsum(1).reshape(2, 3, 4))


def test_dimensions_of_one_element_lists_dtypes_and_one_of_several_results():
    call = (
        'aten.cat.default:{"args": [[{"x": 0, "factors": [0, 1]}, {"x": 0, "factors": [0, 1]}]], '
        '"kwargs": {}}'
    )
    x = torch.tensor([3.0, 1.0, 2.0])
    assert compile_kernel(spec_of(call, (3,), (2, 3)))([x]).tolist() == [[3, 1, 2], [3, 1, 2]]
    call = 'aten.sort.default:{"args": [{"x": 0, "factors": [1]}], "kwargs": {}, "output": 1}'
    indices = compile_kernel(spec_of(call, (3,), (3,), "i64"))([x])
    assert (indices.dtype, indices.tolist()) == (torch.int64, [1, 2, 0])
    call = (
        'aten.sum.default:{"args": [{"x": 0, "factors": [1]}], '
        '"kwargs": {"dtype": {"dtype": "float64"}}}'
    )
    assert compile_kernel(spec_of(call, (3,), (), "f64"))([x]).dtype == torch.float64


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (
            'aten.nothing_like_it.default:{"args": [], "kwargs": {}}',
            "is not the name of an operator of torch",
        ),
        ('aten.cumsum:{"args": [], "kwargs": {}}', "is not the name of an operator of torch"),
        (
            'aten.__class__.default:{"args": [], "kwargs": {}}',
            "is not the name of an operator of torch",
        ),
        (
            'loaded_libraries.add.x:{"args": [], "kwargs": {}}',
            "is not the name of an operator of torch",
        ),
        ("aten.cumsum.default:[", "is not called like an operator"),
        ("aten.cumsum.default:" + 10_000 * "[", "is not called like an operator"),
        ('aten.cumsum.default:{"args": []}', "is not called like an operator"),
        ('aten.cumsum.default:{"args": 1, "kwargs": {}}', "is not called like an operator"),
        (
            'aten.add_.Scalar:{"args": [{"x": 0, "factors": [1]}, 1], "kwargs": {}}',
            "changes its arguments",
        ),
        ('aten.rand.default:{"args": [[3]], "kwargs": {}}', "draws random numbers"),
        ('aten.item.default:{"args": [{"x": 0, "factors": [1]}], "kwargs": {}}', "something other"),
    ],
)
def test_what_is_no_call_of_a_function_is_refused(call, why):
    with pytest.raises(InputError, match=why) as error:
        compile_kernel(spec_of(call, (3,), (3,)))
    assert repr(call.split(":")[0]) in str(error.value)
