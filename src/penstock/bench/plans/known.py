"""The arms that a plan can name without saying more, and the order in which they are listed. Pure.

What each is good for stands beside it; the reference page and the hints are made of it.
"""

from collections.abc import Mapping

from penstock.bench.plans.model import ArmPlan

ARMS: Mapping[str, tuple[ArmPlan, str]] = {
    arm.name: (arm, meaning)
    for arm, meaning in (
        (
            ArmPlan("ceiling", "ceiling", "warm", drops_pages=False),
            "batches from memory, no I/O at all: what the workload reaches at best",
        ),
        (
            ArmPlan("native", "native", "warm", drops_pages=False),
            "the same files on the local medium, without a mount",
        ),
        (
            ArmPlan("rclone", "rclone", "cold", 0.0),
            "rclone mount without a cache: each read goes to the store",
        ),
        (
            ArmPlan("s3fs", "s3fs", "cold", 0.0),
            "s3fs without a cache: each read goes to the store",
        ),
        (
            ArmPlan("juicefs-none", "juicefs", "cold", 0.0),
            "JuiceFS without a cache; it keeps objects of its own shape in the store",
        ),
        (
            ArmPlan("juicefs", "juicefs", "cold", drops_pages=False),
            "JuiceFS, its cache empty when the first epoch begins",
        ),
        (
            ArmPlan("juicefs-warm", "juicefs", "warm", drops_pages=False),
            "JuiceFS, its cache full before the first epoch",
        ),
        (
            ArmPlan("penstock-none", "penstock", "cold", 0.0),
            "Penstock without a cache: each read goes to the store",
        ),
        (
            ArmPlan("penstock-cold", "penstock", "cold", drops_pages=False),
            "Penstock, its cache empty when the first epoch begins",
        ),
        (
            ArmPlan("penstock-planned", "penstock", "planned", drops_pages=False),
            "the same, told the order of each epoch; reported as hinted",
        ),
        (
            ArmPlan("penstock-warm", "penstock", "warm", drops_pages=False),
            "Penstock, its cache full before the first epoch",
        ),
        *(
            (
                ArmPlan(f"penstock-{percent}", "penstock", "cold", percent / 100),
                f"Penstock with room for {percent}% of the data set; pages are dropped before each "
                "epoch, so that the cache alone counts",
            )
            for percent in (25, 50, 75)
        ),
    )
}
