package load

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"
)

// MaxDevices bounds a fleet: a port of this machine is needed for each.
const MaxDevices = 20_000

// Options of a fleet.
type Options struct {
	Address string // host:port of the WFM
	Path    string // of the manifest, as /api/v1/deployments
	Devices int    // each with a connection of its own
	Rounds  int    // of polls that find nothing new, after the first poll
	AtOnce  int    // requests under way at a time; 0: 64
	// TLS is the configuration of a device: its certificate, and how it checks
	// the WFM's.
	TLS func(device int) (*tls.Config, error)
	// Sign, where it is set, is called with each request before it is sent.
	Sign func(device int, r *http.Request) error
	// CPU is the processor time that the WFM has used; nil: not measured.
	CPU func() (time.Duration, error)
}

// Result is what was measured.
type Result struct {
	Devices int   `json:"devices"`
	AtOnce  int   `json:"atOnce"`
	First   Phase `json:"first"`     // a full handshake each, and a manifest
	Polls   Phase `json:"unchanged"` // on the same connections, answered 304
}

// Phase is one kind of request.
type Phase struct {
	Requests  int           `json:"requests"`
	Failed    int           `json:"failed"`
	Took      time.Duration `json:"tookNs"`
	PerSecond float64       `json:"perSecond"`
	P50       time.Duration `json:"p50Ns"`
	P99       time.Duration `json:"p99Ns"`
	Max       time.Duration `json:"maxNs"`
	CPU       time.Duration `json:"serverCpuNs"` // of the WFM, per request; 0: not measured
}

// Run lets the fleet poll, and ends it. Requests that fail are counted; an error
// is returned for what keeps the fleet from being one, and the first failure
// where nothing succeeded.
func Run(ctx context.Context, o Options) (_ *Result, err error) {
	if o.AtOnce == 0 {
		o.AtOnce = 64
	}
	if o.Devices < 1 || o.Devices > MaxDevices || o.Rounds < 0 || o.AtOnce < 1 {
		return nil, fmt.Errorf("cannot play a fleet of %d devices, %d rounds, %d at once", o.Devices, o.Rounds, o.AtOnce)
	}
	fleet := make([]*device, o.Devices)
	for i := range fleet {
		config, err := o.TLS(i)
		if err != nil {
			return nil, fmt.Errorf("cannot play device %d: %w", i, err)
		}
		fleet[i] = &device{options: &o, number: i, tls: config}
	}
	defer func() {
		for _, d := range fleet {
			d.close()
		}
	}()
	r := &Result{Devices: o.Devices, AtOnce: o.AtOnce}
	if r.First, err = o.phase(ctx, fleet, 1, (*device).first); err != nil {
		return nil, err
	}
	if o.Rounds > 0 {
		r.Polls, err = o.phase(ctx, fleet, o.Rounds, (*device).unchanged)
	}
	return r, err
}

// phase has every device do the same, round after round.
func (o *Options) phase(
	ctx context.Context, fleet []*device, rounds int, do func(*device, context.Context) error,
) (Phase, error) {
	var (
		work     = make(chan *device)
		mu       sync.Mutex
		took     = make([]time.Duration, 0, rounds*len(fleet))
		failed   int
		failure  error
		workers  sync.WaitGroup
		used, at time.Duration
		err      error
	)
	if o.CPU != nil {
		if at, err = o.CPU(); err != nil {
			return Phase{}, err
		}
	}
	began := time.Now()
	for range o.AtOnce {
		workers.Go(func() {
			for d := range work {
				start := time.Now()
				err := do(d, ctx)
				elapsed := time.Since(start)
				mu.Lock()
				if err != nil {
					if failed++; failed <= maxFailures {
						failure = errors.Join(failure, err)
					}
				} else {
					took = append(took, elapsed)
				}
				mu.Unlock()
			}
		})
	}
feed:
	for range rounds {
		for _, d := range fleet { // nobody polls twice in a round
			select {
			case work <- d:
			case <-ctx.Done():
				break feed
			}
		}
	}
	close(work)
	workers.Wait()
	p := Phase{Requests: len(took), Failed: failed, Took: time.Since(began)}
	if err := ctx.Err(); err != nil {
		return p, fmt.Errorf("cannot go on with the fleet: %w", err)
	}
	if len(took) == 0 {
		return p, fmt.Errorf("cannot play the fleet: nothing succeeded: %w", failure)
	}
	if o.CPU != nil {
		if used, err = o.CPU(); err != nil {
			return p, err
		}
		p.CPU = (used - at) / time.Duration(len(took)+failed)
	}
	slices.Sort(took)
	p.PerSecond = float64(len(took)) / p.Took.Seconds()
	p.P50, p.P99, p.Max = took[len(took)/2], took[len(took)*99/100], took[len(took)-1]
	return p, nil
}

// maxFailures bounds the failures that are told.
const maxFailures = 3

// device is one connection. It is used by one goroutine at a time.
type device struct {
	options *Options
	number  int
	tls     *tls.Config

	turn sync.Mutex // the next round may come before the last is done
	conn *tls.Conn
	from *bufio.Reader
	etag string
}

func (d *device) close() {
	if d.conn != nil {
		_ = d.conn.Close() // it is not going to be used any more
		d.conn = nil
	}
}

// first connects and gets the manifest.
func (d *device) first(ctx context.Context) error {
	d.turn.Lock()
	defer d.turn.Unlock()
	if err := d.connect(ctx); err != nil {
		return err
	}
	return d.poll(ctx, http.StatusOK)
}

// unchanged asks whether there is anything new, on a new connection where the
// old one is gone.
func (d *device) unchanged(ctx context.Context) error {
	d.turn.Lock()
	defer d.turn.Unlock()
	if d.conn == nil {
		if err := d.connect(ctx); err != nil {
			return err
		}
	}
	return d.poll(ctx, http.StatusNotModified)
}

// patience is how long a device waits for the WFM.
const patience = 30 * time.Second

func (d *device) connect(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	plain, err := (&net.Dialer{}).DialContext(ctx, "tcp", d.options.Address)
	if err != nil {
		return fmt.Errorf("cannot connect device %d: %w", d.number, err)
	}
	conn := tls.Client(plain, d.tls)
	if err := conn.HandshakeContext(ctx); err != nil {
		return errors.Join(fmt.Errorf("cannot connect device %d: %w", d.number, err), plain.Close())
	}
	d.conn, d.from = conn, bufio.NewReaderSize(conn, 1<<10)
	return nil
}

// poll asks once on the connection that there is.
func (d *device) poll(ctx context.Context, want int) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("device %d cannot poll: %w", d.number, err)
			d.close()
		}
	}()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+d.options.Address+d.options.Path, nil)
	if err != nil {
		return err
	}
	request.Header.Set("Accept", "application/vnd.margo.manifest.v1+json")
	if d.etag != "" {
		request.Header.Set("If-None-Match", d.etag)
	}
	if d.options.Sign != nil {
		if err := d.options.Sign(d.number, request); err != nil {
			return err
		}
	}
	if err := d.conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = d.conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if err := request.Write(d.conn); err != nil {
		return err
	}
	answer, err := http.ReadResponse(d.from, request)
	if err != nil {
		return err
	}
	if _, err := io.Copy(io.Discard, answer.Body); err != nil {
		return err
	}
	if answer.StatusCode != want {
		return fmt.Errorf("got %s", answer.Status)
	}
	d.etag = answer.Header.Get("ETag")
	return nil
}
