"""What `penstock bench init` prints: a plan that runs as it is, with a word on each choice."""

PLAN = """\
# A benchmark of Penstock. Run it with: penstock bench run plan.yaml
# Every field: docs/reference/bench-plan.md
name: first-look

# The store: a local S3 server that the run starts and ends. For a bucket of your own:
#   storageBackend: s3
#   s3DatasetPath: s3://bucket/prefix      # the data set is put there, and removed at the end
#   endpoint: http://host:9000             # for stores other than AWS
#   s3SecretName: environment              # or the name of a Secret that was applied
storageBackend: local
# s3ResultPath: s3://bucket/results        # results are copied there; file:///folder works too

# The data set, made from a seed: jpeg, tfrecord, webdataset, small, large; or given.
dataset:
  form: jpeg
  size: 32MiB
  seed: 1

# What is compared. Known by name: ceiling, native, rclone, s3fs, juicefs, juicefs-none,
# juicefs-warm, penstock-none, penstock-cold, penstock-planned, penstock-warm,
# penstock-25, penstock-50, penstock-75.
# An arm of your own:  - {name: tuned, system: penstock, state: cold, options: {block-size: 1MiB}}
arms:
  - native
  - rclone
  - penstock-cold
  - penstock-warm

# What reads. Emulated accelerators are busy for MLPerf Storage's published step times; what comes
# of them is no MLPerf result.
workloads:
  - name: read
    kind: read
    epochs: 2
    readers: 4
#  - name: resnet50
#    kind: emulated
#    model: resnet50
#    accelerator: h100
#    accelerators: [1, 2]
#    scale: 0.1          # a tenth of one: for a machine of few cores

# Lines between reader and store; each experiment is made on each.
network:
  - name: near
#  - {name: far, latency: 20ms, bandwidth: 50Mbit}

# Real training jobs, each a TrainingJob in a file of its own:
# experiments:
#   - experiment: resnet50-2-workers
#     trainingJobConfig: job.yaml

repeats: 2      # all once, then all again, each time in another order
parallel: 1     # more at once share the machine: good for counts, bad for times
timeout: 5m     # of one experiment
seed: 1
"""
