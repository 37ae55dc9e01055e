"""Right files of other projects."""

WORKFLOW = {
    **{"name": "blast", "schemaVersion": "1.5", "author": {"name": "somebody"}},
    "workflow": {
        "specification": {
            "tasks": [
                {"name": "split", "id": "t0", "parents": [], "children": ["t1", "t2"],
                 "inputFiles": ["raw"], "outputFiles": ["half"]},
                {"name": "left", "id": "t1", "parents": ["t0"], "children": ["t2"],
                 "inputFiles": ["half", "raw"], "outputFiles": []},
                {"name": "right", "id": "t2", "parents": ["t0", "t1"], "children": [],
                 "inputFiles": ["half"]},
            ],
            "files": [{"id": "raw", "sizeInBytes": 100}, {"id": "half", "sizeInBytes": 5e9}],
        },
        "execution": {
            "makespanInSeconds": 9,
            "tasks": [
                {"id": "t0", "runtimeInSeconds": 2.5, "coreCount": 4},
                {"id": "t1", "runtimeInSeconds": 3},
                {"id": "t2", "runtimeInSeconds": 1},
            ],
            "machines": [],
        },
    },
}  # fmt: skip
PROFILED = {
    **{"maxSizePerFPGA": 1e3, "maxFPGAs": 2, "maxCPUs": 1},
    "nodes": [
        {"name": "conv", "id": 0, "supportedOnFpga": 1, "cpuLatency": 20, "fpgaLatency": 2.0,
         "isBackwardNode": False, "colorClass": 1, "layerId": 3, "size": 600.0},
        {"name": "relu", "id": 7, "supportedOnFpga": True, "cpuLatency": 10, "fpgaLatency": 1.0,
         "isBackwardNode": False, "colorClass": 1, "size": 300.0},
        {"name": "loss", "id": 9, "supportedOnFpga": False, "cpuLatency": 4, "fpgaLatency": 0,
         "isBackwardNode": False, "size": 5000.0},
    ],
    "edges": [
        {"sourceId": 0, "destId": 7, "cost": 5, "size": 8.0},
        {"sourceId": 7, "destId": 9, "cost": 0.0, "size": 8.0},
    ],
}  # fmt: skip
