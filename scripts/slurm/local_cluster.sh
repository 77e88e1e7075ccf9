#!/usr/bin/env bash
# Starts a Slurm of one node in a temporary folder, runs a command, and stops the Slurm: local_cluster.sh COMMAND ARGUMENTS.
# Needs root and Debian's slurm-wlm and munge; --install installs them with apt-get if they are missing.
set -euo pipefail
fail() {
  echo "$0: $1" >&2
  exit 2
}
install=
if [ "${1:-}" = --install ]; then
  install=1
  shift
fi
[ $# -gt 0 ] || fail "usage: $0 [--install] COMMAND ARGUMENTS"
[ "$(id -u)" -eq 0 ] || fail "must run as root, because slurmd starts the steps of other users"
missing=()
for program in munged slurmctld slurmd srun; do
  command -v "$program" >/dev/null || missing+=("$program")
done
if [ ${#missing[@]} -gt 0 ] && [ -n "$install" ]; then
  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends slurm-wlm munge
elif [ ${#missing[@]} -gt 0 ]; then
  fail "${missing[*]}: not installed; apt-get install slurm-wlm munge, or call with --install"
fi

folder=$(mktemp -d /tmp/slurm.XXXXXX)
started=()
stop() {
  local number
  for ((number = ${#started[@]} - 1; number >= 0; number--)); do
    kill "${started[number]}" 2>/dev/null || true
    wait "${started[number]}" 2>/dev/null || true
  done
  if [ -n "${KEEP_SLURM:-}" ]; then echo "$0: logs in $folder" >&2; else rm -rf "$folder"; fi
}
trap stop EXIT
chmod 755 "$folder"
mkdir -p "$folder/state" "$folder/spool"
head -c 1024 /dev/urandom >"$folder/munge.key"
chmod 400 "$folder/munge.key"
munged --foreground --force --key-file="$folder/munge.key" --socket="$folder/munge.socket" --pid-file="$folder/munge.pid" \
  --log-file="$folder/munge.log" --seed-file="$folder/munge.seed" >"$folder/munge.out" 2>&1 &
started+=($!)

read -r controller daemon < <(python3 - <<'PYTHON'
import socket
probes = [socket.create_server(("", 0)) for _ in range(2)]
print(*(probe.getsockname()[1] for probe in probes))
PYTHON
)
host=$(hostname -s)
# cred_expire is also the delay of a requeued job; its default is 120 seconds.
cat >"$folder/slurm.conf" <<CONFIG
ClusterName=local
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$controller
SlurmdPort=$daemon
SlurmUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket=$folder/munge.socket,cred_expire=5
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
MailProg=/bin/true
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=bf_interval=1,sched_interval=1
KillWait=10
ReturnToService=2
NodeName=$host NodeAddr=127.0.0.1 CPUs=2 State=UNKNOWN
PartitionName=main Nodes=$host Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO
CONFIG
: >"$folder/cgroup.conf"
export SLURM_CONF=$folder/slurm.conf LOCAL_SLURM=$folder
ready() { # COMMAND: wait until it succeeds, at most a minute
  local deadline=$((SECONDS + 60))
  until "$@" >/dev/null 2>&1; do
    if [ $SECONDS -gt $deadline ]; then
      tail -n 20 "$folder"/*.log "$folder"/*.out >&2
      fail "did not succeed within a minute: $*"
    fi
    sleep 0.2
  done
}
ready test -S "$folder/munge.socket"
slurmctld -D >"$folder/slurmctld.out" 2>&1 &
started+=($!)
ready scontrol ping
slurmd -D -N "$host" >"$folder/slurmd.out" 2>&1 &
started+=($!)
idle() { [ "$(sinfo --noheader --format=%T)" = idle ]; }
ready idle
"$@"
