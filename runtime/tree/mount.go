package tree

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// Detach unmounts everything mounted at path, lazily and without asking what it is: a file
// server that is gone would not answer. It is no error if nothing is mounted.
func Detach(path string) error {
	for {
		switch err := unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); {
		case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOENT):
			return nil
		case err != nil:
			return fmt.Errorf("cannot unmount %s: %w", path, err)
		}
	}
}

// EachMount calls visit with mount points and their devices as the kernel shows them.
func EachMount(visit func(at, device string) (more bool)) error {
	table, err := os.Open("/proc/thread-self/mountinfo")
	if err != nil {
		return err
	}
	defer table.Close()
	return eachMount(table, visit)
}

// maxLine limits what is read of a line. An overlay of many layers may have a much longer one,
// for which moby/sys/mountinfo fails altogether: a workload may have such.
const maxLine = 64 << 10

// mountEscapes decodes a path in mountinfo, see proc(5).
var mountEscapes = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)

func eachMount(table io.Reader, visit func(at, device string) (more bool)) error {
	lines := bufio.NewReaderSize(table, maxLine)
	for goesOn := false; ; {
		line, more, err := lines.ReadLine()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		// 36 35 0:41 / /run/margolite/hosts/x rw,nosuid shared:7 - tmpfs margolite:1a2b3c4d:/var/lib/margolite rw
		before, after, _ := strings.Cut(string(line), " - ")
		fields, device := strings.SplitN(before, " ", 6), append(strings.SplitN(after, " ", 3), "")[1]
		if !goesOn && len(fields) == 6 && !visit(mountEscapes.Replace(fields[4]), device) {
			return nil
		}
		goesOn = more
	}
}
