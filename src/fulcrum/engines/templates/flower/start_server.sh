{% include "flower/begin.sh" %}
export FULCRUM_SITE="$PWD"
control="${CONTROL_PORT:-{{ control }}}"
trap 'kill $(jobs -p) 2> /dev/null' EXIT
flower-superlink --host 127.0.0.1 --port "$control" \
  --ssl-ca-certfile ca.crt --ssl-certfile server.pem --ssl-keyfile server.key \
  --enable-supernode-auth --database superlink.db --disable-runtime-dependency-installation &
python -m fulcrum.engines.flower.gate --host "${HOST:-{{ everywhere }}}" --port {{ port }} \
  --superlink "$control"{{ "" if largest_answer is none else " --largest-answer %d" % largest_answer }} &
wait -n
