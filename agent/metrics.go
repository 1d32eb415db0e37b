package agent

import (
	"context"
	"os"
	goruntime "runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/shirou/gopsutil/v4/disk"
	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/agent/metrics"
	"github.com/margolite/margolite/runtime"
	"github.com/margolite/margolite/runtime/container"
)

const (
	// metricsFresh is how long metrics are reused: frequent scrapes cost the device nothing.
	metricsFresh   = time.Second
	metricsTimeout = 5 * time.Second
	// maxLabel bounds a label's value, in bytes: names come from documents.
	maxLabel = 128
)

type scrape struct {
	mu   sync.Mutex // held while they are collected
	at   time.Time
	text []byte
}

// Metrics implements control.Backend.
func (a *Agent) Metrics(ctx context.Context) ([]byte, error) {
	s := &a.scrape
	s.mu.Lock()
	defer s.mu.Unlock()
	if time.Since(s.at) >= metricsFresh {
		s.text, s.at = metrics.AppendText(nil, a.Families(ctx)), time.Now()
	}
	return s.text, nil
}

// Families are the agent's metrics as they are now, without what cannot be read. Labels hold
// names and ids, nothing secret and not the WFM's address.
func (a *Agent) Families(ctx context.Context) metrics.Families {
	var f metrics.Families
	p := a.o.Program
	f.AddAll(metrics.Gauge, "margolite_build_info", "Version of the agent.", metrics.Sample{
		Labels: []string{"version", p.Version, "commit", p.Commit}, Value: 1,
	})
	a.ownMetrics(&f)
	a.poller.metrics(&f)
	a.storeMetrics(&f)
	a.workloadMetrics(ctx, &f)
	return f
}

func (a *Agent) ownMetrics(f *metrics.Families) {
	var used unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &used) == nil {
		f.Add(metrics.Counter, "process_cpu_seconds_total", "CPU time of the agent, in seconds.", float64(used.Utime.Nano()+used.Stime.Nano())/1e9)
	}
	if statm, err := os.ReadFile("/proc/self/statm"); err == nil {
		if fields := strings.Fields(string(statm)); len(fields) > 1 {
			pages, _ := strconv.ParseInt(fields[1], 10, 64)
			f.Add(metrics.Gauge, "process_resident_memory_bytes", "Resident memory of the agent.", float64(pages*int64(os.Getpagesize())))
		}
	}
	if open, err := os.ReadDir("/proc/self/fd"); err == nil {
		f.Add(metrics.Gauge, "process_open_fds", "Open files of the agent.", float64(len(open)-1))
	}
	f.Add(metrics.Gauge, "process_start_time_seconds", "When the agent started, in Unix time.", float64(a.o.Program.Started.Unix()))
	f.Add(metrics.Gauge, "go_goroutines", "Goroutines of the agent.", float64(goruntime.NumGoroutine()))

	panics, _ := a.mistakes.seen()
	f.Add(metrics.Counter, "margolite_panics_total", "Panics of the agent, each contained to one operation.", float64(panics))
	if a.o.Starts > 0 {
		f.Add(metrics.Gauge, "margolite_starts", "Starts of the agent since boot, within the day before its latest start.", float64(a.o.Starts))
	}
	if a.o.Exports != nil {
		sent, failed, _ := a.o.Exports()
		f.AddAll(
			metrics.Counter, "margolite_otlp_exports_total", "Exports of metrics to a collector, by result.",
			metrics.Sample{Labels: []string{"result", "success"}, Value: float64(sent)},
			metrics.Sample{Labels: []string{"result", "failure"}, Value: float64(failed)},
		)
	}
	var busy []metrics.Sample
	for _, l := range a.loops.list() {
		busy = append(busy, metrics.Sample{Labels: []string{"loop", l.Name}, Value: l.Busy})
	}
	f.AddAll(metrics.Gauge, "margolite_loop_busy_seconds", "How long a loop has made no progress with its work; 0 if it has none.", busy...)
	f.Add(metrics.Gauge, "margolite_clock_wrong", "1 if the clock of the device is known to be wrong.", truth(a.o.ClockWrong()))
}

func (p *poller) metrics(f *metrics.Families) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f.AddAll(
		metrics.Counter, "margolite_polls_total", "Polls of the WFM, by result.",
		metrics.Sample{Labels: []string{"result", "success"}, Value: float64(p.state.succeeded)},
		metrics.Sample{Labels: []string{"result", "refused"}, Value: float64(p.state.refusals)},
		metrics.Sample{Labels: []string{"result", "failure"}, Value: float64(p.state.failed)},
	)
	f.Add(metrics.Gauge, "margolite_wfm_reachable", "1 if the WFM answered the last poll.", truth(p.state.Reachable))
	if at := p.state.LastContact; !at.IsZero() {
		f.Add(metrics.Gauge, "margolite_last_contact_timestamp_seconds", "When the WFM last answered any request, in Unix time.", float64(at.Unix()))
	}
	if at := p.state.lastSuccess; !at.IsZero() {
		f.Add(metrics.Gauge, "margolite_last_successful_poll_timestamp_seconds", "When the last poll succeeded, in Unix time.", float64(at.Unix()))
	}
}

func (a *Agent) storeMetrics(f *metrics.Families) {
	if m, ok, _ := a.o.Store.Manifest(); ok {
		f.Add(metrics.Gauge, "margolite_manifest_version", "Version of the accepted manifest.", float64(m.Version))
	}
	states := map[string]float64{}
	var told []metrics.Sample
	deployments, _ := a.o.Store.Deployments() // those that can be read
	for i := range deployments {
		d := &deployments[i]
		states[string(a.ledger.status(d).State)]++
		if r := a.reporter.reported(d.ID, 0); !r.At.IsZero() {
			told = append(told, metrics.Sample{Labels: []string{"deployment", label(d.ID), "state", r.State}, Value: float64(r.At.Unix())})
		}
	}
	var samples []metrics.Sample
	for _, phase := range []Phase{Fetched, Applying, Active, Failed, Removing} {
		state := string(phase.State())
		samples = append(samples, metrics.Sample{Labels: []string{"state", state}, Value: states[state]})
	}
	f.AddAll(metrics.Gauge, "margolite_deployments", "Deployments, by reported state.", samples...)
	f.AddAll(metrics.Gauge, "margolite_deployment_reported_timestamp_seconds", "When the WFM accepted the last report of a deployment, in Unix time, with the reported state.", told...)
	if n, err := a.o.Store.CountReports(); err == nil {
		f.Add(metrics.Gauge, "margolite_outbox_reports", "Status reports that the WFM has not acknowledged yet.", float64(n))
		f.Add(metrics.Gauge, "margolite_outbox_oldest_seconds", "How long the outbox has not been empty, since the agent started.", a.reporter.waited(n).Seconds())
	}
	h := a.o.Store.Health()
	f.Add(metrics.Gauge, "margolite_store_size_bytes", "Size of the database in use.", float64(h.Size))
	f.Add(metrics.Counter, "margolite_store_commits_total", "Transactions of the database.", float64(h.Commits))
	f.Add(metrics.Gauge, "margolite_store_failing", "1 if the last transaction failed.", truth(h.Err != nil))
	if fs, err := disk.Usage(a.o.StateDir); err == nil {
		f.Add(metrics.Gauge, "margolite_state_free_bytes", "Free space on the file system of the state directory.", float64(fs.Free))
	}
}

func (a *Agent) workloadMetrics(ctx context.Context, f *metrics.Families) {
	ctx, cancel := context.WithTimeout(ctx, metricsTimeout)
	defer cancel()
	projects, err := a.o.Runtime.Observe(ctx)
	f.Add(metrics.Gauge, "margolite_runtime_up", "1 if the runtime responds.", truth(err == nil))
	var usage map[string]container.Usage
	if m := a.o.Meter; m != nil {
		f.Add(metrics.Counter, "margolite_download_bytes_total", "Bytes of images and packages downloaded from registries.", float64(m.Downloaded()))
		usage, _ = m.Usage(ctx) // missing values are left out
	}
	var running, restarts, cpu, memory []metrics.Sample
	for _, p := range projects {
		for _, c := range p.Containers {
			labels := []string{
				"deployment", label(p.Labels[labelDeployment]), "component", label(p.Labels[labelComponent]),
				"project", label(p.Name), "service", label(c.Service), "number", strconv.Itoa(c.Number),
			}
			add := func(to *[]metrics.Sample, value float64) {
				*to = append(*to, metrics.Sample{Labels: labels, Value: value})
			}
			add(&running, truth(c.State == runtime.Running))
			add(&restarts, float64(c.Restarted))
			if u, ok := usage[c.ID]; ok {
				add(&cpu, u.CPU.Seconds())
				add(&memory, float64(u.Memory))
			}
		}
	}
	f.AddAll(metrics.Gauge, "margolite_container_running", "1 if the container of a service is running.", running...)
	f.AddAll(metrics.Counter, "margolite_container_restarts_total", "How often the agent has restarted a container.", restarts...)
	f.AddAll(metrics.Counter, "margolite_container_cpu_seconds_total", "CPU time of a container, in seconds.", cpu...)
	f.AddAll(metrics.Gauge, "margolite_container_memory_bytes", "Memory of a container, including its page cache.", memory...)
}

func truth(is bool) float64 {
	if is {
		return 1
	}
	return 0
}

func label(name string) string { return shortened(name, maxLabel) }

// waited is how long the outbox, which holds n reports, has not been empty. Reports from before
// the process started count from its start.
func (r *reporter) waited(n int) time.Duration {
	since := r.since.Load()
	if n == 0 || since == 0 {
		return 0
	}
	return r.moment().Up - time.Duration(since)
}
