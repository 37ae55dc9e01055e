"""Models of transformers as benchmarks/models.py makes them; all of its table is run by hand."""

import pytest
import torch
from benchmarks.models import FACTORIES, relative_error, trained

from doppler.einsum import lower
from doppler.executor import run_graph
from doppler.extensions.modules import import_module

pytest.importorskip("transformers")


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert"])
def test_a_model_called_as_by_its_tokenizer(name):
    torch.manual_seed(0)
    module, args, kwargs = FACTORIES[name]()
    with torch.no_grad():
        expected = module(*args, **kwargs)
    binding = (imported := import_module(module, args, kwargs)).binding
    results = run_graph(lower(imported.program, {}), binding.inputs(args, kwargs))
    assert relative_error(binding.outputs(results), expected) < 1e-5
    assert "past_key_values" in expected or name == "bert"


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_its_loss_as_it_returns_it(name):
    torch.manual_seed(0)
    module, args, kwargs = trained(name)
    imported = import_module(module, args, kwargs, training=True, learning_rate=1.0)
    inputs = imported.binding.inputs(args, kwargs)
    assert bool(imported.binding.drawn) == (name == "gpt2"), "its dropout"
    results = run_graph(lower(imported.program, {}), inputs)
    loss = imported.binding.outputs(results).loss
    new = imported.binding.new_parameters(results)
    assert new.keys() == dict(module.named_parameters(remove_duplicate=False)).keys()
    with torch.no_grad():
        for key, parameter in module.named_parameters():
            parameter.copy_(new[key])
        assert module(**kwargs).loss < loss
