"""`penstock`, and `python -m penstock`."""

import signal


def main() -> None:
    # Ctrl-C while modules are imported ends the process silently, as it ends any program.
    catches = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if catches:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from penstock.cli.app import main as run

    if catches:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run()


if __name__ == "__main__":
    main()
