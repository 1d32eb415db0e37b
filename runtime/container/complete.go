package container

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/margolite/margolite/runtime/compose"
	"github.com/margolite/margolite/runtime/containerd"
)

// incompleteKey is the extension of a container record that holds its
// specification without the devices of the machine, for a container that has some.
const incompleteKey = "margolite/incomplete-spec"

// describeProcess writes into the details what has to be known at each start.
func (d *Details) describeProcess(s *compose.Service) {
	d.Devices = devicesOf(s)
	d.CgroupParent = s.Resources.CgroupParent
	if d.CgroupParent == "" { // whose else the real time is the owner's to give
		d.Realtime = realtimeOf(s)
	}
}

// complete adds the devices that are there now to a specification.
func complete(spec *specs.Spec, d *Devices) error {
	if d == nil {
		return nil
	}
	if err := d.addTo(spec); err != nil {
		return err
	}
	return addCDI(spec, d.CDI, cdiDirs)
}

// recordSpec is what Create writes of a specification: the record's own, and in
// extensions what it takes to complete it anew.
func recordSpec(spec *specs.Spec, d *Devices, extensions map[string]containerd.Any) (*containerd.Any, error) {
	if d != nil {
		incomplete, err := json.Marshal(spec)
		if err != nil {
			return nil, fmt.Errorf("cannot encode specification: %w", err)
		}
		extensions[incompleteKey] = containerd.Any{Type: incompleteKey, Value: incomplete}
	}
	if err := complete(spec, d); err != nil {
		return nil, err
	}
	return encodeSpec(spec)
}

// specType is how containerd and its shims know a specification.
const specType = "types.containerd.io/opencontainers/runtime-spec/1/Spec"

// specOf is the text of the specification in a record; nil where there is none.
func specOf(record containerd.Container) []byte {
	if record.Spec == nil {
		return nil
	}
	return record.Spec.Value
}

func encodeSpec(spec *specs.Spec) (*containerd.Any, error) {
	text, err := json.Marshal(spec)
	if err != nil {
		return nil, fmt.Errorf("cannot encode specification: %w", err)
	}
	return &containerd.Any{Type: specType, Value: text}, nil
}

// renew prepares what of a container's specification a reboot takes away, and
// completes it with the devices that are there now: since its creation the
// machine may have got others, or others numbers. It is written only when it
// changed.
func (c *Containers) renew(ctx context.Context, record containerd.Container, d Details) (containerd.Container, error) {
	if d.Realtime > 0 {
		if err := allowRealtime(realtimeRoot, c.cgroup(record.Labels[OwnerKey], record.ID), d.Realtime); err != nil {
			return record, err
		}
	}
	extension, ok := record.Extensions[incompleteKey]
	if !ok {
		return record, nil
	}
	var spec specs.Spec
	if err := json.Unmarshal(extension.Value, &spec); err != nil {
		return record, fmt.Errorf("cannot read specification: %w", err)
	}
	if err := complete(&spec, d.Devices); err != nil {
		return record, err
	}
	var current specs.Spec
	if err := json.Unmarshal(specOf(record), &current); err != nil {
		return record, fmt.Errorf("cannot read specification: %w", err)
	}
	spec.Linux.Namespaces = current.Linux.Namespaces // those of others are looked for after this
	renewed, err := encodeSpec(&spec)
	if err != nil {
		return record, err
	}
	if bytes.Equal(renewed.Value, specOf(record)) {
		return record, nil
	}
	record.Spec = renewed
	return c.o.Client.ContainerService().Update(ctx, record, "spec")
}
