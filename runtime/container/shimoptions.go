package container

import (
	"encoding/binary"

	"github.com/margolite/margolite/runtime/containerd"
)

// What the shim of runc is told with each container is containerd's message
// containerd.runc.v1.Options (types/runc/options/oci.proto of its API). The one
// field that is used takes less code than what writes any message.
const (
	shimOptionsType = "containerd.runc.v1.Options"
	shimOptionsRoot = 7<<3 | 2 // the field with runc's own directory, a text
)

func shimOptions(runcRoot string) *containerd.Any {
	value := binary.AppendUvarint(nil, shimOptionsRoot)
	value = binary.AppendUvarint(value, uint64(len(runcRoot)))
	return &containerd.Any{Type: shimOptionsType, Value: append(value, runcRoot...)}
}
