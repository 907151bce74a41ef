// Command cdijudge loads directories of CDI specs with the public Go library and prints what that library makes of them.
//
// Usage: cdijudge load DIR...      one Result; directories in rising priority
//
//	cdijudge files DIR        one Verdict per file of DIR, each read alone
//	cdijudge inject DIR NAME...  the OCI configuration of a container that asks for these devices
//
// Output is JSON on stdout. The library panics on some files (a null in a list of device nodes); that is told as an
// error of the file, as a runtime would crash or refuse.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"sort"

	oci "github.com/opencontainers/runtime-spec/specs-go"
	"tags.cncf.io/container-device-interface/pkg/cdi"
	specs "tags.cncf.io/container-device-interface/specs-go"
)

// Device is a device that can be injected.
type Device struct {
	Path  string                `json:"path"`
	Edits *specs.ContainerEdits `json:"edits"`
	Spec  *specs.ContainerEdits `json:"spec"`
}

// Result is what the library makes of directories.
type Result struct {
	Devices map[string]Device   `json:"devices"`
	Errors  map[string][]string `json:"errors"`
}

// Verdict is what the library makes of one file.
type Verdict struct {
	Error   string      `json:"error"`
	Spec    *specs.Spec `json:"spec"`
	Minimum string      `json:"minimum"`
}

func main() {
	if len(os.Args) < 3 {
		fail(fmt.Errorf("usage: cdijudge load|files|inject DIR..."))
	}
	var answer any
	switch os.Args[1] {
	case "load":
		answer = load(os.Args[2:])
	case "files":
		answer = files(os.Args[2])
	case "inject":
		answer = inject(os.Args[2], os.Args[3:])
	default:
		fail(fmt.Errorf("unknown word %q", os.Args[1]))
	}
	if err := json.NewEncoder(os.Stdout).Encode(answer); err != nil {
		fail(err)
	}
}

func load(dirs []string) Result {
	cache, err := cdi.NewCache(cdi.WithAutoRefresh(false), cdi.WithSpecDirs(dirs...))
	if err != nil {
		fail(err)
	}
	result := Result{Devices: map[string]Device{}, Errors: map[string][]string{}}
	for _, name := range cache.ListDevices() {
		device := cache.GetDevice(name)
		spec := device.GetSpec()
		result.Devices[name] = Device{Path: spec.GetPath(), Edits: &device.ContainerEdits, Spec: &spec.ContainerEdits}
	}
	for path, errs := range cache.GetErrors() {
		for _, err := range errs {
			result.Errors[path] = append(result.Errors[path], err.Error())
		}
		sort.Strings(result.Errors[path])
	}
	return result
}

func inject(dir string, devices []string) *oci.Spec {
	cache, err := cdi.NewCache(cdi.WithAutoRefresh(false), cdi.WithSpecDirs(dir))
	if err != nil {
		fail(err)
	}
	config := &oci.Spec{}
	if _, err := cache.InjectDevices(config, devices...); err != nil {
		fail(err)
	}
	return config
}

func files(dir string) map[string]Verdict {
	entries, err := os.ReadDir(dir)
	if err != nil {
		fail(err)
	}
	verdicts := map[string]Verdict{}
	for _, entry := range entries {
		verdicts[entry.Name()] = read(filepath.Join(dir, entry.Name()))
	}
	return verdicts
}

func read(path string) (verdict Verdict) {
	defer func() {
		if thrown := recover(); thrown != nil {
			verdict = Verdict{Error: fmt.Sprintf("panic: %v", thrown)}
		}
	}()
	spec, err := cdi.ReadSpec(path, 0)
	if err != nil {
		return Verdict{Error: err.Error()}
	}
	minimum, err := specs.MinimumRequiredVersion(spec.Spec)
	if err != nil {
		return Verdict{Error: err.Error()}
	}
	return Verdict{Spec: spec.Spec, Minimum: minimum}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}
