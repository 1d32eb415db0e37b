package leftovers_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/margolite/margolite/test/expect"
	"github.com/margolite/margolite/test/isolated"
	"github.com/margolite/margolite/test/leftovers"
)

func TestMain(m *testing.M) { os.Exit(isolated.Main(m)) }

func TestWhatIsLeftIsFound(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	dir := t.TempDir()
	w := leftovers.Where{StateDir: filepath.Join(dir, "state"), RunDir: filepath.Join(dir, "run")}
	for _, d := range []string{w.StateDir + "/volumes/p/v", w.RunDir + "/pin"} {
		expect.Check(t, os.MkdirAll(d, 0o755))
	}
	before := leftovers.Take(t, w)
	leftovers.Compare(t, w, before)

	for _, command := range []string{
		"ip link add leftover type bridge",
		"nft add table ip leftover",
		"mount -t tmpfs none " + w.RunDir + "/pin",
		"touch " + w.RunDir + "/file " + w.StateDir + "/volumes/p/v/content",
	} {
		if out, err := exec.Command("sh", "-c", command).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", command, err, out)
		}
	}
	t.Cleanup(func() { _ = exec.Command("umount", w.RunDir+"/pin").Run() })
	want := []string{
		"left: file " + w.RunDir + "/file",
		"left: link leftover",
		"left: mount " + w.RunDir + "/pin",
		"left: nftables table ip leftover",
	}
	if got := before.Differences(leftovers.Take(t, w)); !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if got := leftovers.Take(t, w).Differences(before); len(got) != 4 || !strings.HasPrefix(got[0], "gone: ") {
		t.Errorf("what has gone: %q", got)
	}
}
