package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// report is everything that was measured.
type report struct {
	Machine machine
	Method  method
	Memory  []footprint
	Device  *device
	Contest *standing
}

// machine is where it was measured.
type machine struct {
	Time   time.Time
	OS     string
	Kernel string
	CPU    string
	CPUs   int
	Load   string // before it began
}

func describe() (machine, error) {
	m := machine{Time: time.Now().UTC().Truncate(time.Second), OS: runtime.GOOS + "/" + runtime.GOARCH, CPUs: runtime.NumCPU(), CPU: "unknown processor"}
	var uname unix.Utsname
	if err := unix.Uname(&uname); err != nil {
		return m, err
	}
	m.Kernel = unix.ByteSliceToString(uname.Release[:])
	if text, err := os.ReadFile("/proc/loadavg"); err == nil {
		m.Load, _, _ = strings.Cut(string(text), " ")
	}
	if text, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(text)) {
			if name, value, _ := strings.Cut(line, ":"); strings.TrimSpace(name) == "model name" {
				m.CPU = strings.TrimSpace(value)
			}
		}
	}
	return m, nil
}

// verdict is the error that the figures call for, or nil.
func (r *report) verdict() error {
	var errs []error
	if r.Device != nil && r.Device.Polls.Written != (written{}) {
		errs = append(errs, fmt.Errorf("margolite wrote during %d unchanged polls, want nothing: %+v", r.Method.Polls, r.Device.Polls.Written))
	}
	for _, f := range r.Memory {
		errs = append(errs, f.overBounds()...)
	}
	return errors.Join(errs...)
}

func (r *report) print(out io.Writer) {
	p := &printer{out: out}
	version := "margolite"
	if r.Device != nil {
		version += " " + r.Device.Version
	}
	p.line("%s on %s, kernel %s, %d x %s", version, r.Machine.OS, r.Machine.Kernel, r.Machine.CPUs, r.Machine.CPU)
	p.line("%s, load %s before the start", r.Machine.Time.Format("2006-01-02 15:04 MST"), r.Machine.Load)
	if len(r.Memory) > 0 {
		p.memory(r)
	}
	if r.Device != nil {
		p.device(r.Device, r.Method)
	}
	if r.Contest != nil {
		p.contest(r)
	}
}

// printer writes the report for people.
type printer struct{ out io.Writer }

func (p *printer) line(format string, args ...any) {
	fmt.Fprintln(p.out, strings.TrimRight(fmt.Sprintf(format, args...), " "))
}

func (p *printer) heading(format string, args ...any) {
	p.line("")
	p.line(format, args...)
}

// device writes times and writes of a device.
func (p *printer) device(d *device, by method) {
	p.heading("Time from publication until the WFM heard installed; polled at once")
	p.line("  %-44s %8s %8s", "", "median", "max")
	p.line("  %-44s %8s %8s", fmt.Sprintf("parameter change x %d, settle %s", by.Rounds, settle), ms(d.Updates.Median), ms(d.Updates.Max))
	p.line("  %-44s %8s", fmt.Sprintf("first installation, pull of %d bytes", d.Install.ImageBytes), ms(d.Install.Took))
	p.line("  A parameter change recreates one of two services; its image is present.")

	p.heading("Bytes written to the medium")
	p.line("  %-44s %9s %9s %9s %7s %7s %7s", "", "agent", "shims", "device", "writes", "flushes", "syncs")
	for _, row := range []struct {
		what string
		written
	}{
		{fmt.Sprintf("%d unchanged polls", by.Polls), d.Polls.Written},
		{"each parameter change", d.Updates.Written},
		{"first installation", d.Install.Written},
	} {
		device, writes, flushes := "-", "-", "-"
		if d.Counted {
			device, writes, flushes = fmt.Sprint(row.Device), fmt.Sprint(row.Writes), fmt.Sprint(row.Flushes)
		}
		p.line("  %-44s %9d %9d %9s %7s %7s %7d", row.what, row.Agent, row.Shims, device, writes, flushes, row.Syncs)
	}
	p.line("  Of a process: write_bytes of /proc/PID/io, with its dead children's; data in whole")
	p.line("  folios as they become dirty (up to 1 MiB for one byte), without the journal.")
	p.line("  Of the device: sectors that got there, with the journal of the state's own ext4; requests to write, and to")
	p.line("  flush its cache. Syncs are calls of fsync and the like, of the programs and of the containers.")

	p.heading("Processor time of the agent over %d unchanged polls", by.Polls)
	p.line("  %6s, %s each, %d bytes logged", ms(d.Polls.CPU), (d.Polls.CPU / time.Duration(by.Polls)).Round(time.Microsecond), d.Polls.Logged)
}

func mib(n int64) float64 { return float64(n) / (1 << 20) }

func ms(d time.Duration) string { return fmt.Sprintf("%.0f ms", float64(d)/float64(time.Millisecond)) }
