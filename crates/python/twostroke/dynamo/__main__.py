"""`python -m twostroke.dynamo --model DIRECTORY --disaggregation-mode agg|prefill|decode ...`"""

import sys

NEEDS = "pip install --no-deps ai-dynamo==1.5.1 ai-dynamo-runtime==1.5.1, and what docs/guide/dynamo.md lists"


def main() -> int:
    try:
        from dynamo.common.backend.run import run

        from twostroke.dynamo.worker import Worker
    except ModuleNotFoundError as error:
        print(f"twostroke.dynamo: {error.name} is not installed: {NEEDS}", file=sys.stderr)
        return 1
    run(Worker)
    return 0


if __name__ == "__main__":
    sys.exit(main())
