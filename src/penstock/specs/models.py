"""Every kind of resource as a model. Pure."""

from collections.abc import Mapping

from penstock.specs.alluxio import AlluxioRuntime
from penstock.specs.dataset import Dataset
from penstock.specs.jindo import JindoRuntime
from penstock.specs.jobs import TrainingJob
from penstock.specs.juicefs import JuiceFSRuntime
from penstock.specs.operations import DataBackup, DataLoad, DataMigrate, DataProcess
from penstock.specs.resource import Resource
from penstock.specs.runtimes import PenstockRuntime
from penstock.specs.secret import Secret
from penstock.specs.thin import ThinRuntime, ThinRuntimeProfile

Runtime = AlluxioRuntime | JindoRuntime | JuiceFSRuntime | ThinRuntime | PenstockRuntime
Operation = DataLoad | DataMigrate | DataProcess | DataBackup

MODELS: Mapping[str, type[Resource]] = {
    model.__name__: model
    for model in (
        Dataset, AlluxioRuntime, JindoRuntime, JuiceFSRuntime, ThinRuntime, PenstockRuntime,
        ThinRuntimeProfile, DataLoad, DataMigrate, DataProcess, DataBackup, TrainingJob, Secret,
    )
}  # fmt: skip
