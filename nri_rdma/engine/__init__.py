"""The engine gives sandboxes their RDMA devices, whichever door a request came through.

A door makes values of what it hears and calls one Engine:

    start = engine.start_of(pod, annotations, asker)            # the annotations, parsed
    engine.run_pod(start, deadline)                             # RunPodSandbox: plan, refuse, begin to attach
    container = KnownContainer(pod=pod, name="main", annotations=annotations)
    edits = engine.create_container(container, deadline)        # CreateContainer: from memory
    engine.start_container(pod.sandbox_id, "main", cgroups_path)
    engine.stop_pod(pod.sandbox_id, deadline)                   # StopPodSandbox: give everything back

Calls raise NriRdmaError to refuse, and return before their deadline, which is in seconds of `time.monotonic`. An attach
that takes longer goes on in a worker. `create_container` is the barrier: it answers only when everything that the pod
asked for is attached, and raises NotReadyError, after which the kubelet comes back, as long as it is not. `synchronize`
takes the runtime's list of pods after a reconnect. `start_container` is the last moment for limits and for GPUs that
only the container shows.

Where to look:

- `promises`: devices of a container that is made before its sandbox exists (podman with annotations).
- `run_pod`, `create_container`, `start_container`, `synchronize`: the main paths, from top to bottom.
- `engine`: the interface, and its constructor, which wires everything below.
- `asking` gathers what a pod asks for, `offering` what the node offers; `placer` makes a Question of them, which
  `nri_rdma.decide.decision` answers; `reservations` decides and reserves in one step.
- `container`: what a door says of a pod and a container. `specs`, `kubelet`: what others gave to it. `evidence` reads
  both into one value for each container; `rereading`: what is read again because nothing explains its devices.
- `nri_rdma.attach.holdings`: all attachments of one sandbox. `nri_rdma.decide.lacking` compares evidence and holdings,
  and `late` attaches what is lacking: CDI devices and shares that nobody announced when the pod started.
- `shares`: what the kubelet allocated of our resources and no pod is known to have.
- `claim_states`: which CDI devices pods have, for the status of claims.
- `view`: everything that the engine knows at one moment, for those who show it.
- `barrier`, `alignment_check`, `limiter`: what a container meets on its way. `refusals`: the errors that it may meet.
- `image_check`: whether the libraries in a container's image can use its devices.
- `verifier`: whether a running pod lacks anything of what it asks for.
- `sandbox`: all that is remembered of a sandbox besides its attachments, and the table of its life.
- `guard`: the answer to the OCI hook that lets no container start without its devices. `gate`: the proof that RDMA
  works in a container, before it starts.

What is attached has a life of its own: `nri_rdma.attach.states`.
"""
