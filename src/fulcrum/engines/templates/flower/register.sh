{% include "flower/begin.sh" %}
{% include "flower/configure.sh" %}
exec python -m fulcrum.engines.flower.kits.node_registration fulcrum{% for silo in silos %} {{ (silo ~ "/node.key.pub") | quoted }}{% endfor +%}
