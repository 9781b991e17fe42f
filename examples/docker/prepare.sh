#!/usr/bin/env bash
# Plans, and writes the kits that compose.yaml mounts. Needs the extras nvflare and secure on this machine.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
fulcrum plan hospitals.csv --rounds 3 --epsilon 5 --purpose deployment --parameters 6 -o plan.json
fulcrum deploy nvflare plan.json --train averages --host server -o kits
