"""A JobSet for Kubernetes without SkyPilot: `scripts/train_k8s.yaml` for any number of machines."""

from jaxspeed.errors import LOST_PEER, MISTAKE, REQUEUE, UserError
from jaxspeed.launch.executor import Executor

_NAME = "jaxspeed"  # of the JobSet and of its network
_PORT = 55527  # of process 0; JAX's own choice on Kubernetes

_JOBSET = """\
# One run of jaxspeed.train on {nodes} machines of {gpus} GPUs, as a JobSet (jobset.sigs.k8s.io,
# 0.10 or newer) that starts anew after a lost machine or a preemption and resumes from its
# checkpoint.
#   kubectl apply -f scripts/train_k8s.yaml
#   kubectl logs -f -l job-name={name}-hosts-0,batch.kubernetes.io/job-completion-index=0
#   kubectl delete jobset {name}        # saves; the same apply resumes the run
# To be changed: the image, the two volume claims, the arguments. The number of machines stands in
# three places (parallelism, completions and JAX_NUM_PROCESSES) and in the recipe's variant.
# Written by `python -m jaxspeed.launch script kubernetes`; for other numbers of machines or GPUs:
#   python -m jaxspeed.launch script kubernetes --nodes=16 --gpus=8
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata:
  name: {name}
spec:
  network:
    # A headless service gives each pod the name {name}-hosts-0-INDEX.{name}.
    enableDNSHostnames: true
    # The coordinator must be found before it is ready: it waits for the others.
    publishNotReadyAddresses: true
    subdomain: {name}
  failurePolicy:
    # Of lost processes ({lost_peer}), kills and exceptions; preemptions do not count.
    maxRestarts: {max_restarts}
    # No pod of the next start runs beside one of the last: none writes the others' checkpoints.
    restartStrategy: BlockingRecreate
    rules:
      - name: mistake
        action: FailJobSet
        onJobFailureReasons: [PodFailurePolicy]
        onJobFailureMessagePatterns: ["exit code {mistake} "]
      - name: preempted
        action: RestartJobSetAndIgnoreMaxRestarts
        onJobFailureReasons: [PodFailurePolicy]
        onJobFailureMessagePatterns: ["exit code {requeue} "]
  replicatedJobs:
    - name: hosts
      replicas: 1
      template:
        spec:
          parallelism: {nodes}
          completions: {nodes}
          completionMode: Indexed
          # A pod alone cannot rejoin a run: one failure is that of the job, and all start anew.
          backoffLimit: 0
          podFailurePolicy:
            rules:
              # A user's mistake, which another start would repeat.
              - action: FailJob
                onExitCodes:
                  containerName: trainer
                  operator: In
                  values: [{mistake}]
              # Told to leave, and saved: known by its message to the rule above.
              - action: FailJob
                onExitCodes:
                  containerName: trainer
                  operator: In
                  values: [{requeue}]
          template:
            spec:
              # A podFailurePolicy allows nothing else.
              restartPolicy: Never
              # From the hook's first second to SIGKILL. Spot machines are taken away 120 s (AWS)
              # or 30 s (Google) after their notice, whatever stands here.
              terminationGracePeriodSeconds: 120
              containers:
                - name: trainer
                  image: registry.example.org/jaxspeed:0.1.0
                  # Without a shell before it the trainer is process 1, which the hook signals.
                  command: [python, -m, jaxspeed.train]
                  args:
                    - --config=configs/imagenet18.py:{nodes}
                    - --config.data.path=/data/imagenet
                    - --config.compile_cache=/runs/programs
                    - --workdir=/runs/imagenet18
                  # With JOB_COMPLETION_INDEX, which the cluster sets, these say who takes part.
                  env:
                    - name: JAX_COORDINATOR_ADDRESS
                      value: {name}-hosts-0-0.{name}:{port}
                    - name: JAX_NUM_PROCESSES
                      value: "{nodes}"
                    # By these two a new start may take the folder over from the last one.
                    - name: JOBSET_NAME
                      valueFrom:
                        fieldRef:
                          fieldPath: metadata.labels['jobset.sigs.k8s.io/jobset-name']
                    - name: JOBSET_RESTART_ATTEMPT
                      valueFrom:
                        fieldRef:
                          fieldPath: metadata.labels['jobset.sigs.k8s.io/restart-attempt']
                  ports:
                    - containerPort: {port}
                  lifecycle:
                    preStop:
                      exec:
                        # SIGUSR1 to one process makes all save and leave with {requeue}, so that a
                        # drained or preempted machine restarts the set; after SIGTERM they would
                        # leave with 0, and the set would be complete.
                        command:
                          - /bin/sh
                          - -c
                          - kill -USR1 1; while kill -0 1; do sleep 1; done
                  resources:
                    limits:
                      # All of a machine: one pod a host.
                      nvidia.com/gpu: {gpus}
                  volumeMounts:
                    - name: runs
                      mountPath: /runs
                    - name: data
                      mountPath: /data
                      readOnly: true
                    # NCCL's shared memory; a container has 64 MB of it otherwise.
                    - name: shm
                      mountPath: /dev/shm
              volumes:
                # Written by all pods: checkpoints, compiled programs.
                - name: runs
                  persistentVolumeClaim:
                    claimName: jaxspeed-runs
                - name: data
                  persistentVolumeClaim:
                    claimName: jaxspeed-data
                    readOnly: true
                - name: shm
                  emptyDir:
                    medium: Memory
                    sizeLimit: 16Gi
"""


def jobset(nodes: int = 2, gpus: int = 8) -> str:
  """The YAML file of a run on Kubernetes; with the defaults `scripts/train_k8s.yaml`.

  Args:
    nodes: the number of machines.
    gpus: the number of GPUs of each machine.

  Raises:
    UserError: a number is not positive.
  """
  for name, number in {"nodes": nodes, "gpus": gpus}.items():
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
      raise UserError(f"jobset({name}={number!r}): it must be a positive integer.")
  return _JOBSET.format(
    name=_NAME,
    port=_PORT,
    nodes=nodes,
    gpus=gpus,
    max_restarts=Executor.model_fields["max_restarts"].default,
    lost_peer=LOST_PEER,
    mistake=MISTAKE,
    requeue=REQUEUE,
  )
