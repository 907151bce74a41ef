"""The engine gives sandboxes their RDMA devices, whichever door a request came through.

A door makes values of what it hears and calls one Engine:

    engine.run_pod(pod, annotations, deadline, asker)       # RunPodSandbox: plan, refuse, begin to attach
    edits = engine.create_container(                        # CreateContainer: from memory
        pod.sandbox_id, str(pod), annotations, "main", (), {}, deadline
    )
    engine.stop_pod(pod.sandbox_id, deadline)               # StopPodSandbox: give everything back

Calls raise NriRdmaError to refuse, and return before their deadline, which is in seconds of `time.monotonic`. An attach
that takes longer goes on in a worker. `create_container` is the barrier: it answers only when everything that the pod
asked for is attached, and raises NotReadyError, after which the kubelet comes back, as long as it is not. `synchronize`
takes the runtime's list of pods after a reconnect. `start_container` is the last moment for limits and for GPUs that
only the container shows.

Where to look:

- `run_pod`, `create_container`, `synchronize`: the main paths, from top to bottom.
- `placer` gathers what decides (request, kubelet, GPUs, node) into a Question; `nri_rdma.decide.decision` answers it;
  `reservations` decides and reserves in one step.
- `evidence` finds out what others gave to containers; `late` attaches what nobody announced at the pod's start.
- `barrier`, `alignment_check`, `limiter`: what a container meets on its way.
- `sandbox`: all that is remembered of a sandbox besides its attachments, and the table of its life.
- `guard`: the answer to the OCI hook that lets no container start without its devices.

What is attached has a life of its own: `nri_rdma.attach.states`.
"""
