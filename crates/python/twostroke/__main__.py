"""The command: `python -m twostroke serve`, and whatever else `twostroke --help` lists."""

import signal
import sys

from twostroke import _twostroke


def main() -> int:
    # The command listens for signals itself, as far as it has something to end well; Python's own handler would only
    # make a note that is not read.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    return _twostroke.main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
