# Runs the site whose kit is mounted at /site in the foreground. A start makes no ledger: see init.sh.
set -euo pipefail
mkdir -p transfer
if [ -e startup/fed_server.json ]; then
  exec python -u -m nvflare.private.fed.app.server.server_train -m "$PWD" -s fed_server.json \
    --set secure_train=true org=fulcrum config_folder=config
fi
if [ ! -e local/fulcrum/initialised.json ]; then
  echo "$SITE has no records. The operator of $SITE makes the records, once, as in init.sh" >&2
  exit 2
fi
exec python -u -m nvflare.private.fed.app.client.client_train -m "$PWD" -s fed_client.json \
  --set secure_train=true org=fulcrum config_folder=config uid="$SITE"
