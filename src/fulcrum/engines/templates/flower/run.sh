{% include "flower/begin.sh" %}
{% include "flower/configure.sh" %}
exec flwr run app fulcrum "$@"
