package log

import (
	"cmp"
	"encoding/json"
	"net/url"
	"strconv"
	"strings"
)

const (
	defaultFiles = 2
	maxFiles     = 100
	minSize      = 4 << 10 // room for a few lines
)

// Keep limits how much of a log is kept.
type Keep struct {
	MaxSize int64 // bytes from which a file is rotated; 0: DefaultCap
	MaxFile int   // number of files, with the current one; 0: two
}

// Within returns k limited by most, which also fills in what k leaves open.
func (k Keep) Within(most Keep) Keep {
	most = most.chosen()
	return Keep{
		MaxSize: min(cmp.Or(k.MaxSize, most.MaxSize), most.MaxSize),
		MaxFile: min(cmp.Or(k.MaxFile, most.MaxFile), most.MaxFile),
	}
}

// chosen returns k with its defaults, within bounds.
func (k Keep) chosen() Keep {
	k.MaxSize, k.MaxFile = cmp.Or(k.MaxSize, DefaultCap), cmp.Or(k.MaxFile, defaultFiles)
	return Keep{MaxSize: max(k.MaxSize, minSize), MaxFile: min(max(k.MaxFile, 1), maxFiles)}
}

// The parameters of a URI, named as in Docker.
const (
	driverKey  = "driver"
	driver     = "json-file"
	maxSizeKey = "max-size"
	maxFileKey = "max-file"
	uriSuffix  = ".log"
)

// URI is a task's standard output and error, for our shim to keep in the log at path.
func URI(path string, k Keep) string {
	k = k.chosen()
	query := driverKey + "=" + driver +
		"&" + maxSizeKey + "=" + strconv.FormatInt(k.MaxSize, 10) +
		"&" + maxFileKey + "=" + strconv.Itoa(k.MaxFile)
	return (&url.URL{Scheme: "file", Path: strings.TrimSuffix(path, suffix) + uriSuffix, RawQuery: query}).String()
}

// ParseURI parses the result of URI; ok is false for any other.
func ParseURI(uri string) (path string, k Keep, ok bool) {
	u, err := url.Parse(uri)
	if err != nil || u.Scheme != "file" || u.Host != "" || !strings.HasPrefix(u.Path, "/") {
		return "", Keep{}, false
	}
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil || query.Get(driverKey) != driver {
		return "", Keep{}, false
	}
	k.MaxSize, _ = strconv.ParseInt(query.Get(maxSizeKey), 10, 64)
	k.MaxFile, _ = strconv.Atoi(query.Get(maxFileKey))
	return strings.TrimSuffix(u.Path, uriSuffix) + suffix, k.chosen(), true
}

// NerdctlConfig is the label nerdctl/log-config and nerdctl's log-config.json.
func NerdctlConfig(path string, k Keep) string {
	k = k.chosen()
	type config struct {
		Driver string            `json:"driver"`
		Opts   map[string]string `json:"opts,omitempty"`
	}
	text, _ := json.Marshal(config{driver, map[string]string{ // strings cannot fail
		"log-path": path,
		maxSizeKey: strconv.FormatInt(k.MaxSize, 10),
		maxFileKey: strconv.Itoa(k.MaxFile),
	}})
	return string(text)
}
