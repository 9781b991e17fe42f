{% include "flower/begin.sh" %}
{% include "flower/configure.sh" %}
for silo in {{ silos | map("quoted") | join(" ") }}; do
  flwr supernode register "$silo/node.key.pub" fulcrum
done
