"""What every program in workloads/ computes, in plain torch.

Written from what the programs are about, and not from their texts. No pytest: what runs on machines
that have none uses it too.
"""

from collections.abc import Callable, Mapping

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812

Tensors = Mapping[str, torch.Tensor]


# --- What the programs compute --------------------------------------------------------------------


def chainmm(given: Tensors) -> Tensors:
    a, b, c, d, e = (given[name] for name in "ABCDE")
    return {"Y": a @ b + c @ (d @ e)}


def ffnn(given: Tensors) -> Tensors:
    return {"Y": F.softmax(F.relu(given["X"] @ given["W1"]) @ given["W2"], dim=1)}


def transformer_block(given: Tensors, *, is_causal: bool) -> torch.Tensor:
    """One block of Llama, on [batch, seq, model]."""
    seq, heads, dim = given["x"].shape[1:]
    x = given["x"].flatten(2)

    def project(tensor: torch.Tensor, name: str) -> torch.Tensor:
        weight = given[name]
        rows = weight.shape[0] if name in ("w1", "w3") else heads * dim
        return F.linear(tensor, weight.reshape(rows, -1))

    def norm(tensor: torch.Tensor, name: str) -> torch.Tensor:
        return F.rms_norm(tensor, (heads * dim,), given[name].flatten(), eps=1e-6)

    def split_heads(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.unflatten(2, (heads, dim)).transpose(1, 2)

    def rotate(tensor: torch.Tensor) -> torch.Tensor:
        """Pair c at position s turned by the angle of rope[s, c]."""
        cos, sin = given["rope"].real[:seq], given["rope"].imag[:seq]
        even, odd = tensor[..., ::2], tensor[..., 1::2]
        return torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(-2)

    n = norm(x, "norm1")
    q, k, v = (split_heads(project(n, name)) for name in ("wq", "wk", "wv"))
    seen = F.scaled_dot_product_attention(rotate(q), rotate(k), v, is_causal=is_causal)
    y = x + project(seen.transpose(1, 2).flatten(2), "wo")
    m = norm(y, "norm2")
    return y + project(F.silu(project(m, "w1")) * project(m, "w3"), "w2")


def llama_block(given: Tensors) -> Tensors:
    return {"out": transformer_block(given, is_causal=False).reshape(given["x"].shape)}


def llama_layer(given: Tensors) -> Tensors:
    out = transformer_block(given, is_causal=True)
    last = F.rms_norm(out[:, -1], out.shape[2:], given["norm3"].flatten(), eps=1e-6)
    return {"choice": F.linear(last, given["vocabulary"].flatten(1))}


def rotary_inputs(drawn: Tensors, rng: np.random.Generator) -> Tensors:
    seq, pairs = drawn["rope"].shape
    turn = torch.arange(seq)[:, None] * 10_000.0 ** (-torch.arange(pairs) / pairs)
    return {**drawn, "rope": torch.polar(torch.ones_like(turn), turn)}


def cholesky(given: Tensors) -> Tensors:
    """Mahalanobis distances from the whole matrix, by a general solver."""
    n = given["A00"].shape[0]
    upper = torch.cat(
        [
            torch.cat([given[f"A{i}{j}"] if i <= j else torch.zeros(n, n) for j in range(4)], dim=1)
            for i in range(4)
        ]
    )
    matrix = upper.triu() + upper.triu(1).T + 4 * n * torch.eye(4 * n)
    samples = torch.cat([given[f"Y{i}"] for i in range(4)])
    return {"distance": (samples * torch.linalg.solve(matrix, samples)).sum(0)}


def symmetric_tiles(drawn: Tensors, rng: np.random.Generator) -> Tensors:
    on_diagonal = {f"A{i}{i}" for i in range(4)}
    return {name: (t + t.T) / 2 if name in on_diagonal else t for name, t in drawn.items()}


def dataproc(given: Tensors) -> Tensors:
    """Look-ups and sums by group, where the program has masks and products."""
    trips, zones = len(given["fare"]), len(given["zone_x"])
    slots, boroughs = len(given["opens"]), given["belongs"].shape[1]
    valid = (given["fare"] > 0) & (given["minutes"] > 0) & (given["minutes"] < 180)
    paid = torch.where(valid, given["fare"] + given["tip"], 0.0)

    def nearest(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        places = torch.stack([given["zone_x"], given["zone_y"]], 1)
        return (torch.stack([x, y], 1)[:, None] - places).norm(dim=2).argmin(1)

    origin = nearest(given["from_x"], given["from_y"])
    target = nearest(given["to_x"], given["to_y"])
    reading = (given["start"][:, None] - given["read_at"]).abs().argmin(1)
    rainy = valid & (given["rain"][reading] > 0.5)
    slot = (given["hour"][:, None] > given["opens"]) & (given["hour"][:, None] <= given["closes"])

    def by_zone(values: torch.Tensor, zone: torch.Tensor = origin) -> torch.Tensor:
        return torch.zeros(zones, *values.shape[1:]).double().index_add(0, zone, values.double())

    flow = by_zone(F.one_hot(target, zones) * valid[:, None])
    share = flow / flow.sum(1, keepdim=True).clamp(min=1)
    later = share @ share
    likeliest = later.amax(1)
    earned, rides = by_zone(slot * paid[:, None]), by_zone(slot * valid[:, None])
    average = earned / rides.clamp(min=1)
    best = average.amax(1)
    borough = torch.zeros(boroughs, slots).double().index_add(0, given["belongs"].argmax(1), earned)
    rate = torch.where(rainy, given["tip"] / given["fare"].clamp(min=1), 0.0)
    generous = by_zone(rate) / by_zone(rainy).clamp(min=1)
    mean = paid.sum() / valid.sum()
    deviation = torch.where(valid, (paid - mean) ** 2, 0.0)
    strange = deviation > 9 * deviation.sum() / valid.sum()
    odd = by_zone(strange & valid, target)
    figure = best + generous * likeliest - odd / flow.sum(1).clamp(min=1)
    # The masks below must not depend on how sums are rounded.
    for table in (later, average):
        first, second = table.topk(2, dim=1).values.T
        assert ((first - second > 1e-5 * first) | (first == 0)).all()
    assert 0 < strange.sum() < trips / 10
    return {
        "attracts": (later == likeliest[:, None]) * 1.0,
        "rush": (average == best[:, None]) * 1.0,
        "profile": borough / borough.sum(1, keepdim=True).clamp(min=1),
        "score": figure / figure.abs().max(),
    }


def taxi_inputs(drawn: Tensors, rng: np.random.Generator) -> Tensors:
    """A day of trips; one in twenty is invalid, one in fifty very dear."""
    trips, slots = len(drawn["fare"]), len(drawn["opens"])
    zones, boroughs = drawn["belongs"].shape
    readings = len(drawn["read_at"])
    start = rng.uniform(0, 24, trips)
    fare = rng.gamma(4.0, 4.0, trips) * np.where(rng.random(trips) < 0.02, 8, 1)
    values = {
        **{f"{end}_{axis}": rng.uniform(0, 10, trips) for end in ("from", "to") for axis in "xy"},
        **{"start": start, "hour": start, "fare": np.where(rng.random(trips) < 0.05, 0, fare)},
        **{"minutes": rng.uniform(1, 185, trips), "tip": fare * rng.uniform(0, 0.3, trips)},
        **{"zone_x": rng.uniform(0, 10, zones), "zone_y": rng.uniform(0, 10, zones)},
        "belongs": np.eye(boroughs)[rng.integers(boroughs, size=zones)],
        **{"read_at": rng.uniform(0, 24, readings), "rain": rng.random(readings)},
        **{"opens": np.arange(slots) * 24 / slots, "closes": np.arange(1, slots + 1) * 24 / slots},
    }
    return {name: torch.from_numpy(value).float() for name, value in values.items()}


def as_drawn(drawn: Tensors, rng: np.random.Generator) -> Tensors:
    return drawn


Meaning = tuple[Callable[[Tensors], Tensors], Callable[[Tensors, np.random.Generator], Tensors]]
MEANING: dict[str, Meaning] = {
    "chainmm": (chainmm, as_drawn),
    "ffnn": (ffnn, as_drawn),
    "llama_block": (llama_block, rotary_inputs),
    "llama_layer": (llama_layer, rotary_inputs),
    "cholesky": (cholesky, symmetric_tiles),
    "dataproc": (dataproc, taxi_inputs),
}
# Of the largest element: what rounding to f16 at every op adds up to, and f32 sums.
TOLERANCE = {torch.float16: 2e-3, torch.float32: 2e-6}


def widened(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)
