# Runs the site whose kit is mounted at /site in the foreground. Silos and regions make their records at the first start.
set -euo pipefail
mkdir -p transfer
if [ -e startup/fed_server.json ]; then
  exec python -u -m nvflare.private.fed.app.server.server_train -m "$PWD" -s fed_server.json \
    --set secure_train=true org=fulcrum config_folder=config
fi
if [ ! -e local/fulcrum/initialised.json ]; then
  fulcrum site init .
fi
exec python -u -m nvflare.private.fed.app.client.client_train -m "$PWD" -s fed_client.json \
  --set secure_train=true org=fulcrum config_folder=config uid="$SITE"
