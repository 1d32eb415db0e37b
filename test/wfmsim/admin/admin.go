// Package admin is the operator's side of the development WFM: a small JSON
// interface by which people, scripts and the command line say what devices are
// to run and see what became of it.
//
// It is plain HTTP without any login and therefore served on a loopback address
// only; Listen refuses others. Requests that a web page could make a browser
// send are refused as well, by their Host and Origin headers.
package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/margolite/margolite/test/wfmsim"
	"github.com/margolite/margolite/test/wfmsim/fault"
	"github.com/margolite/margolite/test/wfmsim/mis"
	"github.com/margolite/margolite/test/wfmsim/record"
	"github.com/margolite/margolite/test/wfmsim/registry"
)

const (
	maxBody = 1 << 20
	maxWait = time.Minute // of a request for statuses
)

// Info is where everything is.
type Info struct {
	WFM           string   `json:"wfm"`           // base URL for devices
	Revision      string   `json:"revision"`      // that the WFM speaks
	MIS           string   `json:"mis,omitempty"` // URL of the discovery document
	Registry      string   `json:"registry"`      // URL for pushing from this machine
	RegistryHost  string   `json:"registryHost"`  // as devices and image references name it
	DefaultClient string   `json:"defaultClient"` // meant where a request names none
	Clients       []string `json:"clients"`
}

// Failure is the answer to a request that cannot be done.
type Failure struct {
	Message string `json:"error"`
}

// Removed is the answer to a removal.
type Removed struct {
	Version uint64 `json:"manifestVersion"`
}

// Approved is the answer to an approval.
type Approved struct {
	Client string `json:"clientId"`
}

// Servers are what is administered; all but the WFM may be missing.
type Servers struct {
	WFM      *wfmsim.Server
	Registry *registry.Registry
	MIS      *mis.Server
}

// Listen opens a listener for the handler; it refuses addresses that others
// could reach.
func Listen(address string) (net.Listener, error) {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("cannot listen on %s: %w", address, err)
	}
	if tcp, ok := listener.Addr().(*net.TCPAddr); !ok || !tcp.IP.IsLoopback() {
		return nil, errors.Join(
			fmt.Errorf("cannot serve administration on %s: it has no login and has to stay on a loopback address", address),
			listener.Close())
	}
	return listener, nil
}

// Handler serves the interface for a WFM and the servers around it.
func Handler(servers Servers, info func() Info) http.Handler {
	a := &api{Servers: servers, info: info}
	mux := http.NewServeMux()
	for pattern, handle := range map[string]func(*http.Request) (any, error){
		"GET /v1/info":                           a.getInfo,
		"GET /v1/deployments":                    a.list,
		"POST /v1/deployments":                   a.publish,
		"DELETE /v1/deployments/{id}":            a.remove,
		"GET /v1/statuses":                       a.statuses,
		"GET /v1/capabilities":                   a.capabilities,
		"GET /v1/faults/{server}":                a.faults,
		"POST /v1/faults/{server}":               a.inject,
		"DELETE /v1/faults/{server}":             a.clear,
		"GET /v1/requests/{server}":              a.requests,
		"POST /v1/clients/{id}/{change}":         a.change,
		"PUT /v1/clients/{id}/version":           a.setVersion,
		"GET /v1/pending":                        a.pending,
		"POST /v1/pending/{fingerprint}/approve": a.approve,
	} {
		mux.Handle(pattern, answered(handle))
	}
	return local(mux)
}

type api struct {
	Servers
	info func() Info
}

// local refuses what a web page elsewhere could make a browser ask for.
func local(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host, _, err := net.SplitHostPort(r.Host)
		if err != nil {
			host = r.Host
		}
		ip := net.ParseIP(host)
		if (host != "localhost" && (ip == nil || !ip.IsLoopback())) || r.Header.Get("Origin") != "" {
			write(w, http.StatusForbidden, Failure{"only programs on this machine are served"})
			return
		}
		next.ServeHTTP(w, r)
	})
}

// answered turns what a handler returns into an answer.
func answered(handle func(*http.Request) (any, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Body = http.MaxBytesReader(w, r.Body, maxBody)
		answer, err := handle(r)
		switch {
		case errors.Is(err, wfmsim.ErrNotFound), errors.Is(err, wfmsim.ErrNotPending):
			write(w, http.StatusNotFound, Failure{err.Error()})
		case err != nil:
			write(w, http.StatusBadRequest, Failure{err.Error()})
		default:
			write(w, http.StatusOK, answer)
		}
	})
}

func write(w http.ResponseWriter, status int, answer any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(answer) // nobody is left to be told of an error
}

// client is who a request is about.
func (a *api) client(r *http.Request) string {
	if client := r.URL.Query().Get("client"); client != "" {
		return client
	}
	return a.info().DefaultClient
}

func (a *api) getInfo(*http.Request) (any, error) { return a.info(), nil }

func (a *api) list(r *http.Request) (any, error) { return a.WFM.Deployments(a.client(r)), nil }

func (a *api) publish(r *http.Request) (any, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	return a.WFM.Publish(a.client(r), body)
}

func (a *api) remove(r *http.Request) (any, error) {
	version, err := a.WFM.Remove(a.client(r), r.PathValue("id"))
	return Removed{version}, err
}

// statuses gives the reports with a number above "after"; where there are none
// it waits for one as long as "wait" says.
func (a *api) statuses(r *http.Request) (any, error) {
	query := r.URL.Query()
	after, err := number(query.Get("after"))
	if err != nil {
		return nil, err
	}
	newer := func(reports []wfmsim.Report) []wfmsim.Report {
		for i, report := range reports {
			if report.Number > after {
				return reports[i:]
			}
		}
		return nil
	}
	if text := query.Get("wait"); text != "" {
		wait, err := time.ParseDuration(text)
		if err != nil {
			return nil, err
		}
		ctx, cancel := context.WithTimeout(r.Context(), min(wait, maxWait))
		defer cancel()
		err = a.WFM.WaitStatus(ctx, query.Get("deployment"), func(reports []wfmsim.Report) bool { return len(newer(reports)) > 0 })
		if err != nil && !errors.Is(err, context.DeadlineExceeded) {
			return nil, err
		}
	}
	return append([]wfmsim.Report{}, newer(a.WFM.Statuses(query.Get("deployment")))...), nil
}

func (a *api) capabilities(r *http.Request) (any, error) {
	return a.WFM.Devices(r.URL.Query().Get("client")), nil
}

// switches are those of the server that the path names.
func (a *api) switches(r *http.Request) (*fault.Switches, *record.Log, error) {
	server := r.PathValue("server")
	switch {
	case server == "wfm":
		return a.WFM.Faults(), a.WFM.Requests(), nil
	case server == "registry" && a.Registry != nil:
		return a.Registry.Faults(), a.Registry.Requests(), nil
	case server == "mis" && a.MIS != nil:
		return a.MIS.Faults(), a.MIS.Requests(), nil
	default:
		return nil, nil, fmt.Errorf("%q is none of the servers here: wfm, registry, mis", server)
	}
}

func (a *api) faults(r *http.Request) (any, error) {
	switches, _, err := a.switches(r)
	if err != nil {
		return nil, err
	}
	return switches.Active(), nil
}

func (a *api) inject(r *http.Request) (any, error) {
	switches, _, err := a.switches(r)
	if err != nil {
		return nil, err
	}
	var f fault.Fault
	decoder := json.NewDecoder(r.Body)
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&f); err != nil {
		return nil, fmt.Errorf("cannot read fault: %w", err)
	}
	f.ID, err = switches.Inject(f)
	return f, err
}

func (a *api) clear(r *http.Request) (any, error) {
	switches, _, err := a.switches(r)
	if err != nil {
		return nil, err
	}
	switches.Clear(r.URL.Query().Get("endpoint"))
	return switches.Active(), nil
}

func (a *api) requests(r *http.Request) (any, error) {
	_, log, err := a.switches(r)
	if err != nil {
		return nil, err
	}
	requests := log.Requests()
	last, err := number(r.URL.Query().Get("last"))
	if err != nil {
		return nil, err
	}
	if last > 0 && last < len(requests) {
		requests = requests[len(requests)-last:]
	}
	return requests, nil
}

// change is what becomes of the relationship with a client.
func (a *api) change(r *http.Request) (any, error) {
	client := r.PathValue("id")
	switch change := r.PathValue("change"); change {
	case "restart":
		return a.info(), a.WFM.Restart(client)
	case "forget":
		return a.info(), a.WFM.Forget(client)
	default:
		return nil, fmt.Errorf("%q is nothing that can be done with a client", change)
	}
}

// setVersion takes the version as text: JSON numbers of that size do not survive
// every tool.
func (a *api) setVersion(r *http.Request) (any, error) {
	text, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	version, err := strconv.ParseUint(string(text), 10, 64)
	if err != nil {
		return nil, fmt.Errorf("cannot read version: %w", err)
	}
	return a.info(), a.WFM.SetVersion(r.PathValue("id"), version)
}

func (a *api) pending(*http.Request) (any, error) {
	return append([]wfmsim.Pending{}, a.WFM.Pending()...), nil
}

func (a *api) approve(r *http.Request) (any, error) {
	client, err := a.WFM.Approve(r.PathValue("fingerprint"))
	return Approved{client}, err
}

func number(text string) (int, error) {
	if text == "" {
		return 0, nil
	}
	return strconv.Atoi(text)
}
