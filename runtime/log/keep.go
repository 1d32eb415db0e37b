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
	minSize      = 4 << 10 // a file holds a few lines at least
)

// Keep says how much of a log is kept. Zero values are chosen.
type Keep struct {
	MaxSize int64 // bytes from which a file is rotated; 0: DefaultCap
	MaxFile int   // files of a log, with the one that is written; 0: two
}

// Within is what is kept of a log that asks for k where most is the limit, and what
// applies where k leaves something open.
func (k Keep) Within(most Keep) Keep {
	most = most.chosen()
	return Keep{
		MaxSize: min(cmp.Or(k.MaxSize, most.MaxSize), most.MaxSize),
		MaxFile: min(cmp.Or(k.MaxFile, most.MaxFile), most.MaxFile),
	}
}

// chosen is k without zero values and within bounds.
func (k Keep) chosen() Keep {
	k.MaxSize, k.MaxFile = cmp.Or(k.MaxSize, DefaultCap), cmp.Or(k.MaxFile, defaultFiles)
	return Keep{MaxSize: max(k.MaxSize, minSize), MaxFile: min(max(k.MaxFile, 1), maxFiles)}
}

// The parameters of a URI; Docker's names for what they say.
const (
	driverKey  = "driver"
	driver     = "json-file"
	maxSizeKey = "max-size"
	maxFileKey = "max-file"
	uriSuffix  = ".log"
)

// URI is what a task is given for its standard output and error, to be kept by our
// shim in the log at path. It has uriSuffix in place of that of the path.
func URI(path string, k Keep) string {
	k = k.chosen()
	query := driverKey + "=" + driver +
		"&" + maxSizeKey + "=" + strconv.FormatInt(k.MaxSize, 10) +
		"&" + maxFileKey + "=" + strconv.Itoa(k.MaxFile)
	return (&url.URL{Scheme: "file", Path: strings.TrimSuffix(path, suffix) + uriSuffix, RawQuery: query}).String()
}

// ParseURI reads what URI wrote; false for any other.
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

// NerdctlConfig is the value of the label nerdctl/log-config, and the content of
// nerdctl's log-config.json, for the log at path.
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
