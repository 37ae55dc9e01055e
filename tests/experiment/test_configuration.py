"""Every option has a description: what is no value of it ends in one line, before anything runs."""

from pathlib import Path

import numpy as np
import pytest
from conf_files import CONF, GROUP_FILES, choice_of, group_of, name_of
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import DictConfig, ListConfig, OmegaConf

from doppler.baselines import Annealing
from doppler.cluster import preset
from doppler.experiment.checking import check_part, resolved
from doppler.experiment.configuration import Configuration, check_configuration
from doppler.experiment.failures import users_cause
from doppler.experiment.overrides import hydra_arguments
from doppler.experiment.specification import instantiated
from doppler.support.errors import InputError
from doppler.support.options import parameters


@pytest.fixture(autouse=True)
def hydra():
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        yield


REFUSED = {
    # A number of another kind or size.
    "budget.evaluations=1e9": "budget.evaluations: must be a whole number of at least 1, got 1000",
    "budget.evaluations=1.5": "budget.evaluations: must be a whole number of at least 1, got 1.5",
    "budget.evaluations=inf": "budget.evaluations: must be a whole number of at least 1, got inf",
    "budget.evaluations=abc": "budget.evaluations: must be a whole number of at least 1, got 'abc'",
    "budget.evaluations=null": "budget.evaluations: must be a whole number of at least 1, got null",
    "budget.evaluations=99999999999999999999": "budget.evaluations: must be at most 2**62, got 9",
    "budget.measured_evaluations=abc": "budget.measured_evaluations: must be a whole number",
    "seed=18446744073709551616": "seed: must be a whole number from 0 to 2**63 - 1, got 1844",
    "seed=true": "seed: must be a whole number from 0 to 2**63 - 1, got True",
    "system.noise=10": "system.noise: must be a number of at least 0 and below 10, got 10",
    "system.noise=nan": "system.noise: must be a number of at least 0 and below 10, got nan",
    "+system.streams=1.5": "system.streams: must be a whole number from 1 to 60, got 1.5",
    "system.queue=lifo": "system.queue: must be one of priority, fifo, random, strict, got '",
    "cluster.num_devices=0": "cluster.num_devices: must be a whole number of at least 1 or null",
    "cluster.num_devices=5000": "cluster.num_devices: must be at most 1,024",
    "stage=rl_real stage.repeats=1.5": "stage.repeats: must be a whole number of at least 1, got 1",
    "stage=rl_real stage.repeats=1": "stage.repeats: must be a whole number of at least 2, got 1",
    "stage=calibrate stage.placements=2": "stage.placements: must be a whole number of at least 3",
    "workload.parts=0": "workload.parts: must be a whole number of at least 1, got 0",
    "workload.params.n=abc": "workload.params.n: must be a whole number of at least 1 or null, got",
    "workload.costs=free": "workload.costs: must be one of roofline, published, got 'free'",
    "policy.build.plc_hidden=0": "policy.build.plc_hidden: must be a whole number of at least 1",
    "overwrite=maybe": "overwrite: must be true or false, got 'maybe'",
    "algorithm.imitation.entropy=nan": "algorithm.imitation.entropy: must be a number of at least",
    "algorithm.imitate_best=maybe": "algorithm.imitate_best: must be true or false, got 'maybe'",
    "algorithm.search_share=1.5": "algorithm.search_share: must be a number from 0 to 1, got 1.5",
    "algorithm.imitation.learning_rate=1e-3": "algorithm.imitation.learning_rate: must be two numb",
    "trainer.checkpoint_every_s=abc": "trainer.checkpoint_every_s: must be a number from 0 to 1,00",
    "+trainer.profiler=foo": "trainer: When passing string value for the `profiler` parameter",
    "+trainer.accumulate_grad_batches=3": "trainer.accumulate_grad_batches: must be 1, got 3",
    # Nothing, where something is needed.
    "output_dir=null": "output_dir: must be a path, got null",
    "~seed": "seed: is missing",
    "workload=file": "workload.path: is missing",
    "stage=inference": "stage.init_from: is missing",
    "stage=inference stage.init_from=null": "stage.init_from: must be a path, got null",
    "stage=rl_real stage.calibration=null": "stage.calibration: must be settings with a _target_",
    "stage=rl_real stage.algorithm=null": "stage.algorithm: must be keys and values",
    "cluster=[]": "cluster: is missing",
    # Names that are no names of directories.
    "workload.name=''": "workload.name: must be a name for a directory",
    "workload.name=null": "workload.name: must be a name for a directory",
    "workload.name=../evil": "workload.name: must be a name for a directory",
    f"cluster=host cluster.name={'x' * 300}": "cluster.name: must be a name for a directory",
    "policy.name=a/b": "policy.name: must be a name for a directory",
    # Keys that are none.
    "+nosuchkey=1": "nosuchkey: no such option, there are algorithm, baseline",
    "+overwrit=true": "overwrit: no such option, did you mean overwrite?",
    "+system.nose=true": "system.nose: no such option, did you mean system.noise?",
    "+policy.build.sell=learned": "policy.build.sell: no such option, did you mean policy.build.s",
    "+policy.build.encoder=none": "policy.build.encoder: no such option",
    "+trainer.build.accelerator=foo": "trainer.build: no such option",
    "+trainer.max_steps=5": "trainer.max_steps: no such option, budget.imitation_episodes",
    # What a _target_ is not.
    "cluster._target_=no.such": "cluster._target_: 'no.such' cannot be imported: No module named",
    "cluster._target_=os.sep": "cluster._target_: 'os.sep' is not a class or function",
    "cluster._target_=os.getcwd": "cluster._target_: 'os.getcwd' is not a Cluster",
    "system._target_=doppler.baselines.HEFT": "system._target_: 'doppler.baselines.HEFT' is",
    "stage._target_=5": "stage._target_: 5 is not a class or function",
    # What refers to nothing.
    "workload.name=${no.such}": "workload.name: Interpolation key 'no.such' not found",
}


@pytest.mark.parametrize("overrides", REFUSED)
def test_what_is_no_option_is_refused_in_one_line(overrides):
    with pytest.raises(InputError) as error:
        check_configuration(compose("config", hydra_arguments(overrides.split())))
    assert str(error.value).startswith(REFUSED[overrides])
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        ("accelerator=cpu devices=2 num_nodes=2 strategy=ddp_spawn precision=64", "in one process"),
        ("sync_batchnorm=true use_distributed_sampler=false plugins=[]", "in one process"),
        ("max_epochs=0 min_epochs=1 min_steps=1 max_time=00:00:00:00", "budget.evaluations"),
        ("fast_dev_run=true limit_train_batches=0 overfit_batches=1", "budget.evaluations"),
        ("limit_val_batches=1 val_check_interval=0.5", "without validation"),
        ("barebones=true enable_checkpointing=true logger=false", "trainer.checkpoint_every_s"),
        ("default_root_dir=elsewhere", "run_dir"),
    ],
)
def test_what_training_is_by_its_nature_is_no_option_of_the_trainer(options, hint):
    for option in options.split():
        name = option.partition("=")[0]
        with pytest.raises(InputError, match=rf"^trainer\.{name}: no such option, .*{hint}.*$"):
            check_configuration(compose("config", hydra_arguments([f"+trainer.{option}"])))


def test_the_memory_of_any_cluster_is_an_option():
    for choice in ("p100x4", "host", "mixed"):
        for value, expected in (("4", 4), ("[1e9,2e9]", [1e9, 2e9])):
            words = [f"cluster={choice}", "cluster.num_devices=2", f"cluster.memory_bytes={value}"]
            cfg = compose("config", hydra_arguments(words))
            check_configuration(cfg)
            assert cfg.cluster.memory_bytes == expected
            made = instantiate(cfg.cluster).devices
            assert [one.memory_bytes for one in made] == list(np.broadcast_to(expected, 2))


def test_an_option_may_belong_to_a_swept_group_alone():
    words = ["workload=llama_block,llama_layer", "workload.params.seq=256", "-m", "seed=1"]
    rewritten = hydra_arguments(words)
    assert rewritten == ["-m", words[0], f"++{words[1]}", "seed=1"]
    # Before Hydra sweeps, it composes the default workload, which lacks this option.
    compose("config", rewritten[2:])
    check_configuration(compose("config", ["workload=llama_layer", *rewritten[2:]]))


def test_options_of_hydra_and_choices_of_groups_are_left_alone():
    words = ["hydra.sweeper.n_trials=5", "hydra/sweeper=optuna", "cluster=host", "+a.b=1", "~a.b"]
    words.append("budget.evaluations=choice(1,2)")
    assert hydra_arguments(words) == words


@pytest.mark.parametrize("path", ["5", "1e3", "[a]", "{a:b}", "true"])
def test_a_path_that_reads_as_something_else_is_refused_until_it_is_quoted(path):
    with pytest.raises(InputError, match=r"^output_dir: must be a path, got .* is quoted: \"out"):
        check_configuration(compose("config", hydra_arguments([f"output_dir={path}"])))
    cfg = compose("config", hydra_arguments([f"output_dir='{path}'"]))
    check_configuration(cfg)
    assert cfg.output_dir == path


def test_values_outside_the_grammar_are_quoted_and_commas_still_sweep():
    assert hydra_arguments(["-m", "run_dir=a[1],b'c"])[1] == r"run_dir='a[1]','b\'c'"


def test_hosts_of_any_preset_are_options():
    words = ["cluster=p100x4", "cluster.num_devices=6", "cluster.nic_bytes_per_s=1e9"]
    for value, expected in (("2", (0, 0, 0, 1, 1, 1)), ("[0,1,0,1,0,1]", (0, 1) * 3)):
        given = [*words, f"cluster.hosts={value}", "cluster.nics=2", "cluster.nic_latency_s=1e-5"]
        cfg = compose("config", hydra_arguments(given))
        check_configuration(cfg)
        cluster = instantiate(cfg.cluster)
        assert (cluster.hosts, cluster.nics, cluster.nic_latency_s) == (expected, 2, 1e-5)


# --- Every key of every file of conf/ ------------------------------------------------------------

VALUES = (None, -1, 1.5, "abc", [], {}, float("nan"), 2**70, True)
NEEDED = {
    **{"workload/file": ["workload.path=x.txt"], "workload/torch": ["workload.module=x.py:f"]},
    **{"workload/answers": ["workload.path=x.csv"]},
    **{"workload/answers_program": ["workload.path=x.csv"]},
    **{"stage/inference": ["stage.init_from=pretrained"]},
    **{"training_set/families": ["stage=rl_sim"], "training_set/broad": ["stage=rl_sim"]},
}
FILES = [file for file in GROUP_FILES if group_of(file) != "experiment"]
KINDS = parameters(Configuration).known
# What others are made of, and what of a file's own group is made at no cost.
_CHEAP = ("cluster", "system", "stage", "decomposition")


def composed(file: Path) -> DictConfig:
    override = f"{group_of(file)}={choice_of(file)}"
    return compose("config", [override, *NEEDED.get(name_of(file), ())])


def leaves(part):
    """(part, key) of every value in a part, and of the parts in it."""
    for key in range(len(part)) if isinstance(part, ListConfig) else list(part):
        yield part, key
        inner = part._get_node(key)
        if isinstance(inner, DictConfig | ListConfig) and not OmegaConf.is_interpolation(part, key):
            yield from leaves(inner)


def run_or_refuse(cfg: DictConfig, group: str) -> bool:
    """Whether it is accepted; anything but a line for the user is a defect."""
    try:
        if group == "trainer":
            check_configuration(cfg)
        elif group in cfg:
            check_part(group, KINDS[group], resolved(cfg, group))
        if group in _CHEAP:
            instantiated(cfg[group])
        if group == "policy":
            instantiate(cfg.policy.build)
        if group == "baseline":
            for one in cfg.baseline.values():
                instantiate(one)
    except (InputError, InstantiationException) as error:
        cause = users_cause(error)
        assert cause is not None, error
        assert "\n" not in str(cause)
        return False
    return True


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_any_value_of_any_key_is_accepted_or_refused_in_one_line(file):
    group, cfg = group_of(file), composed(file)
    OmegaConf.set_struct(cfg, False)
    check_configuration(cfg)
    num_refused = 0
    for part, key in list(leaves(cfg.get(group, {}))):
        nodes = part._content
        before = nodes[key]
        for value in VALUES:
            nodes[key] = OmegaConf.create([value])._get_node(0)
            nodes[key]._set_parent(part)
            num_refused += not run_or_refuse(cfg, group)
        nodes[key] = before
    assert num_refused > 0 or group not in cfg
    assert run_or_refuse(cfg, group), "all is as it was"


def test_too_many_arguments_end_in_pythons_own_line_which_names_the_function():
    with pytest.raises(
        TypeError, match=r"^preset\(\) takes 0 positional arguments but 1 was given"
    ):
        preset("v100x8")
    with pytest.raises(
        TypeError, match=r"^Annealing\.__init__\(\) takes 1 positional argument but 2"
    ):
        Annealing(1000)


def unannotated(name, num_devices):
    return preset(name="p100x4", num_devices=num_devices)


def test_a_function_that_does_not_say_what_it_returns_may_be_a_target():
    words = [f"cluster._target_={__name__}.unannotated"]
    cfg = compose("config", hydra_arguments(words))
    check_configuration(cfg)
    assert instantiate(cfg.cluster).num_devices == 4
