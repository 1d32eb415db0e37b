package container

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/margolite/margolite/test/expect"
)

func TestProcessesInGroupsThatAContainerMade(t *testing.T) {
	dir := makeTree(t, map[string]string{
		"cgroup.procs": "", "init.scope/cgroup.procs": "0\n12\n", "system.slice/x.service/cgroup.procs": "34\n",
	})
	expect.Equal(t, processesIn(dir), []int{12, 34}, "processes")
	expect.Equal(t, processesIn(filepath.Join(dir, "gone")), nil, "processes of no group")
}

func TestUsageIsReadFromEitherVersionOfControlGroups(t *testing.T) {
	for name, c := range map[string]struct {
		files map[string]string
		want  Usage
	}{
		"version 2": {
			map[string]string{
				"margo/app/one/cpu.stat":       "usage_usec 1500000\nuser_usec 1\nsystem_usec 2\n",
				"margo/app/one/memory.current": "8192\n",
			},
			Usage{1500 * time.Millisecond, 8192},
		},
		"version 2 without the controller of memory": {
			map[string]string{"margo/app/one/cpu.stat": "usage_usec 1\n"},
			Usage{time.Microsecond, 0},
		},
		"version 1": {
			map[string]string{
				"cpuacct/margo/app/one/cpuacct.usage":        "2000000000\n",
				"memory/margo/app/one/memory.usage_in_bytes": "4096\n",
			},
			Usage{2 * time.Second, 4096},
		},
		"a container that has gone":   {nil, Usage{}},
		"what is not as it should be": {map[string]string{"margo/app/one/cpu.stat": "usage_usec\nusage_usec max\n\n"}, Usage{}},
	} {
		t.Run(name, func(t *testing.T) {
			expect.Equal(t, usageOf(makeTree(t, c.files), "/margo/app/one"), c.want, "usage")
		})
	}
}
