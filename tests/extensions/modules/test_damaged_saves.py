"""Saved placements and exported programs of strangers: nothing runs, nothing is deleted."""

import io
import json
import pickle
import shutil
import sys
import zipfile
from copy import deepcopy
from pathlib import Path
from types import ModuleType

import pytest
import torch
from fuzz.mutations import damaged, junk, places
from fuzz.outcomes import FUZZ, outcome
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import doppler
from doppler.support.errors import InputError

X = torch.ones(2, 3)


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x, *, more):
        return {"y": self.linear(x) + more[0], "name": "small"}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    placed = doppler.place(
        Small(), X, "p100x4", evaluations=1, example_kwargs={"more": [torch.ones(3)]}
    )
    return placed.save(tmp_path_factory.mktemp("saved") / "mine")


@pytest.fixture
def mine(saved, tmp_path):
    return shutil.copytree(saved, tmp_path / "mine")


# --- .pt2 -----------------------------------------------------------------------------------------


class Harmful:
    def __init__(self, witness: Path) -> None:
        self.witness = witness

    def __reduce__(self):
        return open, (str(self.witness), "w")


@pytest.mark.parametrize("part", ["sample_inputs/model.pt", "models/model.json", "none"])
def test_an_exported_program_executes_nothing(part, tmp_path):
    path, witness = tmp_path / "x.pt2", tmp_path / "witness"
    torch.export.save(torch.export.export(nn.Linear(3, 3), (X,)), path)
    content = pickle.dumps(Harmful(witness))
    if part.endswith("json"):
        content = json.dumps({"expr_str": f"open({str(witness)!r}, 'w')"}).encode()
    new = io.BytesIO()
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(new, "w") as made:
        for name in old.namelist():
            made.writestr(name, content if name.endswith(part) else old.read(name))
    path.write_bytes(new.getvalue())
    for model in (path, str(path)):
        with pytest.raises(InputError, match=r"x\.pt2: torch may execute code .*: trust=True"):
            doppler.place(model, None, "p100x4", evaluations=1)
    assert not witness.exists()


# --- Classes --------------------------------------------------------------------------------------


@pytest.fixture
def transformers(monkeypatch):
    """A library of that name, from one of whose modules a class with a destructor is reached."""
    deleted = []

    class Closer:
        def __del__(self):
            deleted.append(vars(self))

    class ModelOutput(dict):
        __module__ = "transformers.utils.generic"
        __qualname__ = "ModelOutput"

    class Output(ModelOutput):
        __module__ = "transformers.modeling_outputs"

    class Helper:
        __module__ = "transformers.modeling_outputs"

    for name in ("transformers", "transformers.modeling_outputs"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    module = sys.modules["transformers.modeling_outputs"]
    for one in (Closer, Output, Helper):
        setattr(module, one.__name__, one)
    monkeypatch.setattr(module, "inner", module, raising=False)
    return deleted


def with_class(folder: Path, name: str, attributes: list) -> Path:
    data = torch.load(folder / "module.pt", weights_only=True)
    data["returned"] = ["object", name, [], attributes, []]
    torch.save(data, folder / "module.pt")
    return folder


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "transformers.modeling_outputs:inner.Closer",
            "is a class of another package: trust=True imports",
        ),
        ("transformers.modeling_outputs:Closer", "is not an output or cache: it needs trust=True"),
        ("transformers.modeling_outputs:Helper", "is not an output or cache: it needs trust=True"),
        ("transformers.modeling_outputs:", "is a class of another package: trust=True imports"),
        ("transformers.modeling_outputs:inner", "is not a class"),
        ("transformers.pipelines:Output", "is a class of another package: trust=True imports"),
        ("tempfile:_TemporaryFileCloser", "is a class of another package: trust=True imports"),
        ("builtins:list", "has neither items nor attributes"),
        ("builtins:set", "has neither items nor attributes"),
    ],
)
def test_a_saved_placement_makes_no_object_that_does_something(mine, transformers, name, said):
    with_class(mine, name, [["name", ["constant", "/etc/passwd"]]])
    with pytest.raises(InputError, match=f"module.pt: .*{said}"):
        doppler.Placed.load(mine)
    assert not transformers


def test_outputs_of_transformers_need_no_trust(mine, transformers):
    with_class(mine, "transformers.modeling_outputs:Output", [["y", ["leaf", 0]]])
    result = doppler.execute(doppler.Placed.load(mine), X, more=[torch.ones(3)])
    assert type(result).__name__ == "Output" and result.y.shape == (2, 3)


@pytest.mark.parametrize("name", ["__class__", "__dict__", 3, None])
def test_a_saved_placement_sets_no_attribute_of_python(mine, transformers, name):
    with_class(mine, "transformers.modeling_outputs:Output", [[name, ["leaf", 0]]])
    with pytest.raises(InputError, match=r"module.pt: .*expected the name of an attribute"):
        doppler.Placed.load(mine)


# --- Damage ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *((key, value) for key in ("makespan_s", "seconds") for value in (-1, "1", None, "inf")),
        *(("single_device_s", value) for value in (-1.0, "x", [])),
        *((key, value) for key in ("limit_s", "beaten_s") for value in (-1.0, "x", [])),
        *(("evaluations", value) for value in (-1, 0.5, True, None)),
        *(("phases", value) for value in ([], {"search": -1}, {"search": "x"}, None)),
        *(("method", value) for value in (3, None, [])),
        *(("system", value) for value in ({}, {"queue": "x"}, [])),
    ],
)
def test_what_was_found_is_checked(mine, key, value):
    path = mine / "found.json"
    found = json.loads(path.read_text())
    path.write_text(json.dumps({**found, key: value}))
    with pytest.raises(InputError, match=r"found\.json: "):
        doppler.Placed.load(mine)
    path.write_text(json.dumps(found).replace(str(found["makespan_s"]), "NaN"))
    with pytest.raises(InputError, match=r"found\.json: makespan_s: expected a finite number"):
        doppler.Placed.load(mine)


WRONG = {
    "arguments": [None, [], ["leaf"], ["leaf", 7], ["leaf", -1], ["constant", X], ["what", 1]],
    "returned": [["leaf", 3], ["sequence", "builtins:dict", []], ["sequence", "builtins:list"]],
    "given": [[], [["x", [2, 3]]], [["x", [2, -3], torch.float32]], 3],
    "shapes": [[], {"x": [2, 3]}, {"more": ["a"]}, {3: [1]}],
    "from_arguments": [{}, {"x": 9}, {"x": "0"}],
    "from_state": [{}, {"linear.weight": "none"}, {"linear.weight": 3}],
    "computed": [{"x": X}, {"y": 3}, []],
    "results": [[], [["none", [2, 3]]], [["y", [7]]], [["y"]]],
    "effects": [{5: ["y", [2, 3]]}, {"none": ["y", [2, 3]]}, {0: ["none", [2, 3]]}, []],
    "steps": [{"none": ["y", [2, 3]]}, {0: ["y", [2, 3]]}],
    "state": [{}, [], {"linear.weight": 3}, {"linear.weight": X}],
}


@pytest.mark.parametrize(("key", "value"), [(k, v) for k, values in WRONG.items() for v in values])
def test_a_module_that_does_not_fit_is_refused(mine, key, value):
    data = torch.load(mine / "module.pt", weights_only=True)
    torch.save({**data, key: value}, mine / "module.pt")
    with pytest.raises(InputError, match=r"module\.pt: "):
        doppler.Placed.load(mine)


def test_a_tree_without_end_is_refused(mine):
    data = torch.load(mine / "module.pt", weights_only=True)
    for _ in range(5_000):
        data["returned"] = ["sequence", "builtins:list", [data["returned"]]]
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(100_000)
    try:
        torch.save(data, mine / "module.pt")
    finally:
        sys.setrecursionlimit(limit)
    with pytest.raises(InputError, match=r"module\.pt: "):
        doppler.Placed.load(mine)


@FUZZ
@given(st.data())
def test_saved_modules(saved, tmp_path, data):
    """One place of what was saved is something else: refused, or it runs or says why it cannot."""
    folder = tmp_path / "mine"
    shutil.copytree(saved, folder, dirs_exist_ok=True)
    content = deepcopy(torch.load(saved / "module.pt", weights_only=True))
    at = data.draw(st.sampled_from([one for one in places(content) if one]))
    holder = content
    for key in at[:-1]:
        holder = holder[key]
    holder[at[-1]] = data.draw(junk | st.sampled_from([X, torch.float32, ["leaf", 0]]))
    torch.save(content, folder / "module.pt")
    placed = outcome("saved module", lambda: doppler.Placed.load(folder))
    if placed is not None:
        outcome("saved module", lambda: doppler.execute(placed, X, more=[torch.ones(3)]))


@FUZZ
@given(st.data())
def test_saved_placements(saved, tmp_path, data):
    folder = tmp_path / "mine"
    shutil.copytree(saved, folder, dirs_exist_ok=True)
    name = data.draw(st.sampled_from(["found.json", "cluster.json", "placement.json"]))
    case = data.draw(damaged([json.loads((saved / name).read_text())], {}))
    (folder / name).write_text(case.text, encoding="utf-8", errors="surrogatepass")
    placed = outcome("saved placement", lambda: doppler.Placed.load(folder))
    if placed is not None:
        assert placed.makespan_s >= 0 and str(placed)
