package tree

import (
	"strings"
	"testing"
	"testing/iotest"

	"github.com/margolite/margolite/test/expect"
)

// A workload may have mounts that the device sees: no line of theirs hides another.
func TestMountPointsAreFoundBehindLongLines(t *testing.T) {
	const before, behind = "36 35 0:41 / ", " rw,relatime shared:7 - ext4 /dev/sda1 rw\n"
	long := before + "/long rw - overlay overlay rw,lowerdir=" + strings.Repeat("36 35 0:41 / /inside ", 1<<17) + "\n"
	table := long + before + `/with\040space\134` + behind + long + before + "/last" + behind
	var found []string
	if err := eachMount(strings.NewReader(table), func(at, device string) bool {
		found = append(found, at+" of "+device)
		return at != "/last"
	}); err != nil {
		t.Error(err)
	}
	if got := strings.Join(found, ", "); got != `/long of overlay, /with space\ of /dev/sda1, /long of overlay, /last of /dev/sda1` {
		t.Errorf("got %s", got)
	}
	expect.ErrorWith(t, eachMount(iotest.ErrReader(iotest.ErrTimeout), nil), "", "a table that cannot be read")
}

func FuzzEachMount(f *testing.F) {
	f.Add("36 35 0:41 / /a rw shared:7 - tmpfs device rw\n")
	f.Add("36 35 0:41 / /a\n - \n -  \n")
	f.Fuzz(func(t *testing.T, table string) {
		err := eachMount(strings.NewReader(table), func(at, device string) bool {
			expect.True(t, len(at)+len(device) <= len(table), "%q of %q", at, device)
			return true
		})
		expect.OK(t, err)
	})
}
