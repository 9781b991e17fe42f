export FLWR_HOME="$PWD/flwr"
mkdir -p flwr
cat > flwr/config.toml <<END
[superlink]
default = "fulcrum"

[superlink.fulcrum]
address = "127.0.0.1:${CONTROL_PORT:-{{ control }}}"
root-certificates = "$PWD/ca.crt"
END
