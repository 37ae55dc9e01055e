"""Schedules computed by hand, each drawn as it should be, asserted event by event.

In the drawings every character of a row is one second; a digit is the op that runs, a letter the
region that moves, a dot an idle second.
"""

import numpy as np
from problems import cluster_of, graph_of

from doppler.problem import Placement, build
from doppler.simulator import Published, WorkConserving
from doppler.trace import check


def run(graph, cluster, device, system, priority=None):
    """The trace of one placement, and its events: ops by id, transfers by (producer, device)."""
    problem = build(graph, cluster)
    with system.open(problem) as session:
        trace = session.trace(Placement.make(problem, np.array(device), priority))
    check(trace)
    ops = dict(enumerate(zip(trace.op_start_s, trace.op_finish_s, strict=True)))
    transfers = {}
    for t, region in enumerate(trace.transfer_region):
        label = problem.graph.regions.src[region], trace.transfer_dst[t]
        when = trace.transfer_start_s[t], trace.transfer_finish_s[t]
        transfers.setdefault(label, []).append(when)
    return trace, ops, transfers


def test_one_device_runs_a_diamond_serially():
    #            0123456
    # device 0   0112223
    graph = graph_of([1, 2, 3, 1], [(0, 1, 9), (0, 2, 9), (1, 3, 9), (2, 3, 9)])
    trace, ops, transfers = run(graph, cluster_of([1]), [0] * 4, WorkConserving())
    assert ops == {0: (0, 1), 1: (1, 3), 2: (3, 6), 3: (6, 7)}
    assert transfers == {}
    assert trace.makespan_s == 7


def test_a_transfer_takes_latency_and_bytes_over_bandwidth():
    #            012345
    # device 0   00
    # 0 -> 1     ..aaa        1 s of latency, 4 bytes at 2 bytes/s
    # device 1   .....1
    graph = graph_of([2, 1], [(0, 1, 4)])
    cluster = cluster_of([1, 1], latency_s=1, bytes_per_s=2)
    _, ops, transfers = run(graph, cluster, [0, 1], WorkConserving())
    assert ops == {0: (0, 2), 1: (5, 6)}
    assert transfers == {(0, 1): [(2, 5)]}


def test_fifo_breaks_ties_by_id():
    #            012345
    # device 0   0
    # 0 -> 1     .a
    # device 1   33312        1 and 2 have both been ready since 2, priorities say 2 first
    graph = graph_of([1, 1, 1, 3], [(0, 1, 1), (0, 2, 1)])
    cluster, device, priority = cluster_of([1, 1]), [0, 1, 1, 1], np.array([0, 3, 1, 2])
    _, ops, _ = run(graph, cluster, device, WorkConserving(queue="fifo"), priority)
    assert ops == {0: (0, 1), 1: (3, 4), 2: (4, 5), 3: (0, 3)}


def test_priority_overtakes_fifo():
    #                       0123
    # device 1              3
    # 1 -> 0                .a      2 arrives at the very instant at which device 0 is free
    # device 0, priority    0021
    # device 0, fifo        0012    1 has been ready since 0
    graph = graph_of([2, 1, 1, 1], [(3, 2, 1)])
    cluster, device, priority = cluster_of([1, 1]), [0, 0, 0, 1], np.array([0, 3, 2, 1])
    _, ops, transfers = run(graph, cluster, device, WorkConserving(queue="priority"), priority)
    assert ops == {0: (0, 2), 1: (3, 4), 2: (2, 3), 3: (0, 1)}
    assert transfers == {(3, 0): [(1, 2)]}
    _, ops, _ = run(graph, cluster, device, WorkConserving(queue="fifo"), priority)
    assert ops == {0: (0, 2), 1: (2, 3), 2: (3, 4), 3: (0, 1)}


def test_a_channel_carries_one_transfer_at_a_time():
    #                  01234567
    # device 0         01
    # 0 -> 1           .aaabbb
    # device 1         ....2..3
    # without contention
    # 0 -> 1           .aaa
    #                  ..bbb
    # device 1         ....23
    graph = graph_of([1, 1, 1, 1], [(0, 2, 3), (1, 3, 3)])
    cluster, device = cluster_of([1, 1]), [0, 0, 1, 1]
    _, ops, transfers = run(graph, cluster, device, WorkConserving(contention="fifo"))
    assert ops == {0: (0, 1), 1: (1, 2), 2: (4, 5), 3: (7, 8)}
    assert transfers == {(0, 1): [(1, 4)], (1, 1): [(4, 7)]}
    _, ops, transfers = run(graph, cluster, device, WorkConserving(contention="none"))
    assert ops == {0: (0, 1), 1: (1, 2), 2: (4, 5), 3: (5, 6)}
    assert transfers == {(0, 1): [(1, 4)], (1, 1): [(2, 5)]}


def test_a_transfer_has_the_priority_of_its_earliest_consumer():
    #            0123456789
    # device 0   012
    # 0 -> 1     .aacccbb      at 3 both b (for 4, rank 5) and c (for 5 and 3, ranks 4 and 6) wait
    # device 1   ...66653.4
    graph = graph_of([1, 1, 1, 1, 1, 1, 3], [(0, 6, 2), (1, 4, 2), (2, 3, 3), (2, 5, 3)])
    device, priority = [0, 0, 0, 1, 1, 1, 1], np.array([0, 1, 2, 6, 5, 4, 3])
    _, ops, transfers = run(graph, cluster_of([1, 1]), device, WorkConserving(), priority)
    assert transfers == {(0, 1): [(1, 3)], (2, 1): [(3, 6)], (1, 1): [(6, 8)]}
    assert [ops[v] for v in (0, 1, 2)] == [(0, 1), (1, 2), (2, 3)]
    assert [ops[v] for v in (6, 5, 3, 4)] == [(3, 6), (6, 7), (7, 8), (8, 9)]


def test_a_region_moves_once_per_destination():
    #            01234
    # device 0   0
    # 0 -> 1     .aa          for 1 and 2
    # device 1   ...12
    # 0 -> 2     .aa          for 3
    # device 2   ...3
    graph = graph_of([1, 1, 1, 1], [(0, 1, 2), (0, 2, 2), (0, 3, 2)])
    _, ops, transfers = run(graph, cluster_of([1, 1, 1]), [0, 1, 1, 2], WorkConserving())
    assert ops == {0: (0, 1), 1: (3, 4), 2: (4, 5), 3: (3, 4)}
    assert transfers == {(0, 1): [(1, 3)], (0, 2): [(1, 3)]}


def test_two_regions_of_one_op_move_separately():
    #            012345
    # device 0   0
    # 0 -> 1     .aabb        1 reads region a, 2 reads region b
    # device 1   ...1.2
    graph = graph_of([1, 1, 1], [(0, 1, 2, 0), (0, 2, 2, 1)])
    _, ops, transfers = run(graph, cluster_of([1, 1]), [0, 1, 1], WorkConserving())
    assert ops == {0: (0, 1), 1: (3, 4), 2: (5, 6)}
    assert transfers == {(0, 1): [(1, 3), (3, 5)]}


def test_engines_send_one_transfer_at_a_time():
    #            0123456
    # device 0   0
    # 0 -> 1     .aa          first by priority
    # 0 -> 2     ...aa        second, but device 0 sends already
    # 1 -> 2     .b           third, but both its engines are free
    # device 1   1..2
    # device 2   ..4..3
    graph = graph_of([1, 1, 1, 1, 1], [(0, 2, 2), (0, 3, 2), (1, 4, 1)])
    cluster, device = cluster_of([1, 1, 1]), [0, 1, 1, 2, 2]
    _, ops, transfers = run(graph, cluster, device, WorkConserving(contention="engines"))
    assert transfers == {(0, 1): [(1, 3)], (0, 2): [(3, 5)], (1, 2): [(1, 2)]}
    assert ops == {0: (0, 1), 1: (0, 1), 2: (3, 4), 3: (5, 6), 4: (2, 3)}
    # With a channel per pair nothing waits.
    _, _, transfers = run(graph, cluster, device, WorkConserving(contention="fifo"))
    assert transfers == {(0, 1): [(1, 3)], (0, 2): [(1, 3)], (1, 2): [(1, 2)]}


def test_engines_receive_one_transfer_at_a_time():
    #            0123456
    # device 0   0
    # device 1   1
    # 0 -> 2     .aa
    # 1 -> 2     ...bb
    # device 2   ...2.3
    graph = graph_of([1, 1, 1, 1], [(0, 2, 2), (1, 3, 2)])
    cluster, device = cluster_of([1, 1, 1]), [0, 1, 2, 2]
    _, ops, transfers = run(graph, cluster, device, WorkConserving(contention="engines"))
    assert transfers == {(0, 2): [(1, 3)], (1, 2): [(3, 5)]}
    assert ops == {0: (0, 1), 1: (0, 1), 2: (3, 4), 3: (5, 6)}


def test_a_device_that_sends_does_nothing_else():
    #            0123456789
    # device 0   0aabbb1
    # 0 -> 1     .aa          for 3, which goes before 2, and 4; 1 waits for device 0
    # 0 -> 2     ...bbb       for 2
    # device 1   ...3c4       c, of 3 for 5, goes before 4, which waits
    # device 2   .....52
    graph = graph_of([1, 1, 1, 1, 1, 1], [(0, 2, 3, 1), (0, 3, 2, 0), (0, 4, 2, 0), (3, 5, 1)])
    cluster, device = cluster_of([1, 1, 1]), [0, 0, 2, 1, 1, 2]
    system, priority = WorkConserving(contention="sender"), np.array([0, 1, 3, 2, 4, 5])
    _, ops, transfers = run(graph, cluster, device, system, priority)
    assert transfers == {(0, 1): [(1, 3)], (0, 2): [(3, 6)], (3, 2): [(4, 5)]}
    assert ops == {0: (0, 1), 1: (6, 7), 2: (6, 7), 3: (3, 4), 4: (5, 6), 5: (5, 6)}


def test_two_streams():
    #            0123
    # stream 0   000
    # stream 1   1233
    trace, ops, _ = run(graph_of([3, 1, 1, 2]), cluster_of([1]), [0] * 4, WorkConserving(streams=2))
    assert ops == {0: (0, 3), 1: (0, 1), 2: (1, 2), 3: (2, 4)}
    assert trace.op_stream.tolist() == [0, 1, 1, 1]


def test_devices_and_links_of_different_speeds():
    #            01234567
    # device 0   0000..22     1 flop/s
    # 0 -> 1     ....a        4 bytes/s
    # device 1   .....1       4 flop/s
    # 1 -> 0     ......bb     1 byte/s, and 1 s of latency: until 9, when 3 starts
    graph = graph_of([4, 4, 2, 1], [(0, 1, 4), (1, 3, 2), (0, 2, 4)])
    cluster = cluster_of(
        [1, 4],
        bytes_per_s=np.array([[1, 4], [1, 1]]),
        latency_s=np.array([[0, 0], [1, 0]]),
    )
    _, ops, transfers = run(graph, cluster, [0, 1, 0, 0], WorkConserving())
    assert transfers == {(0, 1): [(4, 5)], (1, 0): [(6, 9)]}
    assert ops == {0: (0, 4), 1: (5, 6), 2: (4, 6), 3: (9, 10)}


def test_strict_order_idles_where_priority_does_not():
    #                       01234567
    # device 1              000
    # 1 -> 0                ...aa
    # device 0, strict      .....122
    # device 0, priority    22...1
    graph = graph_of([3, 1, 2], [(0, 1, 2)])
    cluster, device, priority = cluster_of([1, 1]), [1, 0, 0], np.arange(3)
    _, ops, transfers = run(graph, cluster, device, WorkConserving(queue="strict"), priority)
    assert ops == {0: (0, 3), 1: (5, 6), 2: (6, 8)}
    assert transfers == {(0, 0): [(3, 5)]}
    _, ops, _ = run(graph, cluster, device, WorkConserving(queue="priority"), priority)
    assert ops == {0: (0, 3), 1: (5, 6), 2: (0, 2)}


def test_peak_memory_of_a_chain_on_one_device():
    #            012
    # device 0   012
    # input      10 10 10     stays
    # a          4  4         from the start of 0 until 1 has read it
    # b             2  2
    # output           1      nobody reads it: to the end
    graph = graph_of(
        [1, 1, 1], [(0, 1, 4), (1, 2, 2)], output_bytes=[4, 2, 1], inputs=[(10, [0]), (7, [])]
    )
    trace, _, _ = run(graph, cluster_of([1]), [0, 0, 0], WorkConserving())
    assert trace.peak_bytes.tolist() == [16]


def test_peak_memory_of_a_transfer():
    #            012345
    # device 0   02223        3 starts when region a has left
    # 0 -> 1     .aaa
    # device 1   ....1
    # Device 0 holds an input of 5 to the end, a (3 bytes) until 4, the output of 2 (1 byte) from 1,
    # the output of 3 (6 bytes) from 4: 8, 9, 9, 9, 12. Device 1 holds the input from the start, a
    # from 1 to 5, the output of 1 (2 bytes) from 4: 5, 8, 8, 8, 10.
    graph = graph_of([1, 1, 3, 1], [(0, 1, 3)], output_bytes=[3, 2, 1, 6], inputs=[(5, [0, 1])])
    trace, ops, transfers = run(graph, cluster_of([1, 1]), [0, 1, 0, 0], WorkConserving())
    assert transfers == {(0, 1): [(1, 4)]}
    assert ops == {0: (0, 1), 1: (4, 5), 2: (1, 4), 3: (4, 5)}
    assert trace.peak_bytes.tolist() == [12, 10]


def test_published_semantics_serve_an_arrival_before_a_local_reader():
    #                            01234
    # device 0                   0
    # 0 -> 1                     .aa
    # device 1, published        11132    3 arrives and 1 ends at the same instant
    # device 1, work-conserving  11123    ties go by id
    # In the published event queue a local edge is one event more than an arrival.
    graph = graph_of([1, 3, 1, 1], [(0, 3, 2), (1, 2, 9)])
    cluster, device = cluster_of([1, 1]), [0, 1, 1, 1]
    _, ops, transfers = run(graph, cluster, device, Published())
    assert ops == {0: (0, 1), 1: (0, 3), 2: (4, 5), 3: (3, 4)}
    assert transfers == {(0, 1): [(1, 3)]}
    _, ops, _ = run(graph, cluster, device, WorkConserving(queue="fifo"))
    assert ops == {0: (0, 1), 1: (0, 3), 2: (3, 4), 3: (4, 5)}


def test_published_semantics_have_no_contention():
    #            01234
    # device 0   01
    # 0 -> 1     .aaa
    #            ..bbb
    # device 1   ....23
    graph = graph_of([1, 1, 1, 1], [(0, 2, 3), (1, 3, 3)])
    _, ops, transfers = run(graph, cluster_of([1, 1]), [0, 0, 1, 1], Published())
    assert ops == {0: (0, 1), 1: (1, 2), 2: (4, 5), 3: (5, 6)}
    assert transfers == {(0, 1): [(1, 4)], (1, 1): [(2, 5)]}


def between_hosts(*, priority=None, nics=1, **rules):
    """Two producers on host 0, each with a reader of its own on host 1; all links are apart."""
    graph = graph_of([1, 1, 1, 1], [(0, 2, 2), (1, 3, 3)])
    cluster = cluster_of([1] * 4, hosts=(0, 0, 1, 1), nics=nics)
    return run(graph, cluster, [0, 1, 2, 3], WorkConserving(**rules), priority)


def test_transfers_of_two_links_share_the_interfaces_of_their_hosts():
    #            01234567
    # device 0   0                 1 runs on device 1 at the same time
    # host 0     .aabbb            a goes over the link 0 -> 2, b over 1 -> 3
    # device 2   ...2
    # device 3   ......3
    trace, ops, transfers = between_hosts()
    assert transfers == {(0, 2): [(1, 3)], (1, 3): [(3, 6)]}
    assert (ops[2], ops[3]) == ((3, 4), (6, 7))
    assert trace.transfer_outlet.tolist() == trace.transfer_inlet.tolist() == [0, 0]
    # What has the better priority goes first.
    _, _, transfers = between_hosts(priority=np.array([0, 1, 3, 2]))
    assert transfers == {(1, 3): [(1, 4)], (0, 2): [(4, 6)]}


def test_of_two_interfaces_each_transfer_takes_the_first_that_is_free():
    for contention in ("fifo", "engines"):
        trace, _, transfers = between_hosts(nics=2, contention=contention)
        assert transfers == {(0, 2): [(1, 3)], (1, 3): [(1, 4)]}
        assert trace.transfer_outlet.tolist() == trace.transfer_inlet.tolist()
        assert dict(zip(trace.transfer_src, trace.transfer_outlet, strict=True)) == {0: 0, 1: 1}


def test_without_contention_transfers_hold_no_interface():
    trace, _, transfers = between_hosts(contention="none")
    assert transfers == {(0, 2): [(1, 3)], (1, 3): [(1, 4)]}
    assert trace.transfer_outlet.tolist() == trace.transfer_inlet.tolist() == [-1, -1]


def test_an_incoming_interface_is_shared_by_hosts_that_send_to_it():
    #            0123456
    # host 0     .aa
    # host 1     ...bbb            its own interface has been free since 1
    # host 2     .aabbb
    graph = graph_of([1, 1, 1, 1], [(0, 2, 2), (1, 3, 3)])
    cluster = cluster_of([1] * 4, hosts=(0, 1, 2, 2))
    _, _, transfers = run(graph, cluster, [0, 1, 2, 3], WorkConserving())
    assert transfers == {(0, 2): [(1, 3)], (1, 3): [(3, 6)]}


def test_links_of_one_host_need_no_interface_and_both_ways_go_at_once():
    # 0 -> 1 stays on host 0 and 0 -> 2 leaves it, while 3 -> 1 comes back.
    graph = graph_of([1, 1, 1, 1, 1], [(0, 1, 4), (0, 2, 4), (3, 4, 4)])
    cluster = cluster_of([1] * 4, hosts=(0, 0, 1, 1))
    _, _, transfers = run(graph, cluster, [0, 1, 2, 3, 1], WorkConserving())
    assert transfers == {(0, 1): [(1, 5)], (0, 2): [(1, 5)], (3, 1): [(1, 5)]}


def test_between_hosts_the_slower_of_link_and_interface_counts_and_both_latencies():
    graph = graph_of([1, 1], [(0, 1, 8)])
    for nic_bytes_per_s, seconds in ((1, 2 + 3 + 8), (2, 2 + 3 + 4), (16, 2 + 3 + 2)):
        cluster = cluster_of(
            [1, 1],
            latency_s=2,
            bytes_per_s=4,
            hosts=(0, 1),
            nic_bytes_per_s=nic_bytes_per_s,
            nic_latency_s=3,
        )
        _, _, transfers = run(graph, cluster, [0, 1], WorkConserving())
        assert transfers == {(0, 1): [(1, 1 + seconds)]}
