{% include "flower/begin.sh" %}
{% include "flower/configure.sh" %}
printf '%s\0' {{ silos | map("quoted") | join(" ") }} | xargs -0 -P 4 -I{} flwr supernode register {}/node.key.pub fulcrum
