"""The engine gives sandboxes their RDMA devices, whichever door a request came through.

A door (NRI, DRA, device plugin, OCI hook) parses what it receives into typed values and calls one Engine:

    start = engine.start_of(pod, annotations, asker)            # parse the annotations
    engine.run_pod(start, deadline)                             # RunPodSandbox: plan, refuse, begin to attach
    container = KnownContainer(pod=pod, name="main", annotations=annotations)
    edits = engine.create_container(container, deadline)        # CreateContainer: from memory
    engine.start_container(pod.sandbox_id, "main", cgroups_path)
    engine.stop_pod(pod.sandbox_id, deadline)                   # StopPodSandbox: return everything to the host

Calls raise NriRdmaError to refuse, and return before their deadline, which is in seconds of `time.monotonic`. An attach
that takes longer goes on in a worker. `create_container` is the barrier: it returns only when everything that the pod
asked for is attached. Until then it raises NotReadyError, and the kubelet retries. `synchronize` takes the runtime's
list of pods after a reconnect. `start_container` is the last moment to write limits and to check GPUs that only the
container itself shows.

Where to look:

- `promises`: devices that are reserved for a container before its sandbox exists (podman with annotations).
- `run_pod`, `create_container`, `start_container`, `synchronize`: the main paths, from top to bottom.
- `engine`: the interface, and its constructor, which wires everything below.
- `asking` gathers what a pod asks for, `offering` what the node offers; `placer` makes a Question of them, which
  `nri_rdma.decide.decision` answers; `reservations` decides and reserves in one step.
- `container`: what a door reports about a pod and a container. `specs`, `kubelet`: what other programs gave to a
  container, according to CDI specs and the kubelet. `evidence` reads both into one value for each container;
  `rereading` reads again when nothing explains a container's device nodes.
- `nri_rdma.attach.holdings`: all attachments of one sandbox. `nri_rdma.decide.lacking` compares evidence and holdings,
  and `late` attaches what is lacking: CDI devices and shares that nobody announced when the pod started.
- `shares`: device-plugin shares that the kubelet allocated, but that no pod is known to have yet.
- `claim_states`: which CDI devices pods have, for the status of claims.
- `view`: everything that the engine knows at one moment, for `status` and the metrics.
- `barrier`, `alignment_check`, `limiter`: the wait for devices, the check of GPUs, and the rdma limits of a container.
  `refusals`: the errors with which a container may be refused.
- `image_check`: whether the libraries in a container's image can use its devices.
- `verifier`: whether a running pod lacks anything that it asks for.
- `sandbox`: all that is remembered of a sandbox besides its attachments, and the table of its life.
- `guard`: the answer to the OCI hook that stops a container from starting without its devices. `gate`: the proof that
  RDMA works in a container, before it starts.

An attachment has a life of its own: `nri_rdma.attach.states`.
"""
