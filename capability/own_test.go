package capability_test

import (
	"testing"

	"github.com/margolite/margolite/capability"
	"github.com/margolite/margolite/test/expect"
)

func TestOwnMemoryIsWhatTheMachineAndTheControlGroupsLeave(t *testing.T) {
	machine := files{"proc/meminfo": "MemTotal:         122860 kB\n"}
	const total = 122860 << 10
	for name, row := range map[string]struct {
		files files
		want  uint64
	}{
		"a machine without control groups": {files{}, total},
		"version 2, no limit": {files{
			"proc/self/cgroup":                      "0::/system.slice/margolite.service\n",
			"sys/fs/cgroup/system.slice/memory.max": "max\n",
		}, total},
		"version 2, a limit of its own": {files{
			"proc/self/cgroup": "0::/system.slice/margolite.service\n",
			"sys/fs/cgroup/system.slice/margolite.service/memory.max": "67108864\n",
		}, 64 << 20},
		"version 2, pressure before the limit, and less above": {files{
			"proc/self/cgroup": "0::/system.slice/margolite.service\n",
			"sys/fs/cgroup/system.slice/margolite.service/memory.max":  "67108864\n",
			"sys/fs/cgroup/system.slice/margolite.service/memory.high": "50331648\n",
			"sys/fs/cgroup/system.slice/memory.max":                    "33554432\n",
		}, 32 << 20},
		"version 2, the group of a container as its root": {files{
			"proc/self/cgroup":         "0::/\n",
			"sys/fs/cgroup/memory.max": "67108864\n",
		}, 64 << 20},
		"version 1, beside a tree of version 2 without controllers": {files{
			"proc/self/cgroup":                     "5:cpu,cpuacct:/a\n4:memory:/a/b\n0::/a\n",
			"sys/fs/cgroup/memory/a/b/memory.stat": "cache 1\nhierarchical_memory_limit 67108864\nhierarchical_memsw_limit 9223372036854771712\n",
			"sys/fs/cgroup/memory/memory.stat":     "hierarchical_memory_limit 9223372036854771712\n",
		}, 64 << 20},
		"version 1, no limit": {files{
			"proc/self/cgroup":                 "4:memory:/\n",
			"sys/fs/cgroup/memory/memory.stat": "hierarchical_memory_limit 9223372036854771712\n",
		}, total},
		"version 1, in a container that sees the machine's path": {files{
			"proc/self/cgroup":                 "4:memory:/docker/0123\n",
			"sys/fs/cgroup/memory/memory.stat": "hierarchical_memory_limit 67108864\n",
		}, 64 << 20},
		"a limit above what there is": {files{
			"proc/self/cgroup":           "0::/a\n",
			"sys/fs/cgroup/a/memory.max": "99999999999\n",
		}, total},
		"what leads out of the tree": {files{
			"proc/self/cgroup": "0::/../../etc\n",
			"etc/memory.max":   "1\n",
		}, total},
	} {
		t.Run(name, func(t *testing.T) {
			expect.Equal(t, expect.Value(capability.OwnMemory(t.Context(), all(machine, row.files).write(t)))(t), row.want, "bytes")
		})
	}
}

func TestOwnMemoryIsUnknownWithoutMeminfo(t *testing.T) {
	if got, err := capability.OwnMemory(t.Context(), t.TempDir()); got != 0 || err == nil {
		t.Errorf("got %d, %v, want 0 and an error", got, err)
	}
}

// Whatever the kernel tells of control groups, it is no more than the machine has.
func FuzzOwnMemory(f *testing.F) {
	f.Add("0::/a/b\n", "", "33554432")
	f.Add("5:cpu:/\n4:memory:/a\n0::/\n", "cache 1\nhierarchical_memory_limit 67108864\n", "max")
	f.Add("0::/../..//a/\n4:memory\n:::\n", "hierarchical_memory_limit -1", "18446744073709551616")
	f.Fuzz(func(t *testing.T, groups, stat, limit string) {
		const all = 122860 << 10
		root := files{
			"proc/meminfo":                       "MemTotal:         122860 kB\n",
			"proc/self/cgroup":                   "\n" + groups,
			"sys/fs/cgroup/memory/a/memory.stat": "\n" + stat,
			"sys/fs/cgroup/a/memory.max":         "\n" + limit,
		}.write(t)
		if got, _ := capability.OwnMemory(t.Context(), root); got == 0 || got > all {
			t.Errorf("got %d of %d", got, all)
		}
	})
}
