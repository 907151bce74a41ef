// Command stub is an NRI plugin made of nri's own Go stub: it tells, one JSON document per line, what the runtime told
// it, and does to containers what their pod's annotations say.
//
// As the runtime starts it, it takes the socket and its name from the environment and tells the file that its
// configuration names, for a runtime gives it neither output nor variables. With one argument, the path of the
// runtime's socket, it connects there as 42-outside and tells on standard output.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"
)

// told is one line: what happened and to whom.
type told struct {
	Event      string `json:"event"`
	Pod        string `json:"pod,omitempty"`
	Container  string `json:"container,omitempty"`
	Runtime    string `json:"runtime,omitempty"`
	Version    string `json:"version,omitempty"`
	Config     string `json:"config,omitempty"`
	Pods       int    `json:"pods,omitempty"`
	Containers int    `json:"containers,omitempty"`
	LastPod    string `json:"last_pod,omitempty"`
}

type plugin struct {
	mutex  sync.Mutex
	output *os.File
	stub   stub.Stub
}

func main() {
	p := &plugin{output: os.Stdout}
	var options []stub.Option
	if len(os.Args) > 1 {
		options = []stub.Option{
			stub.WithSocketPath(os.Args[1]), stub.WithPluginName("outside"), stub.WithPluginIdx("42"),
		}
	}
	var err error
	p.stub, err = stub.New(p, options...)
	stop(err)
	stop(p.stub.Run(context.Background()))
}

func stop(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "stub:", err)
		os.Exit(1)
	}
}

func (p *plugin) tell(t told) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	stop(json.NewEncoder(p.output).Encode(t))
}

func (p *plugin) Configure(_ context.Context, config, runtime, version string) (stub.EventMask, error) {
	if config != "" {
		file, err := os.OpenFile(config, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			return 0, err
		}
		p.output = file
	}
	p.tell(told{Event: "Configure", Runtime: runtime, Version: version, Config: config})
	return 0, nil
}

func (p *plugin) Synchronize(
	_ context.Context, pods []*api.PodSandbox, containers []*api.Container,
) ([]*api.ContainerUpdate, error) {
	t := told{Event: "Synchronize", Pods: len(pods), Containers: len(containers)}
	if len(pods) > 0 {
		t.LastPod = pods[len(pods)-1].GetId()
	}
	p.tell(t)
	return nil, nil
}

func (p *plugin) RunPodSandbox(_ context.Context, pod *api.PodSandbox) error {
	p.tell(told{Event: "RunPodSandbox", Pod: pod.GetId()})
	if text := pod.GetAnnotations()["refuse"]; text != "" {
		return errors.New(text)
	}
	return nil
}

func (p *plugin) StopPodSandbox(_ context.Context, pod *api.PodSandbox) error {
	p.tell(told{Event: "StopPodSandbox", Pod: pod.GetId()})
	return nil
}

func (p *plugin) RemovePodSandbox(_ context.Context, pod *api.PodSandbox) error {
	p.tell(told{Event: "RemovePodSandbox", Pod: pod.GetId()})
	return nil
}

// CreateContainer gives the variable and the device that the pod's annotations name; with "update", it updates another.
func (p *plugin) CreateContainer(
	_ context.Context, pod *api.PodSandbox, container *api.Container,
) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	p.tell(told{Event: "CreateContainer", Pod: pod.GetId(), Container: container.GetId()})
	annotations := pod.GetAnnotations()
	if text := annotations["refuse"]; text != "" {
		return nil, nil, errors.New(text)
	}
	adjust := &api.ContainerAdjustment{}
	if value, asked := annotations["env"]; asked {
		adjust.AddEnv("FROM_GO", value)
	}
	if path, asked := annotations["device"]; asked {
		adjust.AddDevice(&api.LinuxDevice{Path: path, Type: "c", Major: 231, Minor: 192})
	}
	var updates []*api.ContainerUpdate
	if id, asked := annotations["update"]; asked {
		update := &api.ContainerUpdate{}
		update.SetContainerId(id)
		update.SetLinuxCPUShares(123)
		updates = append(updates, update)
	}
	return adjust, updates, nil
}

// StartContainer has the runtime update a container, unasked, as annotations say; it may not do so before it returns.
func (p *plugin) StartContainer(_ context.Context, pod *api.PodSandbox, container *api.Container) error {
	p.tell(told{Event: "StartContainer", Pod: pod.GetId(), Container: container.GetId()})
	id, asked := pod.GetAnnotations()["update"]
	if !asked {
		return nil
	}
	go func() {
		update := &api.ContainerUpdate{}
		update.SetContainerId(id)
		failed, err := p.stub.UpdateContainers([]*api.ContainerUpdate{update})
		if err != nil {
			p.tell(told{Event: "UpdateContainers: " + err.Error()})
			return
		}
		p.tell(told{Event: "UpdateContainers", Containers: len(failed)})
	}()
	return nil
}
