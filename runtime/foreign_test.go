package runtime_test

import (
	"net"
	"time"

	"github.com/containerd/containerd/v2/core/containers"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/margolite/margolite/test/containerdtest"
)

func embeddedBackend() containerdtest.Backend { return containerdtest.Backends()[0] }

// answers tells whether something accepts connections at address.
func answers(address string) bool {
	conn, err := net.DialTimeout("tcp", address, time.Second)
	if err != nil {
		return false
	}
	_ = conn.Close()
	return true
}

// foreign makes a container record of somebody else.
func (r *rig) foreign(id string, labels map[string]string) {
	r.Helper()
	spec := &anypb.Any{TypeUrl: "types.containerd.io/opencontainers/runtime-spec/1/Spec", Value: []byte(`{"ociVersion":"1.2.0"}`)}
	_, err := r.client.ContainerService().Create(containerdtest.Context(r), containers.Container{
		ID: id, Labels: labels, Spec: spec, Runtime: containers.RuntimeInfo{Name: "io.containerd.runc.v2"},
	})
	must(r, err)
}

func (r *rig) hasContainer(id string) bool {
	_, err := r.client.ContainerService().Get(containerdtest.Context(r), id)
	return err == nil
}

func (r *rig) deleteContainer(id string) {
	must(r, r.client.ContainerService().Delete(containerdtest.Context(r), id))
}
