"""Training programs against torch.autograd: random programs, as text that a failure shows."""

from random import Random

import torch
from autograd_oracle import check_training, draw_inputs, one_step, random_splits
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from doppler.einsum import parse_program, training_program

torch.set_num_threads(1)

EXTENTS = (1, 2, 3, 5)
# Bounded, so that programs stay finite; with kinks and steps, so that ties count.
UNARY = (
    *(
        "tanh({0})",
        "square(tanh({0}))",
        "-{0}",
        "silu({0})",
        "relu({0})",
        "abs({0})",
        "sigmoid({0})",
    ),
    *("exp(sigmoid({0}))", "log(1.5 + tanh({0}))", "sqrt(1.5 + tanh({0}))", "0.5 * {0} + 1"),
    *("maximum({0}, 0.5)", "rsqrt(1.5 + tanh({0}))", "{0} * less(0, {0})", "{0} * {0} * 0.25"),
)
BINARY = (
    *("{0} * {1}", "{0} + {1}", "{0} - {1}", "{0} / (2 + tanh({1}))", "maximum({0}, {1})"),
    *("minimum({0}, {1})", "tanh({0} * {1})", "pow(1.5 + tanh({0}), tanh({1}))", "{0} * {1}"),
)


class Writer:
    """Writes a program op by op, from choices that hypothesis draws."""

    def __init__(self, draw) -> None:
        self.draw = draw
        self.lines: list[str] = []
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.unread: list[str] = []

    def choose(self, options):
        return self.draw(st.sampled_from(list(options)))

    def define(self, name: str, shape: tuple[int, ...], line: str) -> None:
        self.lines.append(line)
        self.shapes[name] = shape
        self.unread.append(name)

    def read(self, name: str, letters: dict[str, int]) -> str:
        """The tensor with indices, known ones or new ones, which are added to the letters."""
        own = ""
        for extent in self.shapes[name]:
            fitting = [one for one, known in letters.items() if known == extent and one not in own]
            new = "abcdefghijkl"[len(letters)]
            letter = self.choose([*fitting, new])
            letters[letter] = extent
            own += letter
        if name in self.unread:
            self.unread.remove(name)
        return f"{name}[{', '.join(own)}]"

    def add_input(self, number: int) -> None:
        # One weight at least; what is read first is no scalar.
        least = 1 if number == 0 else 0
        shape = tuple(self.draw(st.lists(st.sampled_from(EXTENTS), min_size=least, max_size=3)))
        word = "weight" if number == 0 else self.choose(["weight", "input"])
        extents = ", ".join(map(str, shape))
        self.define(f"I{number}", shape, f"{word} I{number}[{extents}] f64")

    def add_einsum(self, name: str) -> None:
        letters: dict[str, int] = {}
        # Tensors that nobody has read come first: most choices shrink to them.
        options = [*self.unread, *self.shapes]
        template = self.choose(UNARY + BINARY)
        names = [self.choose(options) for _ in range(2 if "{1}" in template else 1)]
        expression = template.format(*(self.read(one, letters) for one in names))
        output = (
            self.draw(st.lists(st.sampled_from(sorted(letters)), unique=True, max_size=3))
            if (letters)
            else []
        )
        aggregated = [letter for letter in letters if letter not in output]
        word = self.choose(["sum", "sum", "max", "min", "prod"]) if aggregated else ""
        if word == "prod":
            expression = f"1.5 + 0.5 * tanh({expression})"
        shape = [letters[letter] for letter in output]
        axes = list(output)
        if len(axes) < 3 and self.draw(st.integers(0, 5)) == 0:
            axes.append("z=2")
            shape.append(2)
        prefix = f"{word}({', '.join(aggregated)}) " if word else ""
        self.define(name, tuple(shape), f"{name}[{', '.join(axes)}] = {prefix}{expression}")

    def add_view(self, name: str) -> None:
        """A slice, a concatenation, or dimensions of one element added or dropped."""
        source = self.choose([*self.unread, *self.shapes])
        letters: dict[str, int] = {}
        text = self.read(source, letters)
        indices = list(letters)
        kind = self.choose(["select", "concat", "squeeze"] if indices else ["squeeze"])
        if kind == "select":
            cut = self.choose(indices)
            start = self.draw(st.integers(0, letters[cut] - 1))
            stop = self.draw(st.integers(start + 1, letters[cut]))
            extents = {**letters, cut: stop - start}
            inside = ", ".join(f"{i}={start}:{stop}" if i == cut else i for i in indices)
            line = f"{name}[{', '.join(indices)}] = select {source}[{inside}]"
        elif kind == "concat":
            along = self.choose(indices)
            extents = {**letters, along: 2 * letters[along]}
            line = f"{name}[{', '.join(indices)}] = concat({along}) {text}, {text}"
        else:
            kept = [i for i in indices if letters[i] > 1 or self.draw(st.booleans())]
            extents = {i: letters[i] for i in kept}
            if len(kept) < 3 and self.draw(st.booleans()):
                kept.insert(self.draw(st.integers(0, len(kept))), "z")
                extents = {i: letters.get(i, 1) for i in kept}
            line = f"{name}[{', '.join(kept)}] = squeeze {text}"
        self.define(name, tuple(extents.values()), line)

    def add_loss(self) -> None:
        """Of every tensor that nobody reads."""
        terms = []
        for number, name in enumerate(list(self.unread)):
            letters: dict[str, int] = {}
            text = self.read(name, letters)
            over = f"sum({', '.join(letters)}) " if letters else ""
            self.lines.append(f"L{number}[] = {over}tanh({text} - 0.3) * {number + 1}")
            terms.append(f"L{number}[]")
        self.lines.append(f"loss[] = {' + '.join(terms)}")


@st.composite
def texts(draw) -> str:
    writer = Writer(draw)
    for number in range(draw(st.integers(1, 3))):
        writer.add_input(number)
    for number in range(draw(st.integers(1, 6))):
        add = writer.add_view if draw(st.integers(0, 3)) == 0 else writer.add_einsum
        add(f"T{number}")
    writer.lines.append("training")
    writer.add_loss()
    return "\n".join(["program test", *writer.lines])


def drawn(text, **options):
    """The program and inputs on which no number is too large to compare."""
    program = parse_program(text, training=True)
    inputs = draw_inputs(program, **options)
    largest = [tensor.abs().max() for tensor in one_step(program, inputs).values()]
    assume(all(bool(one < 1e6) for one in largest))
    return program, inputs


@settings(max_examples=150, deadline=None, derandomize=True)
@given(text=texts())
def test_ties_and_kinks(text):
    """Whole tensors, on inputs most elements of which are equal to others."""
    program, inputs = drawn(text, is_quantized=True)
    check_training(program, inputs, tolerance=1e-9)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(text=texts(), seed=st.integers(0, 1000))
def test_decompositions(text, seed):
    """Uneven splits of everything, by the kernels; no ties, which rounding would decide."""
    program, inputs = drawn(text, seed=seed)
    trained = training_program(program, learning_rate=0.5)
    splits = random_splits(trained, Random(seed))
    check_training(program, inputs, splits=[splits], tolerance=1e-9)
