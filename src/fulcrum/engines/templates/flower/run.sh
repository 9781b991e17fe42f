{% include "flower/begin.sh" %}
{% include "flower/configure.sh" %}
exec flwr run "${APP:-app}" fulcrum "$@"
