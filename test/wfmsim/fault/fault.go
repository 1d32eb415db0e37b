// Package fault lets an HTTP server misbehave on demand.
//
// Switches wrap the handlers of a server, one by one, under the name of their
// endpoint. A Fault that is injected for an endpoint changes what its handler
// answers: another status, fewer bytes, wrong bytes, late bytes, or none. Every
// fault that matches a request applies to it, so that a slow connection can be
// cut as well.
//
// A few kinds cannot be brought about from outside a handler (a wrong digest
// inside a document, a refused TLS handshake). The server that knows them asks
// for them by Of or Take.
package fault

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// Kind says what goes wrong.
type Kind string

// What can go wrong. A server answers the kinds it does not know as if nothing
// was injected.
const (
	Answer      Kind = "answer"       // Status instead of the work, with RetryAfter where set
	Cut         Kind = "cut"          // the connection ends after Bytes of the body; 0: before the header
	Truncate    Kind = "truncate"     // a well-formed answer with only the first Bytes of its body
	Corrupt     Kind = "corrupt"      // one bit differs, in the byte at offset Bytes of the body
	Slow        Kind = "slow"         // Bytes per second
	Delay       Kind = "delay"        // the answer starts after Wait
	Header      Kind = "header"       // the header Name has Value; an empty Value leaves it out
	WrongDigest Kind = "wrong-digest" // the WFM's manifest states a digest that no document has
	Refuse      Kind = "refuse"       // the TLS handshake fails
)

// Kinds are all there are, for help texts and validation.
func Kinds() []Kind {
	return []Kind{Answer, Cut, Truncate, Corrupt, Slow, Delay, Header, WrongDigest, Refuse}
}

// Fault is one thing that goes wrong.
type Fault struct {
	ID       int    `json:"id,omitempty"`       // assigned by Inject
	Endpoint string `json:"endpoint,omitempty"` // empty: every endpoint
	Match    string `json:"match,omitempty"`    // part of the path; empty: every path
	Skip     int    `json:"skip,omitempty"`     // requests that pass before it begins
	Times    int    `json:"times,omitempty"`    // requests it applies to; 0: until cleared

	Kind       Kind          `json:"kind"`
	Status     int           `json:"status,omitempty"`
	RetryAfter string        `json:"retryAfter,omitempty"` // as it is sent: seconds or a date
	Bytes      int64         `json:"bytes,omitempty"`
	Wait       time.Duration `json:"wait,omitempty"` // in JSON: nanoseconds
	Name       string        `json:"name,omitempty"`
	Value      string        `json:"value,omitempty"`
}

// check refuses what would silently do nothing.
func (f Fault) check() error {
	switch {
	case !slices.Contains(Kinds(), f.Kind):
		return fmt.Errorf("kind %q is none of %v", f.Kind, Kinds())
	case f.Kind == Answer && (f.Status < 200 || f.Status > 599):
		return fmt.Errorf("status %d is not a final HTTP status", f.Status)
	case f.Kind == Slow && f.Bytes <= 0:
		return errors.New("slow needs a number of bytes per second")
	case f.Kind == Delay && f.Wait <= 0:
		return errors.New("delay needs a time to wait")
	case f.Kind == Header && f.Name == "":
		return errors.New("header needs a name")
	case f.Bytes < 0 || f.Skip < 0 || f.Times < 0:
		return errors.New("numbers must not be negative")
	default:
		return nil
	}
}

// AnswerFunc writes the answer of an Answer fault in the manner of the server:
// a WFM answers with problem details, a registry with its own error document.
type AnswerFunc func(w http.ResponseWriter, r *http.Request, f Fault)

// Switches hold the faults of one server. Its methods may be called at any time
// from any goroutine.
type Switches struct {
	answer AnswerFunc

	mu     sync.Mutex
	last   int
	active []*Fault
}

// New makes switches with nothing injected.
func New(answer AnswerFunc) *Switches {
	return &Switches{answer: answer}
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

// Take gives the faults that apply to one request, and counts it.
func (s *Switches) Take(endpoint, path string) []Fault {
	s.mu.Lock()
	defer s.mu.Unlock()
	var taken []Fault
	s.active = slices.DeleteFunc(s.active, func(f *Fault) bool {
		switch {
		case f.Endpoint != "" && f.Endpoint != endpoint, !strings.Contains(path, f.Match):
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

// Of gives the faults that apply to the request being handled.
func Of(ctx context.Context) []Fault {
	faults, _ := ctx.Value(contextKey{}).([]Fault)
	return faults
}

type contextKey struct{}

// Wrap puts the switches before the handler of an endpoint.
func (s *Switches) Wrap(endpoint string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		faults := s.Take(endpoint, r.URL.Path)
		if len(faults) == 0 {
			next.ServeHTTP(w, r)
			return
		}
		bent := &writer{to: w, request: r, faults: faults}
		for _, f := range faults {
			if f.Kind == Delay && !wait(r.Context(), f.Wait) {
				panic(http.ErrAbortHandler)
			}
		}
		for _, f := range faults {
			if f.Kind == Cut && f.Bytes == 0 {
				panic(http.ErrAbortHandler)
			}
		}
		for _, f := range faults {
			if f.Kind == Answer {
				s.answer(bent, r, f)
				return
			}
		}
		next.ServeHTTP(bent, r.WithContext(context.WithValue(r.Context(), contextKey{}, faults)))
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
