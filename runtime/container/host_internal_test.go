package container

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/margolite/margolite/test/expect"
)

// tree is a directory with files.
func makeTree(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, name)
		check(t, os.MkdirAll(filepath.Dir(path), 0o755))
		check(t, os.WriteFile(path, []byte(text), 0o600))
	}
	return root
}

func TestLimitsOfCgroupV1(t *testing.T) {
	full := limitsV1(makeTree(t, map[string]string{
		"memory/memory.limit_in_bytes": "", "memory/memory.memsw.limit_in_bytes": "", "memory/memory.swappiness": "", "memory/memory.oom_control": "",
		"cpu/cpu.shares": "", "cpu/cpu.cfs_quota_us": "", "cpuset/cpuset.cpus": "", "pids/cgroup.procs": "",
		"blkio/blkio.bfq.io_serviced": "", "blkio/blkio.throttle.read_bps_device": "",
	}), true)
	expect.Equal(t, full, able.Limits, "all limits")
	expect.Equal(t, limitsV1(t.TempDir(), true), (Limits{}), "limits without a controller")
	// As on a Raspberry Pi with its settings of 2020: no control of memory.
	old := limitsV1(makeTree(t, map[string]string{"cpu/cpu.shares": "", "cpu/cpu.cfs_quota_us": "", "blkio/blkio.bfq.io_serviced": ""}), false)
	expect.Equal(t, old, Limits{CPUShares: true, CPUQuota: true, BlockWeight: true}, "limits")
}

func TestLimitsOfCgroupV2(t *testing.T) {
	all := "cpuset cpu io memory hugetlb pids rdma\n"
	base := Limits{Memory: true, CPUShares: true, CPUQuota: true, CPUSet: true, Pids: true, BlockThrottle: true}
	withSwap, withWeight := base, base
	withSwap.Swap = true
	withWeight.BlockWeight, withWeight.BlockWeightDevice = true, true
	tests := []struct {
		name  string
		files map[string]string
		want  Limits
	}{
		{"no controller", map[string]string{"cgroup.controllers": "\n"}, Limits{}},
		{"no control groups", nil, Limits{}},
		{"no memory", map[string]string{"cgroup.controllers": "cpu pids\n"}, Limits{CPUShares: true, CPUQuota: true, Pids: true}},
		{"groups with swap", map[string]string{"cgroup.controllers": all, "system.slice/memory.max": "", "system.slice/memory.swap.max": ""}, withSwap},
		{"groups without swap", map[string]string{"cgroup.controllers": all, "system.slice/memory.max": ""}, base},
		{"groups with weights", map[string]string{"cgroup.controllers": all, "a/memory.max": "", "a/io.bfq.weight": ""}, withWeight},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got := limitsV2(makeTree(t, test.files), true)
			if hasScheduler("bfq") { // this machine's disks count too
				got.BlockWeight, got.BlockWeightDevice = test.want.BlockWeight, test.want.BlockWeightDevice
			}
			expect.Equal(t, got, test.want, "limits")
		})
	}
}

func TestDetectHost(t *testing.T) {
	h := DetectHost(t.Context(), "runc")
	if h.CPUs == "" || h.MostOpenFiles == 0 || h.Processes == 0 || len(h.Capabilities) == 0 {
		t.Errorf("this machine is not found out: %+v", h)
	}
	if cpus, err := parseCPUs(h.CPUs); err != nil || len(cpus) == 0 {
		t.Errorf("CPUs %q: %v, %v", h.CPUs, cpus, err)
	}
}

func FuzzParseCPUs(f *testing.F) {
	for _, s := range []string{"0-3,5", "", "9999999", "3-1", "0-8191,0-8191"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, list string) {
		if cpus, err := parseCPUs(list); err == nil && (len(cpus) == 0 || len(cpus) > maxCPUNumber) {
			t.Errorf("%q is %d CPUs", list, len(cpus))
		}
	})
}
