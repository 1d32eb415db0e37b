package container

import (
	"path/filepath"
	"slices"
	"testing"
)

func TestProcessesInGroupsThatAContainerMade(t *testing.T) {
	dir := makeTree(t, map[string]string{
		"cgroup.procs": "", "init.scope/cgroup.procs": "0\n12\n", "system.slice/x.service/cgroup.procs": "34\n",
	})
	if got := processesIn(dir); !slices.Equal(got, []int{12, 34}) {
		t.Errorf("got %v", got)
	}
	if got := processesIn(filepath.Join(dir, "gone")); got != nil {
		t.Errorf("of none: %v", got)
	}
}
