"""What cannot be exported ends in one line: which op, where in the module, what can be done."""

import re
import sys

import pytest
import torch
from torch import nn

import doppler
from doppler.cluster import preset
from doppler.einsum import Given
from doppler.extensions.memory import Offload
from doppler.extensions.modules import import_module, load_module
from doppler.support.errors import InputError
from doppler.system import Refuse


class Choosing(nn.Module):
    def forward(self, x):
        if x.sum() > 0:
            return x
        return -x


class Masking(nn.Module):
    def forward(self, x):
        return x[x > 0].sum()


class Number(nn.Module):
    def forward(self, x):
        return x * x.sum().item()


class Branch(nn.Module):
    def forward(self, x):
        return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,))


class Empty(nn.Module):
    def forward(self, x):
        return x[:0] + 1


class Failing(nn.Module):
    def forward(self, x):
        raise ValueError("not today\nnor tomorrow")


REFUSALS = [
    (
        Choosing(),
        "Sequential, module '1.0' (Choosing): a branch depends on the values of a tensor "
        "(test_refusals.py:*: if x.sum() > 0:); compute both sides and choose by torch.where, or "
        "decide before the call",
    ),
    (
        Masking(),
        "op aten.index.Tensor in module '1.0' (Masking): the shape of its result depends on the "
        "values of a tensor; keep the shape and mask by torch.where",
    ),
    (
        Number(),
        "op aten._local_scalar_dense in module '1.0' (Number): converts a tensor's value to a "
        "number (.item()); keep it a tensor",
    ),
    (
        Branch(),
        "op cond in module '1.0' (Branch): control flow that depends on the values of a tensor; "
        "compute both sides and choose by torch.where",
    ),
    (
        Empty(),
        "op aten.slice.Tensor in module '1.0' (Empty): a tensor without elements; leave it out",
    ),
    (
        Failing(),
        "Sequential, module '1.0' (Failing): torch.export fails, in Failing.forward "
        "(test_refusals.py:*): ValueError: not today",
    ),
]


@pytest.mark.parametrize(("module", "line"), REFUSALS, ids=lambda one: type(one).__name__)
def test_modules_that_no_program_can_say(module, line, capfd):
    whole = nn.Sequential(nn.Linear(4, 4), nn.Sequential(module))
    with pytest.raises(InputError) as error:
        import_module(whole, (torch.zeros(3, 4),))
    assert re.sub(r"py:\d+", "py:*", str(error.value)) == line
    assert capfd.readouterr().err == "", "torch says nothing beside"


class Nothing(nn.Module):
    def forward(self, x):
        return x.shape[0]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("compiled", [torch.jit.script, lambda m: torch.jit.trace(m, ONES)])
def test_modules_of_torch_jit_are_refused(compiled):
    inner = compiled(nn.Linear(4, 4))
    for module, place in ((inner, type(inner).__name__), (nn.Sequential(inner), "Sequential, ")):
        with pytest.raises(InputError, match=rf"^{place}.*compiled by torch\.jit, which"):
            import_module(module, (ONES,))


ONES = torch.ones(3, 4)


def test_a_module_that_returns_no_tensor_is_refused_for_that():
    with pytest.raises(InputError, match=r"^Nothing: returns no tensor"):
        doppler.place(Nothing(), torch.zeros(3, 4), "p100x4", evaluations=1)


class Detached(nn.Module):
    def forward(self, x):
        return x.detach().sum()


@pytest.mark.parametrize(
    ("module", "line"),
    [
        (
            nn.Linear(4, 4),
            "Linear: training=true needs a module that returns its loss: one real number, alone, "
            "first, or named 'loss'",
        ),
        (
            nn.Sequential(nn.Linear(4, 4), Detached()),
            "Sequential: its loss depends on no parameter",
        ),
    ],
)
def test_modules_that_cannot_be_trained(module, line):
    with pytest.raises(InputError) as error:
        import_module(module, (torch.zeros(3, 4),), training=True)
    assert str(error.value) == line


def test_arguments_unlike_the_examples():
    imported = import_module(nn.Linear(4, 2), (torch.zeros(3, 4),))
    for arguments, line in [
        ((torch.zeros(3, 5),), "Linear: 'input' has shape (3, 5) and torch.float32, the example"),
        ((torch.zeros(3, 4).double(),), "Linear: 'input' has shape (3, 4) and torch.float64"),
        (
            (torch.zeros(3, 4), 1),
            "Linear: what it is called with is a tuple of 2, in the example it was a tuple of 0",
        ),
    ]:
        with pytest.raises(InputError) as error:
            imported.binding.inputs(arguments)
        assert str(error.value).startswith(line)
    with torch.device("meta"):
        empty = nn.Linear(4, 2)
        imported = import_module(empty, (torch.zeros(3, 4),))
    with pytest.raises(InputError, match="'weight' is on the meta device, so it has no values"):
        imported.binding.inputs((torch.zeros(3, 4),))


@pytest.fixture
def factories(tmp_path, monkeypatch):
    """A module of factories in the directory from which the process runs."""
    (tmp_path / "my_factories.py").write_text(
        "import torch\n"
        "from torch import nn\n"
        "def good(): return nn.Linear(8, 8), torch.zeros(4, 8)\n"
        "def fails(): raise KeyError('no such layer')\n"
        "def other(): return nn.Linear(8, 8)\n"
        "def huge(): return nn.Linear(400_000, 100_000), (torch.zeros(1, 400_000),)\n"
        "number = 3\n"
    )
    monkeypatch.chdir(tmp_path)
    yield "my_factories"
    sys.modules.pop("my_factories", None)


@pytest.mark.parametrize(
    ("factory", "line"),
    [
        ("my_factories", "workload.module: 'my_factories' is neither FILE.py:function nor package"),
        ("my_factories:bad", "workload.module: 'my_factories' has no function 'bad'"),
        ("my_factories:number", "workload.module: 'my_factories' has no function 'number'"),
        (
            "not_there.at_all:bad",
            "workload.module: 'not_there.at_all' cannot be imported: No module",
        ),
        (
            "my_factories:fails",
            "workload.module: my_factories:fails fails: KeyError: 'no such layer' "
            "(my_factories.py:4, called on the meta device)",
        ),
        ("my_factories:other", "workload.module: my_factories:other returned Linear, not a torch"),
        (
            "my_factories:huge",
            "Linear: its parameters and inputs take 160 GB, but the 4 devices of 'p100x4' have 64",
        ),
    ],
)
def test_factories_that_give_nothing_to_place(factories, factory, line):
    with pytest.raises(InputError) as error:
        load_module(module=factory, cluster=preset(name="p100x4"), decomposition=Given(), parts=4)
    assert str(error.value).startswith(line)
    assert "\n" not in str(error.value)


def test_a_module_larger_than_all_devices_is_placed_if_the_host_keeps_the_rest(factories):
    of = {"module": "my_factories:huge", "cluster": preset(name="p100x4"), "parts": 1}
    with pytest.raises(InputError, match="take 160 GB"):
        load_module(**of, decomposition=Given(), memory=Refuse())
    assert load_module(**of, decomposition=Given(), memory=Offload()).num_ops == 2


def test_a_factory_in_the_working_directory(factories):
    graph = load_module(
        module="my_factories:good",
        cluster=preset(name="p100x4"),
        decomposition=Given(),
        parts=4,
        name="mine",
    )
    assert graph.name == "mine"
    assert list(graph.ops.kinds) == ["matmul", "elementwise"]
