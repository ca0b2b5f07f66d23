"""Training jobs: who may start, what is started, and what becomes of it.

    loop        looks at all jobs, allots GPUs, starts a supervisor (`running`, `queue`)
    supervisor  one for each job that is due: attempts, retries, the job's status (`supervise`)
    keeper      one for each attempt: logs, limits, the timeout, the result (`keep`)
    init        root of all that the attempt runs, in namespaces of its own (`init`)

Each of the first three may be killed: what is above is started again and finds what is below by
its lock. When the keeper or the init is killed, everything of the attempt dies with it.
"""
