package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// report is everything that was measured.
type report struct {
	Machine machine
	Method  method
	Memory  []footprint
	Devices []device
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
	Medium string // the file system of the state
}

func describe(dir string) (machine, error) {
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
	var err error
	m.Medium, err = fileSystem(dir)
	return m, err
}

// fileSystem is the type of the file system that holds dir.
func fileSystem(dir string) (kind string, err error) {
	mounts, err := mountinfo.GetMounts(mountinfo.ParentsFilter(dir))
	best := 0
	for _, m := range mounts {
		if len(m.Mountpoint) >= best {
			best, kind = len(m.Mountpoint), m.FSType
		}
	}
	return kind, err
}

// verdict is the error that the figures call for, or nil.
func (r *report) verdict() error {
	var errs []error
	for _, d := range r.Devices {
		if d.Polls.Written != (written{}) {
			errs = append(errs, fmt.Errorf("%s wrote during %d unchanged polls, want nothing: %+v", d.title(), d.Polls.Count, d.Polls.Written))
		}
	}
	for _, f := range r.Memory {
		errs = append(errs, f.overBounds()...)
	}
	return errors.Join(errs...)
}

func (r *report) print(out io.Writer) {
	p := &printer{out: out}
	version := "margolite"
	if len(r.Devices) > 0 {
		version += " " + r.Devices[0].Version
	}
	p.line("%s on %s, kernel %s, %d x %s, medium %s", version, r.Machine.OS, r.Machine.Kernel, r.Machine.CPUs, r.Machine.CPU, r.Machine.Medium)
	p.line("%s, load %s before the start", r.Machine.Time.Format("2006-01-02 15:04 MST"), r.Machine.Load)
	if len(r.Memory) > 0 {
		p.memory(r)
	}
	if len(r.Devices) > 0 {
		p.times(r)
		p.writes(r)
		p.polls(r)
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

func (d *device) title() string { return title(d.External, d.Containerd) }

func (p *printer) times(r *report) {
	p.heading("Time from publication until the WFM heard installed; polled at once")
	for _, d := range r.Devices {
		p.line("  %-44s %8s %8s", d.title(), "median", "max")
		for _, u := range d.Updates {
			p.line("    %-42s %8s %8s", fmt.Sprintf("parameter change x %d, settle %s", r.Method.Rounds, u.Settle), ms(u.Median), ms(u.Max))
		}
		p.line("    %-42s %8s", fmt.Sprintf("first installation, pull of %d bytes", d.Install.ImageBytes), ms(d.Install.Took))
	}
	p.line("  A parameter change recreates one of two services; its image is present.")
}

func (p *printer) writes(r *report) {
	p.heading("Bytes written to the medium")
	for _, d := range r.Devices {
		p.line("  %-44s %9s %10s %9s %9s %7s %7s %7s", d.title(), "agent", "containerd", "shims", "device", "writes", "flushes", "syncs")
		row := func(what string, w written) {
			containerd, device, writes, flushes := "-", "-", "-", "-"
			if d.External {
				containerd = fmt.Sprint(w.Containerd)
			}
			if d.Counted {
				device, writes, flushes = fmt.Sprint(w.Device), fmt.Sprint(w.Writes), fmt.Sprint(w.Flushes)
			}
			p.line("    %-42s %9d %10s %9d %9s %7s %7s %7d", what, w.Agent, containerd, w.Shims, device, writes, flushes, w.Syncs)
		}
		row(fmt.Sprintf("%d unchanged polls", d.Polls.Count), d.Polls.Written)
		for _, u := range d.Updates {
			row(fmt.Sprintf("each parameter change, settle %s", u.Settle), u.Written)
		}
		row("first installation", d.Install.Written)
	}
	p.line("  Of a process: write_bytes of /proc/PID/io, with its dead children's; data in whole")
	p.line("  folios as they become dirty (up to 1 MiB for one byte), without the journal.")
	p.line("  Of the device: sectors that got there, with the journal of the state's own ext4; requests to write, and to")
	p.line("  flush its cache. Syncs are calls of fsync and the like, of the programs and of the containers.")
}

func (p *printer) polls(r *report) {
	p.heading("Processor time of the agent over unchanged polls")
	for _, d := range r.Devices {
		p.line("  %-44s %6s for %d polls, %s each, %d bytes logged", d.title(), ms(d.Polls.CPU), d.Polls.Count,
			(d.Polls.CPU / time.Duration(d.Polls.Count)).Round(time.Microsecond), d.Polls.Logged)
	}
}

func mib(n int64) float64 { return float64(n) / (1 << 20) }

func ms(d time.Duration) string { return fmt.Sprintf("%.0f ms", float64(d)/float64(time.Millisecond)) }
