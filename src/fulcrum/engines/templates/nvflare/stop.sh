#!/usr/bin/env bash
cd "$(dirname "${BASH_SOURCE[0]}")" && echo y | startup/stop_fl.sh
