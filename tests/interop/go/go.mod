// What the interoperability tests are held against: the Go implementations of ttrpc and of NRI's plugin side.
module nri-rdma/tests/interop

go 1.25.0

require (
	github.com/containerd/nri v0.12.5
	github.com/containerd/ttrpc v1.2.10
	google.golang.org/grpc v1.81.1
	google.golang.org/protobuf v1.36.11
)

require (
	github.com/containerd/log v0.1.0 // indirect
	github.com/knqyf263/go-plugin v0.9.0 // indirect
	github.com/opencontainers/runtime-spec v1.3.0 // indirect
	github.com/sirupsen/logrus v1.9.4 // indirect
	github.com/tetratelabs/wazero v1.11.0 // indirect
	go.yaml.in/yaml/v3 v3.0.5 // indirect
	golang.org/x/sys v0.46.0 // indirect
	google.golang.org/genproto/googleapis/rpc v0.0.0-20260226221140-a57be14db171 // indirect
)

tool github.com/containerd/ttrpc/example/cmd
