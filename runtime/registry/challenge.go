package registry

import (
	"net/http"
	"strings"
)

const (
	maxChallenges = 16 // of an answer
	maxParameters = 32 // of a challenge
)

// challenge is one way in that a host offers with a 401 (RFC 9110, section 11.3).
type challenge struct {
	scheme     string            // in lower case
	parameters map[string]string // by names in lower case
}

// challengeOf is the way in that is taken: a token before a password.
func challengeOf(header http.Header) (challenge, bool) {
	var all []challenge
	for _, value := range header.Values("WWW-Authenticate") {
		all = append(all, challengesIn(value)...)
	}
	for _, scheme := range []string{"bearer", "basic"} {
		for _, c := range all {
			if c.scheme == scheme {
				return c, true
			}
		}
	}
	return challenge{}, false
}

// challengesIn reads a field that holds one challenge or several, as far as it can be read.
func challengesIn(field string) []challenge {
	var all []challenge
	for {
		field = strings.TrimLeft(field, " \t,")
		name := field[:tokenEnd(field)]
		if name == "" {
			return all
		}
		field = field[len(name):]
		name = strings.ToLower(name)
		value, rest, ok := parameter(field)
		switch {
		case ok && len(all) > 0:
			if last := all[len(all)-1].parameters; len(last) < maxParameters {
				last[name] = value
			}
			field = rest
		case field == "" || strings.ContainsRune(" \t,", rune(field[0])):
			if len(all) == maxChallenges {
				return all
			}
			all = append(all, challenge{scheme: name, parameters: make(map[string]string)})
		default: // credentials of a scheme that is not known here
			_, field, _ = strings.Cut(field, ",")
		}
	}
}

// parameter reads the value of a parameter behind its name.
func parameter(field string) (value, rest string, ok bool) {
	field, ok = strings.CutPrefix(strings.TrimLeft(field, " \t"), "=")
	if !ok {
		return "", "", false
	}
	field = strings.TrimLeft(field, " \t")
	quoted, ok := strings.CutPrefix(field, `"`)
	if !ok { // there are registries that do not quote URLs
		end := strings.IndexAny(field, " \t,")
		if end < 0 {
			end = len(field)
		}
		return field[:end], field[end:], true
	}
	var b strings.Builder
	for n := 0; n < len(quoted); n++ {
		switch c := quoted[n]; {
		case c == '"':
			return b.String(), quoted[n+1:], true
		case c == '\\' && n+1 < len(quoted):
			n++
			b.WriteByte(quoted[n])
		default:
			b.WriteByte(c)
		}
	}
	return "", "", false
}

// tokenEnd is where a token ends that a field begins with.
func tokenEnd(field string) int {
	for n := range len(field) {
		c := field[n]
		if c <= ' ' || c >= 0x7f || strings.IndexByte(`()<>@,;:\"/[]?={}`, c) >= 0 {
			return n
		}
	}
	return len(field)
}
