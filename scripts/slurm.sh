#!/usr/bin/env bash
# Unpack Slurm's controller, node daemon and commands from Debian's packages into .venv/slurm: 13 MB, nothing is
# installed and no service is set up. Tests start the daemons with a configuration of their own (tests/launch/slurm.py).
# Needs Debian or Ubuntu, with package lists that are not too old (apt-get update, as root).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
folder=.venv/slurm
[ -e "$folder/.complete" ] && exit 0
command -v slurmctld >/dev/null && command -v slurmd >/dev/null && exit 0
command -v apt-get >/dev/null || { echo "no apt-get here: install slurmctld, slurmd and slurm-client yourself" >&2; exit 1; }
rm -rf "$folder"
mkdir -p "$folder/packages"
(cd "$folder/packages" && apt-get download -qq slurmctld slurmd slurm-client slurm-wlm-basic-plugins libmunge2 libhwloc15 liblua5.1-0)
for package in "$folder"/packages/*.deb; do dpkg -x "$package" "$folder"; done
rm -r "$folder/packages"
touch "$folder/.complete"
