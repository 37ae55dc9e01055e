"""Captures what streams are given as a CUDA graph, and leaves torch in order if that fails."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch


@contextmanager
def capturing(stream: Any, shares: Any = None) -> Iterator[Any]:
    """Capture what is issued in the body of the ``with`` statement; gives the graph.

    Other threads may use CUDA meanwhile. The graph can be replayed once the body has ended.

    Args:
        stream: on which the capture begins and ends; it is made current.
        shares: another graph whose memory is reused.

    Raises:
        RuntimeError: torch cannot capture this, or not on this machine. Errors of the body are
            raised as they are.
    """
    graph = torch.cuda.CUDAGraph()
    pool = torch.cuda.graph_pool_handle() if shares is None else shares.pool()
    with torch.inference_mode(), torch.cuda.stream(stream):
        try:
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            yield graph
            graph.capture_end()
        except BaseException:  # a signal too must not leave the capture open
            _give_up(graph, stream, pool)
            raise


def _give_up(graph: Any, stream: Any, pool: Any) -> None:
    """End a capture that failed.

    If CUDA refuses to end it, torch's allocator believes that it goes on: then no memory that is
    cached for one stream is given to another one, and emptying the cache is an internal error.
    """
    # A signal may have come while the stream of a task was current.
    with torch.cuda.stream(stream), suppress(RuntimeError):
        graph.capture_end()
    gpu = torch.device(stream.device).index
    with suppress(RuntimeError, AttributeError):  # it has ended
        torch._C._cuda_endAllocateToPool(gpu, pool)
        torch._C._cuda_releasePool(gpu, pool)
