#!/usr/bin/env bash
# A Slurm cluster of two nodes on this one machine, to try scripts/train.sbatch on: Debian's Slurm,
# as root, without systemd; all of it lies under DIR and listens on the loopback interface only.
#   apt-get install --no-install-recommends slurm-wlm munge
#   bash scripts/slurm_local.sh up DIR       # then: export SLURM_CONF=DIR/slurm.conf
#   bash scripts/slurm_local.sh down DIR     # ends its jobs and daemons, removes DIR
set -euo pipefail

fail() {
  echo "slurm_local.sh: $*" >&2
  exit 2
}

usage="write: bash scripts/slurm_local.sh up DIR, or: down DIR."
[ $# -eq 2 ] || fail "$usage"
[ "$(id -u)" -eq 0 ] || fail "the daemons start as root only; this is $(id -un)."
dir=$(realpath -m -- "$2")
export SLURM_CONF=$dir/slurm.conf PATH=$PATH:/usr/sbin:/sbin

# The addresses are the names, so that a name resolves without a line in /etc/hosts.
nodes="127.0.0.1 127.0.0.2"

free_port() {
  # Below the ports that the kernel gives to clients and that JAX takes for its coordinator.
  local port
  while port=$((20000 + RANDOM % 10000)); (: >"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do :; done
  echo "$port"
}

write_config() {
  local controller
  controller=$(free_port)
  # cred_expire: also the wait before a requeued job may start again, 120 s by default.
  # CommunicationParameters: bind to the node's own address instead of all of them.
  # proctrack/linuxproc, task/none: the cgroup plugins want cgroups that containers do not have.
  # config_overrides: nodes may have more processors than the machine.
  # KillWait: seconds between SIGTERM and SIGKILL, the time in which a run saves.
  # UnkillableStepTimeout: a step that ends while the controller is away retries for a minute and
  # more to say so; by then a node would be drained, as of a task that cannot be killed.
  # SchedulerParameters: jobs start at once, not at the next of the rounds a minute apart.
  # GraceTime: a job that is pushed out has these seconds from SIGTERM on.
  cat >"$SLURM_CONF" <<EOF
ClusterName=jaxspeed
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort=$controller
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$dir/munge.socket,cred_expire=5
CredType=cred/munge
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool.%n
SlurmctldPidFile=$dir/slurmctld.pid
SlurmdPidFile=$dir/slurmd.%n.pid
SlurmctldLogFile=$dir/slurmctld.log
SlurmdLogFile=$dir/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,sched_interval=1,bf_interval=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobRequeue=1
KillWait=15
UnkillableStepTimeout=300
SlurmdTimeout=10
ReturnToService=2
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
$(for node in $nodes; do
    echo "NodeName=$node NodeAddr=127.0.0.1 Port=$(free_port) CPUs=8 State=UNKNOWN"
  done)
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE PriorityTier=1 GraceTime=20
PartitionName=urgent Nodes=ALL MaxTime=INFINITE PriorityTier=2 PreemptMode=OFF
EOF
}

up() {
  for command in munged slurmctld slurmd srun; do
    command -v "$command" >/dev/null ||
      fail "$command is missing: apt-get install --no-install-recommends slurm-wlm munge."
  done
  [ ! -e "$dir" ] || [ -z "$(ls -A "$dir")" ] || fail "$dir is not empty: down $dir comes first."
  # A Unix socket's path has at most 107 characters.
  [ ${#dir} -le 90 ] || fail "the path of $dir is too long for a socket: at most 90 characters."
  mkdir -p "$dir/state"
  write_config
  (umask 077 && head -c 128 /dev/urandom >"$dir/munge.key")
  # --force: also in a folder that only root may enter, in which it wants no socket otherwise.
  munged --force --key-file="$dir/munge.key" --socket="$dir/munge.socket" \
    --pid-file="$dir/munged.pid" --log-file="$dir/munged.log" --seed-file="$dir/munge.seed" \
    2>"$dir/munged.err" || fail "munged did not start: $(cat "$dir/munged.err")"
  slurmctld
  for node in $nodes; do
    mkdir "$dir/spool.$node"
    slurmd -N "$node"
  done
  for _ in $(seq 100); do
    if [ "$(sinfo --noheader --partition=main --states=idle --format=%D 2>/dev/null)" = 2 ]; then
      echo "up: export SLURM_CONF=$SLURM_CONF"
      return
    fi
    sleep 0.1
  done
  tail -n 20 "$dir"/*.log >&2
  down
  fail "the two nodes were not idle after 10 s; the ends of their logs are above."
}

# The processes that the cluster started: munged; those with its configuration in the environment,
# if they are daemons or belong to a job, also where they outlived their slurmstepd.
members() {
  local file
  cat "$dir/munged.pid" 2>/dev/null || true
  for file in $(grep -lszFx -- "SLURM_CONF=$SLURM_CONF" /proc/[0-9]*/environ); do
    file=${file%/environ}
    if grep -qs "^slurm" "$file/comm" || grep -qsz "^SLURM_JOB_ID=" "$file/environ"; then
      echo "${file#/proc/}"
    fi
  done
}

down() {
  [ -f "$SLURM_CONF" ] || fail "$dir holds no cluster of this script: it has no slurm.conf."
  local signal found
  # Jobs first: a slurmd waits for what runs under it.
  timeout 5 scancel --signal=KILL --full --user=root 2>/dev/null || true
  timeout 5 scancel --user=root 2>/dev/null || true
  for signal in TERM KILL; do
    found=$(members)
    # shellcheck disable=SC2086  # one word a process
    [ -z "$found" ] || kill -s "$signal" $found 2>/dev/null || true
    for _ in $(seq 30); do
      [ -n "$(members)" ] || break 2
      sleep 0.1
    done
  done
  rm -rf -- "$dir"
}

case "$1" in
  up) up ;;
  down) down ;;
  *) fail "$usage" ;;
esac
