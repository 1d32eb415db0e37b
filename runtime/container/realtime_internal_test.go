package container

import (
	"os"
	"path/filepath"
	"testing"
)

// Groups share what the ones above them have; each start makes room for one more.
func TestRealTimeAddsUp(t *testing.T) {
	root := t.TempDir()
	set := func(group, runtime, period string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Join(root, group), 0o755); err != nil {
			t.Fatal(err)
		}
		for name, text := range map[string]string{"cpu.rt_runtime_us": runtime, "cpu.rt_period_us": period} {
			if err := os.WriteFile(filepath.Join(root, group, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	set("margo", "0\n", "1000000\n")
	set("margo/shop", "0\n", "1000000\n")
	set("margo/shop/a", "1000\n", "500000\n") // two thousandths
	set("margo/other", "5000\n", "1000000\n")
	for range 2 { // the second time nothing changes
		if err := allowRealtime(root, "/margo/shop/b", 3000); err != nil {
			t.Fatal(err)
		}
		if shop, all := realtimeIn(filepath.Join(root, "margo/shop")), realtimeIn(filepath.Join(root, "margo")); shop != 8000 || all != 13000 {
			t.Errorf("project has %d, all have %d, want 8000 and 13000", shop, all)
		}
	}
	for _, test := range []struct{ runtime, period, want uint64 }{
		{1, 3, 333334}, {1, 1, 1000000}, {7, 3, 1000000}, {0, 5, 0}, {1 << 62, 1<<63 - 1, 500001},
	} {
		if got := perSecond(test.runtime, test.period); got != test.want {
			t.Errorf("%d of %d is %d per second, want %d", test.runtime, test.period, got, test.want)
		}
	}
}
