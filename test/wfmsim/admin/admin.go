// Package admin is the operator's side of the development WFM: a small JSON
// interface by which people, scripts and the command line say what devices are
// to run and see what became of it.
//
// It is plain HTTP without any login and therefore served on a loopback address
// only; Listen refuses others. Requests that a web page could make a browser
// send are refused as well, by their Host and Origin headers.
package admin

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/margolite/margolite/test/wfmsim"
	"github.com/margolite/margolite/test/wfmsim/fault"
	"github.com/margolite/margolite/test/wfmsim/mis"
	"github.com/margolite/margolite/test/wfmsim/registry"
	"github.com/margolite/margolite/test/wfmsim/serving"
)

const (
	maxBody = 2 << 20
	maxWait = time.Minute // of a request for statuses
)

// Request is what a verb is about. Each verb reads those fields that it needs.
type Request struct {
	Client      string        `json:"client,omitempty"` // empty: the default one
	Deployment  string        `json:"deployment,omitempty"`
	Document    []byte        `json:"document,omitempty"`
	Version     uint64        `json:"version,omitempty"`
	Fingerprint string        `json:"fingerprint,omitempty"`
	Server      string        `json:"server,omitempty"` // wfm, registry or mis
	Endpoint    string        `json:"endpoint,omitempty"`
	Fault       fault.Fault   `json:"fault,omitzero"`
	Last        int           `json:"last,omitempty"`  // so many of the newest; 0: all
	After       int           `json:"after,omitempty"` // with a number above this
	Wait        time.Duration `json:"wait,omitempty"`  // for one, where there is none
}

// Info is where everything is.
type Info struct {
	WFM           string `json:"wfm"`           // base URL for devices
	Revision      string `json:"revision"`      // that the WFM speaks
	MIS           string `json:"mis,omitempty"` // URL of the discovery document
	Registry      string `json:"registry"`      // URL for pushing from this machine
	RegistryHost  string `json:"registryHost"`  // as devices and image references name it
	DefaultClient string `json:"defaultClient"` // meant where a request names none
}

// Failure is the answer to a request that cannot be done.
type Failure struct {
	Message string `json:"error"`
}

// Removed is the answer to a removal.
type Removed struct {
	DeploymentID string `json:"deploymentId"`
	Version      uint64 `json:"manifestVersion"`
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

// Handler serves the interface for a WFM and the servers around it: POST /v1/VERB
// with a Request, which the answer of the verb or a Failure follows.
func Handler(servers Servers, info func() Info) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		verb, known := strings.CutPrefix(r.URL.Path, "/v1/")
		switch {
		case !isLocal(r):
			serving.Answer(w, http.StatusForbidden, "application/json", Failure{"only programs on this machine are served"})
			return
		case !known || r.Method != http.MethodPost:
			serving.Answer(w, http.StatusNotFound, "application/json", Failure{"the only requests are POST /v1/VERB"})
			return
		}
		var request Request
		decoder := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody))
		decoder.DisallowUnknownFields()
		var answer any
		err := decoder.Decode(&request)
		if err == nil {
			answer, err = servers.do(r.Context(), verb, request, info())
		}
		if err != nil {
			serving.Answer(w, http.StatusBadRequest, "application/json", Failure{err.Error()})
			return
		}
		serving.Answer(w, http.StatusOK, "application/json", answer)
	})
}

// isLocal is false for what a web page elsewhere could make a browser ask for.
func isLocal(r *http.Request) bool {
	host, _, err := net.SplitHostPort(r.Host)
	if err != nil {
		host = r.Host
	}
	ip := net.ParseIP(host)
	return (host == "localhost" || ip != nil && ip.IsLoopback()) && r.Header.Get("Origin") == ""
}

func (s Servers) do(ctx context.Context, verb string, r Request, info Info) (any, error) {
	client := cmp.Or(r.Client, info.DefaultClient)
	switch verb {
	case "info":
		return info, nil
	case "list":
		return s.WFM.Deployments(client), nil
	case "publish":
		return s.WFM.Publish(client, r.Document)
	case "remove":
		version, err := s.WFM.Remove(client, r.Deployment)
		return Removed{r.Deployment, version}, err
	case "statuses":
		return s.statuses(ctx, r)
	case "capabilities":
		return s.WFM.Devices(r.Client), nil
	case "restart":
		return nil, s.WFM.Restart(client)
	case "forget":
		return nil, s.WFM.Forget(client)
	case "version":
		return nil, s.WFM.SetVersion(client, r.Version)
	case "pending":
		return append([]wfmsim.Pending{}, s.WFM.Pending()...), nil
	case "approve":
		return s.approve(r)
	}
	server, err := s.server(r.Server)
	if err != nil {
		return nil, err
	}
	switch verb {
	case "faults":
		return server.Faults().Active(), nil
	case "fault":
		r.Fault.ID, err = server.Faults().Inject(r.Fault)
		return r.Fault, err
	case "clear":
		server.Faults().Clear(r.Endpoint)
		return server.Faults().Active(), nil
	case "requests":
		requests := server.Requests().Requests()
		if r.Last > 0 {
			requests = requests[max(0, len(requests)-r.Last):]
		}
		return requests, nil
	}
	return nil, fmt.Errorf("there is no verb %q", verb)
}

func (s Servers) server(name string) (*serving.Server, error) {
	switch {
	case name == "wfm":
		return s.WFM.Server, nil
	case name == "registry" && s.Registry != nil:
		return s.Registry.Server, nil
	case name == "mis" && s.MIS != nil:
		return s.MIS.Server, nil
	}
	return nil, fmt.Errorf("%q is none of the servers here: wfm, registry, mis", name)
}

// statuses gives the reports with a number above After; where there are none
// it waits for one as long as Wait says.
func (s Servers) statuses(ctx context.Context, r Request) (any, error) {
	newer := func(reports []wfmsim.Report) []wfmsim.Report {
		for i, report := range reports {
			if report.Number > r.After {
				return reports[i:]
			}
		}
		return []wfmsim.Report{}
	}
	if r.Wait > 0 {
		ctx, cancel := context.WithTimeout(ctx, min(r.Wait, maxWait))
		defer cancel()
		err := s.WFM.WaitStatus(ctx, r.Deployment, func(reports []wfmsim.Report) bool { return len(newer(reports)) > 0 })
		if err != nil && !errors.Is(err, context.DeadlineExceeded) {
			return nil, err
		}
	}
	return newer(s.WFM.Statuses(r.Deployment)), nil
}

// approve lets in the client that waits with a fingerprint, without one all that wait,
// and gives their ids.
func (s Servers) approve(r Request) (any, error) {
	fingerprints := []string{r.Fingerprint}
	if r.Fingerprint == "" {
		fingerprints = nil
		for _, p := range s.WFM.Pending() {
			fingerprints = append(fingerprints, p.Fingerprint)
		}
	}
	approved := []string{}
	for _, fingerprint := range fingerprints {
		client, err := s.WFM.Approve(fingerprint)
		if err != nil {
			return nil, err
		}
		approved = append(approved, client)
	}
	return approved, nil
}
