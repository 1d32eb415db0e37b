package container

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/containerd/containerd/v2/core/containers"
	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/types/known/anypb"
)

// shareOthers prepares what a container that is about to start shares with other
// replicas.
func (c *Containers) shareOthers(ctx context.Context, record containers.Container, l Labels) error {
	ipc, err := c.joinOthers(ctx, record, l)
	if err != nil {
		return err
	}
	return c.shareMemory(record.ID, l, ipc)
}

// joinOthers lets a container that is about to start live in the namespaces of
// other replicas, whose processes run now: it writes where these are into its
// record. Of the one whose ipc namespace it joins it returns the id.
func (c *Containers) joinOthers(ctx context.Context, record containers.Container, l Labels) (ipc string, err error) {
	if len(l.Joins) == 0 {
		return "", nil
	}
	all, err := c.List(ctx)
	if err != nil {
		return "", err
	}
	paths := make(map[specs.LinuxNamespaceType]string)
	for _, j := range l.Joins {
		project := cmp.Or(j.Project, l.Project)
		i := slices.IndexFunc(all, func(o Container) bool {
			return o.Labels.Project == project && o.Labels.Service == j.Service && o.Labels.Number == j.Number && o.State == Running && o.Pid > 0
		})
		if i < 0 {
			return "", fmt.Errorf("cannot join the %s namespace of %s-%s-%d: %w", j.Kind, project, j.Service, j.Number, ErrNotRunning)
		}
		paths[j.Kind] = namespacePath(all[i].Pid, j.Kind)
		if j.Kind == specs.IPCNamespace {
			ipc = all[i].ID
		}
	}
	var spec specs.Spec
	if err := json.Unmarshal(specOf(record), &spec); err != nil {
		return "", fmt.Errorf("cannot read its specification: %w", err)
	}
	joinNamespaces(&spec, paths)
	text, err := json.Marshal(&spec)
	if err != nil {
		return "", fmt.Errorf("cannot write its specification: %w", err)
	}
	if bytes.Equal(text, specOf(record)) {
		return ipc, nil
	}
	changed := containers.Container{ID: record.ID, Spec: &anypb.Any{TypeUrl: specType, Value: text}}
	if _, err := c.o.Client.ContainerService().Update(ctx, changed, "spec"); err != nil {
		return "", fmt.Errorf("cannot write its specification: %w", err)
	}
	return ipc, nil
}
