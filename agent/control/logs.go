package control

import (
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// LogsRequest reads the output of services of a deployment or project.
type LogsRequest struct {
	Deployment string   // a deployment's id, a unique prefix of it, or its name; or
	Project    string   // a Compose project
	Services   []string // none: all
	Follow     bool
	Tail       *int      // last lines of each container; nil: all kept
	Since      time.Time // zero: from the beginning
	Until      time.Time // zero: to the end
	Timestamps bool      // in front of each line
	Prefix     Prefix
	Color      bool // of prefixes, for a terminal
}

// Prefix selects the lines that start with their container's name.
type Prefix string

// The prefix modes.
const (
	PrefixAuto   Prefix = ""       // if there are several containers
	PrefixAlways Prefix = "always" // all
	PrefixNever  Prefix = "never"  // none
)

func (r *LogsRequest) query() url.Values {
	tail := ""
	if r.Tail != nil {
		tail = strconv.Itoa(*r.Tail)
	}
	moment := func(t time.Time) string {
		if t.IsZero() {
			return ""
		}
		return t.UTC().Format(time.RFC3339Nano)
	}
	return url.Values{
		"deployment": {r.Deployment}, "project": {r.Project}, "service": r.Services,
		"follow": {strconv.FormatBool(r.Follow)}, "tail": {tail}, "since": {moment(r.Since)}, "until": {moment(r.Until)},
		"timestamps": {strconv.FormatBool(r.Timestamps)}, "prefix": {string(r.Prefix)}, "color": {strconv.FormatBool(r.Color)},
	}
}

func logsRequest(r *http.Request) (LogsRequest, error) {
	q := r.URL.Query()
	req := LogsRequest{
		Deployment: q.Get("deployment"),
		Project:    q.Get("project"),
		Services:   q["service"],
		Follow:     q.Get("follow") == "true",
		Timestamps: q.Get("timestamps") == "true",
		Prefix:     Prefix(q.Get("prefix")),
		Color:      q.Get("color") == "true",
	}
	if t := q.Get("tail"); t != "" && t != "all" {
		n, err := strconv.Atoi(t)
		if err != nil || n < 0 {
			return req, fmt.Errorf("%w: tail %q is not a number of lines", ErrInvalid, t)
		}
		req.Tail = &n
	}
	for key, to := range map[string]*time.Time{"since": &req.Since, "until": &req.Until} {
		text := q.Get(key)
		if text == "" {
			continue
		}
		t, err := time.Parse(time.RFC3339Nano, text)
		if err != nil {
			return req, fmt.Errorf("%w: %s %.40q is not a time such as 2026-01-31T12:00:00Z", ErrInvalid, key, text)
		}
		*to = t
	}
	switch req.Prefix {
	case PrefixAuto, PrefixAlways, PrefixNever:
	default:
		return req, fmt.Errorf("%w: prefix must be always or never, not %.40q", ErrInvalid, string(req.Prefix))
	}
	return req, nil
}
