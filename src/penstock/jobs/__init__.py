"""Training jobs: which may start, what is started, and what their result is.

    decide      job_queue (who gets GPUs and cores), job_retry (why an attempt failed, whether the
                job is retried), job_status, job_datasets, launching (what each trainer starts):
                pure; know no file and no process
    loop        scheduler: looks at all jobs, allots GPUs, starts a supervisor
    supervisor  job_supervisor: one per job that is due: loads data, starts attempts, retries, and
                writes the job's status; attempt_setup turns the manifest into one attempt
    keeper      attempt_keeper: one per attempt: logs, limits, timeout, outcome
    init        attempt_init: PID 1 of everything that the attempt runs, in its own namespaces
    machine     cgroups, containers, processes, job_folder
    look        usage (CPU, memory, GPUs), loader_waits (how long its loops waited for batches),
                attach (a command inside a running job)

Loop, supervisor and keeper may be killed. The loop restarts supervisors, and a new supervisor
finds a running keeper by its lock. When the keeper or the init is killed, everything of the attempt
dies with it.
"""
