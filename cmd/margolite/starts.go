package main

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/agent/control"
)

const maxStarts = 1000

// noteStart counts this start and those of the last day, since boot. The file is in state.run, in
// memory, so counting wears out no flash.
func noteStart(run string) (int, error) {
	var boot unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &boot) // on every Linux, and cannot be set
	now := boot.Nano() / int64(time.Second)
	path := filepath.Join(run, "starts")
	noted, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return 1, fmt.Errorf("cannot count starts: %w", err)
	}
	text := strconv.FormatInt(now, 10) + "\n"
	count := 1
	for _, line := range strings.Fields(string(noted)) {
		// A time later than now is from before a boot that state.run survived.
		at, err := strconv.ParseInt(line, 10, 64)
		if ago := now - at; err == nil && at >= 0 && ago >= 0 && ago < int64(24*time.Hour/time.Second) && count < maxStarts {
			text += line + "\n"
			count++
		}
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		return count, fmt.Errorf("cannot count starts: %w", err)
	}
	return count, nil
}

// keepCrash also writes a crash of this process to state.run, and returns that of the previous
// process; nil if there was none.
func keepCrash(run string) (former *control.Mistake, err error) {
	f, err := os.OpenFile(filepath.Join(run, "crash"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("cannot open the file for crash reports: %w", err)
	}
	defer f.Close()
	first, _ := bufio.NewReader(f).ReadString('\n') // none: it is empty
	if info, err := f.Stat(); err == nil && first != "" {
		former = &control.Mistake{Time: info.ModTime().UTC(), Object: "the previous process", Text: strings.TrimSpace(first)}
	}
	if _, err = f.Seek(0, 0); err == nil {
		err = f.Truncate(0)
	}
	if err == nil {
		err = debug.SetCrashOutput(f, debug.CrashOptions{})
	}
	if err != nil {
		return former, fmt.Errorf("cannot open the file for crash reports: %w", err)
	}
	return former, nil
}
