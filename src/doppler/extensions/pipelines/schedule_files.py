"""Reads and writes schedules in the files of torch.distributed.pipelining: a row for each rank.

A file of torch names what is computed: ``0F0,0I0,0W0``, or ``(0F7;7B3)OVERLAP_F_B`` for two actions
at once. It may also name the other actions of the runtime: messages (``0SEND_F0``), and parameters
of a stage that are gathered, freed and summed (``0UNSHARD``, ``0RESHARD``, ``0REDUCE_GRAD``).
"""

import csv
import io
import re
from collections.abc import Sequence
from pathlib import Path

from doppler.extensions.pipelines.stages import Action, Orders
from doppler.graph.formats import write_atomically
from doppler.support.errors import InputError
from doppler.support.files import read_text

_WORK = re.compile(r"(\d{1,6})([FIWB])(\d{1,6})")
MESSAGE = re.compile(r"(\d{1,6})(SEND|RECV)_([FB])(\d{1,6})")
_PARAMETERS = re.compile(r"\d{1,6}(UNSHARD|RESHARD|REDUCE_GRAD)")
_TOGETHER = re.compile(r"\(([^()]*)\)OVERLAP_F_B")


class FileOrders(list[list[Action]]):
    """The actions of each rank, and the cells of the file that they come from.

    Attributes:
        rows: for each rank, the cells of the file that are not empty.
    """

    def __init__(self, orders: Orders, rows: Sequence[Sequence[str]]) -> None:
        super().__init__(orders)
        self.rows = [list(row) for row in rows]

    @property
    def has_messages(self) -> bool:
        """Whether the file says when ranks send and receive."""
        return any(MESSAGE.fullmatch(cell) for row in self.rows for cell in row)


def save_orders(orders: Orders, path: str | Path) -> None:
    """Write a row for each rank, such as ``0F0,0F1,0I0``.

    Args:
        orders: to write; of orders that come from a file, all cells are written.
        path: of the file.
    """
    rows = orders.rows if isinstance(orders, FileOrders) else orders
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([map(str, row) for row in rows])
    write_atomically(path, text.getvalue())


def load_orders(path: str | Path) -> FileOrders:
    """Read a file that `save_orders` or torch's ``_dump_csv`` wrote.

    Of two actions that overlap, one is taken to run after the other.

    Args:
        path: of the file.

    Raises:
        InputError: names the file, the row and the cell; or messages have a deadlock.
    """
    orders: Orders = []
    rows: list[list[str]] = []
    try:
        lines = list(csv.reader(io.StringIO(read_text(path))))
    except csv.Error as error:
        raise InputError(f"{path}: {error}") from None
    for rank, row in enumerate(lines):
        rows.append([cell for each in row if (cell := each.strip())])
        try:
            orders.append([action for cell in rows[-1] for action in work_of(cell)])
        except InputError as error:
            raise InputError(f"{path}: row {rank}: {error}") from None
    found = _from_zero(FileOrders(orders, rows))
    if found.has_messages:
        try:
            check_messages(found.rows)
            check_rows(found.rows)
        except InputError as error:
            raise InputError(f"{path}: {error}") from None
    return found


def work_of(cell: str) -> list[Action]:
    """Return the actions that a cell computes; empty for messages and parameters.

    Args:
        cell: of a file.

    Raises:
        InputError: the cell is not an action.
    """
    if match := _TOGETHER.fullmatch(cell):
        return [action for part in match[1].split(";") for action in work_of(part.strip())]
    if match := _WORK.fullmatch(cell):
        return [Action(int(match[1]), match[2], int(match[3]))]
    if MESSAGE.fullmatch(cell) or _PARAMETERS.fullmatch(cell):
        return []
    raise InputError(f"{cell[:40]!r} is not an action like 0F0")


def _from_zero(orders: FileOrders) -> FileOrders:
    """Number microbatches from 0: torch 2.13 numbers the forwards of 1F1B's last rank from 1."""
    shifted = set()
    numbers: dict[tuple[int, str], set[int]] = {}
    for action in (action for order in orders for action in order):
        numbers.setdefault((action.stage, action.kind), set()).add(action.microbatch)
    for (stage, kind), found in numbers.items():
        back = numbers.get((stage, "B")) or numbers.get((stage, "I"))
        if kind == "F" and back == {m - 1 for m in found}:
            shifted.add(stage)
    if not shifted:
        return orders

    def fixed(cell: str) -> str:
        actions = work_of(cell)
        if len(actions) == 1 and actions[0].kind == "F" and actions[0].stage in shifted:
            return str(actions[0]._replace(microbatch=actions[0].microbatch - 1))
        return cell

    rows = [[fixed(cell) for cell in row] for row in orders.rows]
    return FileOrders([[a for cell in row for a in work_of(cell)] for row in rows], rows)


def check_messages(rows: Sequence[Sequence[str]]) -> None:
    """Refuse sends and receives that deadlock if each of them waits for its counterpart.

    Args:
        rows: cells of each rank, as torch writes them; ``0SEND_F3`` and ``1RECV_F3`` are one
            message.

    Raises:
        InputError: names the ranks that wait, and their messages.
    """
    queues = [[match for match in map(MESSAGE.fullmatch, row) if match is not None] for row in rows]
    position = [0] * len(rows)

    def message(rank: int) -> tuple[int, str, str] | None:
        if position[rank] == len(queues[rank]):
            return None
        stage, way, kind, m = queues[rank][position[rank]].groups()
        step = 1 if kind == "F" else -1  # a message is identified by its sender
        return int(stage) - (step if way == "RECV" else 0), kind, m

    while any(message(rank) is not None for rank in range(len(rows))):
        waiting: dict[tuple[int, str, str], int] = {}
        for rank in range(len(rows)):
            found = message(rank)
            if found is None:
                continue
            if found in waiting:
                position[rank] += 1
                position[waiting[found]] += 1
                break
            waiting[found] = rank
        else:
            stuck = ", ".join(
                f"rank {rank} at {queues[rank][position[rank]][0]}" for rank in waiting.values()
            )
            raise InputError(f"schedule: sends and receives wait for each other: {stuck}")


def check_rows(rows: Sequence[Sequence[str]]) -> None:
    """Refuse rows in which ranks wait for each other, even if no send waits for its receive.

    A forward needs that of the previous stage, a backward that of the next stage. If that stage
    is on another rank, the row has to receive its message first.

    Args:
        rows: cells of each rank.

    Raises:
        InputError: names the ranks and the cells before which they stop.
    """
    stages_of = [{a.stage for cell in row for a in work_of(cell)} for row in rows]
    last = max((stage for stages in stages_of for stage in stages), default=0)
    done: set[str] = set()
    position, moved = [0] * len(rows), True
    while moved:
        moved = False
        for rank, row in enumerate(rows):
            while position[rank] < len(row):
                cell = row[position[rank]]
                together = [str(action) for action in work_of(cell)] or [cell]
                if not all(_can_begin(one, stages_of[rank], last, done) for one in together):
                    break
                done.update(together)
                position[rank] += 1
                moved = True
    stuck = [
        f"rank {rank} stops before {row[position[rank]]}"
        for rank, row in enumerate(rows)
        if position[rank] < len(row)
    ]
    if stuck:
        raise InputError(f"schedule: waits for itself: {', '.join(stuck)}")


def _can_begin(cell: str, own: set[int], last: int, done: set[str]) -> bool:
    """Whether everything is done that a cell waits for; ``own``: the stages of its rank."""
    if match := MESSAGE.fullmatch(cell):
        stage, way, kind, m = int(match[1]), match[2], match[3], match[4]
        if way == "RECV":
            sender = stage - 1 if kind == "F" else stage + 1
            return f"{sender}SEND_{kind}{m}" in done
        kinds = ("F",) if kind == "F" else ("B", "I")
        return any(f"{stage}{one}{m}" in done for one in kinds)
    if not (match := _WORK.fullmatch(cell)) or match[2] == "W":
        return True  # parameters; or W, which needs only its own I, earlier in the row
    stage, kind, m = int(match[1]), match[2], match[3]
    step = -1 if kind == "F" else 1
    if not 0 <= stage + step <= last:
        return True
    if stage + step in own:
        kinds = ("F",) if kind == "F" else ("B", "I")
        return any(f"{stage + step}{one}{m}" in done for one in kinds)
    return f"{stage}RECV_{'F' if kind == 'F' else 'B'}{m}" in done
