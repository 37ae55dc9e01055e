"""What a user's module says about its gradients: functions, hooks, regions, complex numbers."""

import re

import pytest
import torch
from test_conversion import draw
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import doppler
from doppler.einsum import lower
from doppler.executor import run_graph
from doppler.extensions.modules import import_module
from doppler.support.errors import InputError


def steps_of(module: nn.Module, *arguments: Tensor) -> tuple[dict, dict]:
    """The gradients of all parameters, by the placed module and by torch."""
    imported = import_module(module, arguments, training=True, learning_rate=1.0)
    torch.manual_seed(3)
    inputs = imported.binding.inputs(arguments)
    new = imported.binding.new_parameters(run_graph(lower(imported.program, {}), inputs))
    parameters = {key: one for key, one in module.named_parameters() if one.requires_grad}
    torch.manual_seed(3)
    loss = module(*arguments)
    found = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
    theirs = {key: one for key, one in zip(parameters, found, strict=True) if one is not None}
    ours = {key: parameters[key].detach() - new[key] for key in new}
    return ours, theirs


def check(module: nn.Module, *arguments: Tensor, tolerance: float = 1e-5) -> dict[str, Tensor]:
    ours, theirs = steps_of(module, *arguments)
    assert ours.keys() == theirs.keys()
    for key, gradient in theirs.items():
        torch.testing.assert_close(ours[key], gradient, rtol=tolerance, atol=tolerance)
    return ours


class Straight(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, g):
        return g


class Reversal(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale):
        ctx.scale = scale
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        return -ctx.scale * g, None


class Clipped(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.exp()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return (g * x.exp()).clamp(-0.5, 0.5)


class Two(torch.autograd.Function):
    """Several results, of which one has no gradient; in the style with setup_context."""

    @staticmethod
    def forward(x):
        return x * 2, x.sign()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx, g, _):
        return g * 5


class Of(nn.Module):
    """A loss of one parameter."""

    def __init__(self, weight: Tensor, loss) -> None:
        super().__init__()
        self.w, self.loss = nn.Parameter(weight), loss

    def forward(self, x):
        return self.loss(self.w, x)


W, X = torch.tensor([0.3, 1.7]), torch.tensor([2.0, 5.0])


@pytest.mark.parametrize(
    "loss",
    [
        lambda w, x: (Straight.apply(w) * x).sum(),
        lambda w, x: (Reversal.apply(w, 3.0) * x).sum() + w.sum(),
        lambda w, x: (Clipped.apply(w) * x).sum(),
        lambda w, x: (Two.apply(w)[0] * x).sum() + Two.apply(w)[1].sum(),
        lambda w, x: checkpoint(lambda w: (Straight.apply(w) * w).sum(), w, use_reentrant=False),
    ],
    ids=["straight", "reversal", "clipped", "two", "checkpoint"],
)
def test_functions_of_the_user_have_their_own_gradients(loss):
    check(Of(W, loss), X)


def test_the_step_of_a_quantised_weight():
    module = Of(W, lambda w, x: (Straight.apply(w) * x).sum())
    placed = doppler.place(module, X, "p100x4", evaluations=2, training=True, learning_rate=1.0)
    inputs = placed.binding.inputs((X,))
    new = placed.binding.new_parameters(run_graph(placed.problem.graph, inputs))["w"]
    torch.testing.assert_close(new, torch.tensor([-1.7, -3.3]))


def turned(module: nn.Module, args: tuple, out: Tensor) -> None:
    out.register_hook(lambda g: -g)


def hooked(how: str) -> nn.Module:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))
    module = Of(W, lambda w, x: net(x * w).sum())
    module.net = net
    if how == "parameter":
        net[0].weight.register_hook(lambda g: g * 10)
        module.w.register_hook(lambda g: g.clamp(-0.1, 0.1))
        module.w.register_hook(lambda g: g + 1)
    elif how == "full_backward":
        net[1].register_full_backward_hook(lambda module, into, out: (into[0] * 3,))
    elif how == "full_backward_pre":
        net[2].register_full_backward_pre_hook(lambda module, out: (out[0] * 4,))
    elif how == "root":
        module.register_full_backward_hook(lambda module, into, out: None)
        module.register_full_backward_pre_hook(lambda module, out: (out[0] * 2,))
    elif how == "activation":
        net[0].register_forward_hook(turned)
    elif how == "forward":
        module.register_forward_pre_hook(lambda module, args: (args[0] * 2,))
        module.register_forward_hook(lambda module, args, out: out * 7)
    return module


@pytest.mark.parametrize(
    "how",
    ["parameter", "full_backward", "full_backward_pre", "root", "activation", "forward"],
)
def test_hooks_change_the_gradients_as_they_do_in_torch(how):
    ours = check(hooked(how), draw(4, 2))
    torch.manual_seed(0)
    plain, _ = steps_of(hooked("none"), draw(4, 2))
    assert how == "root" or any(not torch.allclose(ours[key], plain[key]) for key in plain)


def test_hooks_of_the_whole_module_see_its_own_arguments():
    class Named(nn.Module):
        def forward(self, *, x):
            return x["a"] + 1

    seen = []
    module = Named()
    module.register_forward_pre_hook(
        lambda module, args, kwargs: seen.append((args, sorted(kwargs["x"]))), with_kwargs=True
    )
    import_module(module, (), {"x": {"a": X}})
    assert set(map(str, seen)) == {"((), ['a'])"}


class Teacher(nn.Module):
    def __init__(self, region) -> None:
        super().__init__()
        self.student, self.teacher = nn.Linear(4, 3), nn.Sequential(nn.Linear(4, 3), nn.Dropout(0))
        self.region = region

    def forward(self, x):
        with self.region():
            target = self.teacher(x).softmax(-1)
        return functional.mse_loss(self.student(x), target)


class Frozen(nn.Module):
    """A part that is not trained, and one that is trained inside a region without gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4).requires_grad_(False)

    def forward(self, x):
        with torch.no_grad():
            scale = self.first(x).std()
            with torch.enable_grad():
                bias = self.first(x).mean()
        return (self.second(self.first(x)) / scale + bias).square().sum()


class Estimated(torch.autograd.Function):
    """Returns its first argument; its second one has a gradient, though its value is not read."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x)
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient, (gradient * ctx.saved_tensors[0]).sum(0)


def test_a_parameter_with_a_gradient_and_an_unread_value_is_trained():
    class Estimating(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self, x):
            return Estimated.apply(x, self.weight).square().mean()

    module, x = Estimating(), torch.arange(6.0).view(2, 3)
    imported = import_module(module, (x,), training=True, learning_rate=1.0)
    results = run_graph(lower(imported.program, {}), imported.binding.inputs((x,)))
    (gradient,) = torch.autograd.grad(module(x), module.weight)
    new = imported.binding.new_parameters(results)["weight"]
    torch.testing.assert_close(new, module.weight.detach() - gradient)


@pytest.mark.parametrize(
    "make",
    [lambda: Teacher(torch.no_grad), lambda: Teacher(torch.enable_grad), Frozen],
    ids=["no_grad", "enable_grad", "frozen"],
)
def test_regions_without_gradients(make):
    torch.manual_seed(0)
    check(make(), draw(5, 4))


def spd(w: Tensor) -> Tensor:
    return w @ w.mT + 3 * torch.eye(len(w))


MATRIX = draw(3, 3)


@pytest.mark.parametrize(
    "loss",
    [
        lambda w, x: torch.fft.rfft(w).abs().sum(),
        lambda w, x: torch.fft.fft2(w).abs().square().mean(),
        lambda w, x: torch.fft.irfft(torch.fft.rfft(w) * torch.fft.rfft(x)).square().sum(),
        lambda w, x: torch.view_as_real(torch.polar(w, x)).prod(-1).sum(),
        lambda w, x: torch.complex(w, x).pow(2).real.sum(),
        lambda w, x: (torch.complex(w, x) @ torch.complex(x, w)).abs().sum(),
        lambda w, x: torch.where(w > 0, torch.complex(w, x), torch.complex(x, w)).angle().sum(),
        lambda w, x: torch.complex(w, x).mean(0).conj().imag.sum(),
        lambda w, x: torch.complex(w, x).var(0).sum(),
    ],
    ids=["rfft", "fft2", "convolved", "polar", "power", "product", "where", "mean", "var"],
)
def test_complex_numbers_inside_a_real_loss(loss):
    check(Of(MATRIX, loss), draw(3, 3, seed=5), tolerance=1e-4)


LINEAR_ALGEBRA = {
    "solve": lambda w, x: torch.linalg.solve(spd(w), x).sum(),
    "inv": lambda w, x: (torch.linalg.inv(spd(w)) * x).sum(),
    "cholesky": lambda w, x: (torch.linalg.cholesky(spd(w)) * x).sum(),
    "det": lambda w, x: torch.linalg.det(spd(w)),
    "slogdet": lambda w, x: torch.linalg.slogdet(spd(w))[1],
    "logdet": lambda w, x: spd(w).logdet(),
    "eigh": lambda w, x: torch.linalg.eigh(spd(w))[0].log().sum(),
    "svd": lambda w, x: torch.linalg.svdvals(w).sum(),
    "qr": lambda w, x: (torch.linalg.qr(w)[1] * x).sum(),
    "lu_solve": lambda w, x: torch.lu_solve(x, *torch.linalg.lu_factor(spd(w))).sum(),
    "triangular": lambda w, x: torch.linalg.solve_triangular(spd(w), x, upper=True).sum(),
    "cholesky_solve": lambda w, x: torch.cholesky_solve(x, torch.linalg.cholesky(spd(w))).sum(),
    "matrix_power": lambda w, x: (torch.linalg.matrix_power(w, 3) * x).sum(),
}


@pytest.mark.parametrize("name", LINEAR_ALGEBRA)
def test_linear_algebra_forward_and_trained(name):
    module, x = Of(MATRIX, LINEAR_ALGEBRA[name]), draw(3, 3, seed=5)
    imported = import_module(module, (x,))
    found = imported.binding.outputs(
        run_graph(lower(imported.program, {}), imported.binding.inputs((x,)))
    )
    torch.testing.assert_close(found, module(x).detach(), rtol=1e-3, atol=1e-4)
    check(module, x, tolerance=1e-3)


def test_a_singular_matrix_is_an_error_as_in_torch():
    module, x = Of(torch.zeros(3, 3), lambda w, x: torch.linalg.inv(w @ x).sum()), draw(3, 3)
    imported = import_module(module, (x,))
    graph, inputs = lower(imported.program, {}), imported.binding.inputs((x,))
    with pytest.raises(Exception, match="singular"):
        run_graph(graph, inputs)


def test_rrelu_without_training_draws_nothing():
    x = draw(5, 3)
    for module in (nn.RReLU().eval(), nn.RReLU(0.2, 0.6).eval()):
        placed = doppler.place(module, x, "p100x4", evaluations=2)
        torch.testing.assert_close(doppler.execute(placed, x), module(x))
    check(Of(draw(3), lambda w, x: functional.rrelu(w * x, training=False).sum()), x)


def test_views_of_a_backward_do_not_depend_on_how_gradients_lie_in_memory():
    def fused(w: Tensor, x: Tensor) -> Tensor:
        qkv = (x @ w).view(2, 6, 2, 3, 4)
        q, v = (qkv[..., k, :].transpose(1, 2).reshape(4, 6, 4) for k in (0, 2))
        k = qkv[..., 1, :].permute(0, 2, 3, 1).reshape(4, 4, 6)
        return ((q @ k).softmax(-1) @ v).square().mean()

    check(Of(draw(8, 24), fused), draw(2, 6, 8))


# --- Refusals -------------------------------------------------------------------------------------


class Branching(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        return g if g.sum() > 0 else -g


class ByNumpy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return torch.from_numpy(x.detach().numpy() * 2)

    @staticmethod
    def backward(ctx, g):
        return 2 * g


def branching_hook(gradient: Tensor) -> Tensor:
    return gradient if gradient.sum() > 0 else -gradient


def with_hook(register: str) -> nn.Module:
    module = Of(W, lambda w, x: (w * x).sum())
    getattr(module.w, register)(branching_hook)
    return module


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (
            lambda: Of(W, lambda w, x: (Branching.apply(w) * x).sum()),
            "Of: its loss has no gradient, in Branching.backward (test_own_gradients.py:*): Guard",
        ),
        (
            lambda: with_hook("register_hook"),
            "Of: its loss has no gradient, in branching_hook (test_own_gradients.py:*): Guard",
        ),
        (
            lambda: Of(W, lambda w, x: (ByNumpy.apply(w) * x).sum()),
            "Of: torch.export fails, in ByNumpy.forward (test_own_gradients.py:*): RuntimeError",
        ),
        (
            lambda: with_hook("register_post_accumulate_grad_hook"),
            "Of: parameter 'w' has a hook that runs after its gradient is accumulated "
            "(register_post_accumulate_grad_hook); remove it",
        ),
    ],
    ids=["function", "hook", "numpy", "accumulated"],
)
def test_what_cannot_be_honoured_is_named(make, line):
    with pytest.raises(InputError) as error:
        import_module(make(), (X,), training=True)
    told = re.sub(r"py:\d+", "py:*", str(error.value))
    assert told.startswith(line) and "\n" not in told


@torch.library.custom_op("doppler_tests::noted", mutates_args=())
def noted(x: Tensor) -> Tensor:
    return x.sin()


@noted.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def test_an_operator_without_a_gradient_is_named():
    with pytest.raises(InputError, match=r"its loss has no gradient: .* doppler_tests.noted"):
        import_module(Of(W, lambda w, x: noted(w).sum()), (X,), training=True)


def test_the_ops_of_a_backward_are_those_of_their_submodules():
    module = hooked("none")
    program = import_module(module, (draw(4, 2),), training=True).program
    names = [node.name for node in program.nodes]
    assert any(name.startswith("net.0.mm") for name in names), names
