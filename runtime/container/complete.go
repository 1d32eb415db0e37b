package container

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"

	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/typeurl/v2"
	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/margolite/margolite/runtime/compose"
)

// incompleteKey is the extension of a container record that holds its
// specification without the devices of the machine, for a container that has some.
const incompleteKey = "margolite/incomplete-spec"

// describeProcess writes into the details what has to be known at each start.
func (d *Details) describeProcess(s *compose.Service) {
	d.Devices = devicesOf(s)
	d.CgroupParent = s.Resources.CgroupParent
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
func recordSpec(spec *specs.Spec, d *Devices, extensions map[string]typeurl.Any) (typeurl.Any, error) {
	if d != nil {
		incomplete, err := json.Marshal(spec)
		if err != nil {
			return nil, fmt.Errorf("cannot encode specification: %w", err)
		}
		extensions[incompleteKey] = &anypb.Any{TypeUrl: incompleteKey, Value: incomplete}
	}
	if err := complete(spec, d); err != nil {
		return nil, err
	}
	return encodeSpec(spec)
}

// specType is how containerd and its shims know a specification.
const specType = "types.containerd.io/opencontainers/runtime-spec/1/Spec"

// specOf is the text of the specification in a record; nil where there is none.
func specOf(record containers.Container) []byte { return contentOf(record.Spec) }

func encodeSpec(spec *specs.Spec) (typeurl.Any, error) {
	text, err := json.Marshal(spec)
	if err != nil {
		return nil, fmt.Errorf("cannot encode specification: %w", err)
	}
	return &anypb.Any{TypeUrl: specType, Value: text}, nil
}

// renew prepares what of a container's specification a reboot takes away, and
// completes it with the devices that are there now: since its creation the
// machine may have got others, or others numbers. It is written only when it
// changed.
func (c *Containers) renew(ctx context.Context, record containers.Container, d Details) (containers.Container, error) {
	extension, ok := record.Extensions[incompleteKey]
	if !ok {
		return record, nil
	}
	var spec specs.Spec
	if err := json.Unmarshal(extension.GetValue(), &spec); err != nil {
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
	if bytes.Equal(renewed.GetValue(), specOf(record)) {
		return record, nil
	}
	record.Spec = renewed
	return c.o.Client.ContainerService().Update(ctx, record, "spec")
}
