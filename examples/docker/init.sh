#!/usr/bin/env bash
# The step of each site's operator, once in the life of the site: the ledger of a silo, or the file of sums of a region. A silo
# that took part before names its ledger instead: kits/SILO/README.md.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
for site in north south lille amiens nice lyon; do
  docker compose run --rm --no-deps --entrypoint fulcrum "$site" site init .
done
