"""`doppler run` from a checkout."""
import sys
import hydra
from doppler.resources import resource
@hydra.main(version_base="1.3", config_path=str(resource("conf")), config_name="config")
def main(cfg):
    from rich.console import Console
    from hydra.core.hydra_config import HydraConfig
    from doppler.experiment import execute
    return execute(cfg, list(HydraConfig.get().overrides.task), Console())["makespan_s"]
if __name__ == "__main__":
    import doppler.experiment.resolvers
    doppler.experiment.resolvers.register_resolvers()
    main()
