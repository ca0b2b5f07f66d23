"""Resources as users write them: Dataset, runtimes, data operations, TrainingJob, Secret.

    kinds            the kinds of resources and their names
    dataset, runtimes, operations, jobs    their fields, with what each means; models has them all
    fields, resource, tieredstore, reasons    what these are made of
    documents        YAML files to resources; yaml_tree reads YAML, validation finds mistakes
    schema, explain  the fields of a model, their documentation, and those without effect
    secret_fields    taking secrets out of a manifest, and putting them back

Charter: pure. YAML to models and back, without files, state, stores or mounts, so that it serves
one machine and a Kubernetes API server alike.
"""
