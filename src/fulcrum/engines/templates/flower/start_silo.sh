{% include "flower/begin.sh" %}
exec flower-supernode --superlink {{ address | quoted }} --root-certificates ca.crt \
  --auth-supernode-private-key node.key --host 127.0.0.1 --port "${RUNTIME_PORT:-9094}" \
  --node-config "fulcrum-site=\"$PWD\"${NODE_CONFIG:+ $NODE_CONFIG}"
