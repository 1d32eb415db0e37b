package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// web is the service that people see.
type web struct {
	greeting string // GREETING
	plant    string // PLANT
	version  string // VERSION, set by the image
	counter  string // URL that gives the next number
	started  time.Time
}

// visit is the answer for programs.
type visit struct {
	Text     string `json:"text"`
	Greeting string `json:"greeting"`
	Plant    string `json:"plant"`
	Version  string `json:"version,omitempty"`
	Visit    uint64 `json:"visit"`
	// Started is when this process did: another one has another time.
	Started time.Time `json:"started"`
}

func (w web) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", w.greet)
	mux.HandleFunc("GET /healthz", func(http.ResponseWriter, *http.Request) {})
	return mux
}

// greet answers with a JSON document or a line of text, as asked for.
func (w web) greet(rw http.ResponseWriter, r *http.Request) {
	n, err := w.next(r.Context())
	if err != nil {
		http.Error(rw, "the counter cannot be reached: "+err.Error(), http.StatusBadGateway)
		return
	}
	v := visit{
		Text:     fmt.Sprintf("%s from %s, visit %d", w.greeting, w.plant, n),
		Greeting: w.greeting, Plant: w.plant, Version: w.version, Visit: n, Started: w.started,
	}
	rw.Header().Set("Cache-Control", "no-store")
	if strings.Contains(r.Header.Get("Accept"), "application/json") {
		rw.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(rw).Encode(v)
		return
	}
	fmt.Fprintln(rw, v.Text)
}

func (w web) next(ctx context.Context) (n uint64, err error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, w.counter, nil)
	if err != nil {
		return 0, err
	}
	request.Close = true // the counter may be replaced between two visits
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return 0, fmt.Errorf("%s answered %s", w.counter, answer.Status)
	}
	_, err = fmt.Fscan(answer.Body, &n)
	return n, err
}
