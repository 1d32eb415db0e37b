package container

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestProcessesInGroupsThatAContainerMade(t *testing.T) {
	dir := t.TempDir()
	for group, text := range map[string]string{"": "", "init.scope": "0\n12\n", "system.slice/x.service": "34\n"} {
		if err := os.MkdirAll(filepath.Join(dir, group), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, group, "cgroup.procs"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got := processesIn(dir); !slices.Equal(got, []int{12, 34}) {
		t.Errorf("got %v", got)
	}
	if got := processesIn(filepath.Join(dir, "gone")); got != nil {
		t.Errorf("of none: %v", got)
	}
}
