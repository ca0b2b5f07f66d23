"""penstock server: the server of a data set in its pod."""

import click


@click.command()
def server() -> None:
    """Serve a data set in a pod, around a mount of the node plugin.

    The operator starts it in the pods of a data set's DaemonSet, and gives it the Dataset and its
    runtime in the environment. It needs no privilege.

    \b
    Example:
      penstock server     # the command of its container
    """
    from penstock.api.cluster import serve_pod

    serve_pod()
