// Package fault lets an HTTP server misbehave on demand.
//
// Switches wrap the handlers of a server, one by one, under the name of their
// endpoint. A Fault that is injected for an endpoint changes what its handler
// answers: another status, fewer bytes, more, wrong or late ones, or none. Every
// fault that matches a request applies to it, so that a slow connection can be
// cut as well.
package fault

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"time"
)

// Kind says what goes wrong.
type Kind string

// What can go wrong.
const (
	Answer Kind = "answer" // Status instead of the work, with RetryAfter where set, and What as the problem's type
	HTML   Kind = "html"   // a page of some portal, with Status or 200

	Cut     Kind = "cut"     // the connection ends after Bytes of the body; 0: before the header
	Reset   Kind = "reset"   // the same by a TCP reset
	Stall   Kind = "stall"   // nothing comes after Bytes of the body, until the client leaves; 0: not even the header
	Endless Kind = "endless" // spaces follow the body, without end or up to Bytes in all
	Bomb    Kind = "bomb"    // a body that says Content-Encoding: gzip and expands to Bytes
	Corrupt Kind = "corrupt" // one bit differs, in the byte at offset Bytes of the body
	Slow    Kind = "slow"    // Bytes per second
	Drip    Kind = "drip"    // Bytes at a time, each after Wait
	Delay   Kind = "delay"   // the answer starts after Wait

	Clock Kind = "clock" // the Date header is off by Wait, which may be negative
)

// Kinds are all there are, for help texts and validation.
func Kinds() []Kind {
	return []Kind{Answer, HTML, Cut, Reset, Stall, Endless, Bomb, Corrupt, Slow, Drip, Delay, Clock}
}

// Fault is one thing that goes wrong.
type Fault struct {
	ID       int    `json:"id,omitempty"`       // assigned by Inject
	Endpoint string `json:"endpoint,omitempty"` // empty: every endpoint
	Client   string `json:"client,omitempty"`   // who asks; empty: everybody
	Match    string `json:"match,omitempty"`    // part of the path; empty: every path
	Skip     int    `json:"skip,omitempty"`     // requests that pass before it begins
	Times    int    `json:"times,omitempty"`    // requests it applies to; 0: until cleared

	Kind       Kind          `json:"kind"`
	What       string        `json:"what,omitempty"` // see the kinds
	Status     int           `json:"status,omitempty"`
	RetryAfter string        `json:"retryAfter,omitempty"` // as it is sent: seconds or a date; NoRetryAfter: left out
	Bytes      int64         `json:"bytes,omitempty"`
	Wait       time.Duration `json:"wait,omitempty"`  // in JSON: nanoseconds
	Value      string        `json:"value,omitempty"` // title of the problem that Answer gives
}

// NoRetryAfter as RetryAfter leaves the header out where the standard asks for it.
const NoRetryAfter = "none"

// check refuses what would silently do nothing.
func (f Fault) check() error {
	switch {
	case !slices.Contains(Kinds(), f.Kind):
		return fmt.Errorf("kind %q is none of %v", f.Kind, Kinds())
	case (f.Kind == Answer || f.Status != 0) && (f.Status < 200 || f.Status > 599):
		return fmt.Errorf("status %d is not a final HTTP status", f.Status)
	case f.Kind == Slow && f.Bytes <= 0:
		return errors.New("slow needs a number of bytes per second")
	case f.Kind == Drip && (f.Bytes <= 0 || f.Wait <= 0):
		return errors.New("drip needs a number of bytes and the time between them")
	case f.Kind == Delay && f.Wait <= 0:
		return errors.New("delay needs a time to wait")
	case f.Kind == Clock && f.Wait == 0:
		return errors.New("clock needs the time by which it is off")
	case f.Bytes < 0 || f.Skip < 0 || f.Times < 0:
		return errors.New("numbers must not be negative")
	default:
		return nil
	}
}

// AnswerFunc writes the answer of an Answer fault in the manner of the server:
// a WFM answers with problem details, a registry with its own error document.
type AnswerFunc func(w http.ResponseWriter, r *http.Request, f Fault)

// Options are what a server tells its switches.
type Options struct {
	Answer AnswerFunc
	Client func(*http.Request) string // who asks; nil: nobody in particular
}

// Switches hold the faults of one server. Its methods may be called at any time
// from any goroutine.
type Switches struct {
	options Options

	mu     sync.Mutex
	last   int
	active []*Fault
}

// New makes switches with nothing injected.
func New(o Options) *Switches {
	return &Switches{options: o}
}

// Inject lets something go wrong from the next request on.
func (s *Switches) Inject(f Fault) (id int, err error) {
	if err := f.check(); err != nil {
		return 0, fmt.Errorf("cannot inject fault: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last++
	f.ID = s.last
	s.active = append(s.active, &f)
	return f.ID, nil
}

// Clear ends all faults of an endpoint; with an empty endpoint, all there are.
func (s *Switches) Clear(endpoint string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.active = slices.DeleteFunc(s.active, func(f *Fault) bool {
		return endpoint == "" || f.Endpoint == endpoint
	})
}

// Active lists what is still to go wrong, oldest first.
func (s *Switches) Active() []Fault {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]Fault, 0, len(s.active))
	for _, f := range s.active {
		list = append(list, *f)
	}
	return list
}

// take gives the faults that apply to one request, and counts it. Who asks is
// empty where that is not known.
func (s *Switches) take(endpoint, path, client string) []Fault {
	s.mu.Lock()
	defer s.mu.Unlock()
	var taken []Fault
	s.active = slices.DeleteFunc(s.active, func(f *Fault) bool {
		switch {
		case f.Endpoint != "" && f.Endpoint != endpoint,
			f.Client != "" && f.Client != client, !strings.Contains(path, f.Match):
			return false
		case f.Skip > 0:
			f.Skip--
			return false
		}
		taken = append(taken, *f)
		if f.Times == 0 {
			return false
		}
		f.Times--
		return f.Times == 0
	})
	return taken
}

// Wrap puts the switches before the handler of an endpoint.
func (s *Switches) Wrap(endpoint string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		client := ""
		if s.options.Client != nil {
			client = s.options.Client(r)
		}
		faults := s.take(endpoint, r.URL.Path, client)
		if len(faults) == 0 {
			next.ServeHTTP(w, r)
			return
		}
		bent := &writer{to: w, request: r, faults: faults}
		if !bent.begin() {
			panic(http.ErrAbortHandler)
		}
		for _, f := range faults {
			switch f.Kind {
			case Answer:
				s.options.Answer(bent, r, f)
				return
			case HTML:
				bent.page(f)
				return
			case Endless, Bomb:
				honest := httptest.NewRecorder()
				next.ServeHTTP(honest, r)
				bent.replace(honest, f)
				return
			}
		}
		next.ServeHTTP(bent, r)
	})
}

// wait says whether the time has passed with the client still there.
func wait(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
