#!/usr/bin/env bash
# One worker that reads prompts and one that answers, on this machine: deploy/two-workers.sh [flags of both]
# Clients ask at http://localhost:8000/v1; Ctrl-C ends both. The guide: docs/guide/splitting.md.
set -euo pipefail

directory=$(mktemp -d)
key="$directory/cluster.key"
(umask 077 && head -c 32 /dev/urandom | base64 > "$key")
workers=()
trap 'kill "${workers[@]}" 2> /dev/null || true; wait; rm -r "$directory"' EXIT
trap 'exit 130' INT TERM HUP

handoff="127.0.0.1:${HANDOFF_PORT:-9000}"
twostroke serve --role prefill --port "${PREFILL_PORT:-8001}" --handoff-listen "$handoff" --cluster-key "$key" "$@" &
workers+=("$!")
twostroke serve --role decode --port "${PORT:-8000}" --prefill-workers "$handoff" --cluster-key "$key" "$@" &
workers+=("$!")
# With the first that ends, the other does.
wait -n
