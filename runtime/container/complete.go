package container

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"

	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/typeurl/v2"
	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/types/known/anypb"
)

// incompleteKey is the record extension with the specification without the machine's devices.
const incompleteKey = "margolite/incomplete-spec"

// complete adds the devices that exist now to a specification.
func complete(spec *specs.Spec, d *Devices) error {
	if d == nil {
		return nil
	}
	if err := d.addTo(spec); err != nil {
		return err
	}
	return addCDI(spec, d.CDI, cdiDirs)
}

// recordSpec adds to extensions what it takes to complete the specification again.
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

// specType is the type of a specification for containerd and its shims.
const specType = "types.containerd.io/opencontainers/runtime-spec/1/Spec"

func specOf(record containers.Container) []byte { return contentOf(record.Spec) }

func encodeSpec(spec *specs.Spec) (typeurl.Any, error) {
	text, err := json.Marshal(spec)
	if err != nil {
		return nil, fmt.Errorf("cannot encode specification: %w", err)
	}
	return &anypb.Any{TypeUrl: specType, Value: text}, nil
}

// renew gives a starting container the devices that exist now and the namespaces it joins, and
// no AppArmor profile if an update dropped AppArmor. It writes only what changed.
func (c *Containers) renew(ctx context.Context, record containers.Container, d *Devices, joined map[specs.LinuxNamespaceType]string) error {
	text := specOf(record)
	incomplete, hasDevices := record.Extensions[incompleteKey]
	if hasDevices {
		text = incomplete.GetValue()
	}
	confined := []byte(`"apparmorProfile":"` + DefaultProfile + `"`)
	lostProfile := bytes.Contains(text, confined) && c.host.profile(ctx) == ""
	if !hasDevices && !lostProfile && len(joined) == 0 {
		return nil
	}
	var spec specs.Spec
	if err := json.Unmarshal(text, &spec); err != nil {
		return fmt.Errorf("cannot read specification: %w", err)
	}
	if hasDevices {
		if err := complete(&spec, d); err != nil {
			return err
		}
	}
	if lostProfile {
		spec.Process.ApparmorProfile = ""
	}
	for i, n := range spec.Linux.Namespaces {
		spec.Linux.Namespaces[i].Path = cmp.Or(joined[n.Type], n.Path)
	}
	renewed, err := encodeSpec(&spec)
	if err != nil || bytes.Equal(renewed.GetValue(), specOf(record)) {
		return err
	}
	if _, err := c.o.Client.ContainerService().Update(ctx, containers.Container{ID: record.ID, Spec: renewed}, "spec"); err != nil {
		return fmt.Errorf("cannot write specification: %w", err)
	}
	return nil
}
