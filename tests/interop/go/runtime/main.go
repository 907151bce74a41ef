// Command runtime is the runtime's side of NRI, as containerd and CRI-O have it: it listens at the socket of the first
// argument, gives plugins the milliseconds of the second one for each request, and does what standard input says.
//
// A line asks for one event of a pod or of its container; the answer is a line on standard output: the error of the
// event, which would be the runtime's, the paths of the devices that a container gets, and how long it took.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"
)

// asked is one line on standard input.
type asked struct {
	Event       string            `json:"event"`
	Pod         string            `json:"pod"`
	Netns       string            `json:"netns"`
	Annotations map[string]string `json:"annotations"`
	Container   string            `json:"container"`
}

// told is its answer.
type told struct {
	Error   string   `json:"error"`
	Devices []string `json:"devices"`
	Seconds float64  `json:"seconds"`
}

func main() {
	milliseconds, err := strconv.Atoi(os.Args[2])
	stop(err)
	adaptation.SetPluginRequestTimeout(time.Duration(milliseconds) * time.Millisecond)
	pods := map[string]*api.PodSandbox{}
	synchronize := func(ctx context.Context, tell adaptation.SyncCB) error {
		var listed []*api.PodSandbox
		for _, pod := range pods {
			listed = append(listed, pod)
		}
		_, err := tell(ctx, listed, nil)
		return err
	}
	update := func(context.Context, []*api.ContainerUpdate) ([]*api.ContainerUpdate, error) { return nil, nil }
	runtime, err := adaptation.New("containerd", "v2.5.0", synchronize, update,
		adaptation.WithSocketPath(os.Args[1]), adaptation.WithPluginPath("/nonexistent"))
	stop(err)
	stop(runtime.Start())
	output := json.NewEncoder(os.Stdout)
	stop(output.Encode(map[string]bool{"ready": true}))
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		var line asked
		stop(json.Unmarshal(lines.Bytes(), &line))
		stop(output.Encode(happen(runtime, pods, line)))
	}
}

func stop(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "runtime:", err)
		os.Exit(1)
	}
}

// happen relays an event to the plugins. A sandbox whose RunPodSandbox failed is none.
func happen(runtime *adaptation.Adaptation, pods map[string]*api.PodSandbox, line asked) told {
	blocked := runtime.BlockPluginSync() // as containerd does for each request
	defer blocked.Unblock()
	pod := &api.PodSandbox{
		Id: line.Pod, Uid: "uid-" + line.Pod, Name: line.Pod, Namespace: "default", Annotations: line.Annotations,
		Linux: &api.LinuxPodSandbox{Namespaces: []*api.LinuxNamespace{{Type: "network", Path: line.Netns}}},
	}
	begin, answer := time.Now(), told{Devices: []string{}}
	var err error
	switch ctx := context.Background(); line.Event {
	case "RunPodSandbox":
		if err = runtime.RunPodSandbox(ctx, &api.RunPodSandboxRequest{Pod: pod}); err == nil {
			pods[line.Pod] = pod
		}
	case "StopPodSandbox":
		err = runtime.StopPodSandbox(ctx, &api.StopPodSandboxRequest{Pod: pod})
	case "RemovePodSandbox":
		if err = runtime.RemovePodSandbox(ctx, &api.RemovePodSandboxRequest{Pod: pod}); err == nil {
			delete(pods, line.Pod)
		}
	case "CreateContainer":
		container := &api.Container{Id: line.Container, PodSandboxId: line.Pod, Name: line.Container}
		var made *api.CreateContainerResponse
		made, err = runtime.CreateContainer(ctx, &api.CreateContainerRequest{Pod: pod, Container: container})
		for _, device := range made.GetAdjust().GetLinux().GetDevices() {
			answer.Devices = append(answer.Devices, device.GetPath())
		}
	default:
		err = fmt.Errorf("no event is called %q", line.Event)
	}
	answer.Seconds = time.Since(begin).Seconds()
	if err != nil {
		answer.Error = err.Error()
	}
	return answer
}
