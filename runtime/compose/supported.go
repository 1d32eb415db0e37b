package compose

import (
	"fmt"
	"strings"
)

// shape says what may stand at one place of a Compose file, in the short and in
// the long form of every key. The zero shape is a place that may hold whatever
// the Compose specification has there.
type shape struct {
	keys    map[string]shape // of a mapping, or of each mapping in a list
	each    *shape           // instead of keys: for every value of a mapping of names
	refused string           // why a value here is not supported
	ignored string           // why a value here changes nothing on a device
	off     bool             // with refused or ignored: false is fine, it asks for nothing
	bytes   bool             // a whole number, or a string with a unit
}

const notSupported = "is not supported"

// checkKeys finds every key of file that is not supported. It takes them out of
// raw, the same file before variables were replaced, so that compose-go gets on to
// the values of the others. So it does with those that are ignored.
func (l *loading) checkKeys(file, raw map[string]any) {
	top := l.supported
	services, rawServices := mappings(file["services"]), mappings(raw["services"])
	for name, service := range services {
		if service["build"] != nil {
			l.built[name] = true
		}
		l.checkValue(service, rawServices[name], *top.keys["services"].each, name, "")
	}
	for key, value := range file {
		if key != "services" {
			l.checkValue(map[string]any{key: value}, raw, top, "", "")
		}
	}
}

// checkValue walks down from the place called key, and tells whether a value of
// this sort is for compose-go to look at.
func (l *loading) checkValue(value, raw any, s shape, service, key string) bool {
	if asksForNothing(value) || s.off && value == false {
		return true
	}
	if s.refused != "" {
		l.findings.add(service, key, "%s", s.refused)
		return false
	}
	if s.ignored != "" {
		l.warnOf(service, "%s is ignored: %s", key, s.ignored)
		return false
	}
	switch v := value.(type) {
	case []any:
		rawList, _ := raw.([]any)
		for n, element := range v {
			if _, scalar := element.(string); !scalar && n < len(rawList) {
				l.checkValue(element, rawList[n], s, service, key)
			}
		}
	case map[string]any:
		rawMap, _ := raw.(map[string]any)
		for name, value := range v {
			below, known := s.keys[name]
			switch {
			case s.each != nil:
				below = *s.each
			case strings.HasPrefix(name, "x-"):
				continue
			case !known && s.keys == nil:
				continue // a list of names in the form of a mapping, or a wrong type
			case !known:
				below = shape{refused: notSupported + meant(name, s.keys)}
			}
			if !l.checkValue(value, rawMap[name], below, service, strings.TrimPrefix(key+"."+name, ".")) {
				delete(rawMap, name)
			}
		}
	case int, string:
	default:
		// compose-go would take a fraction, or what needs more than an int of
		// the device, as 0 and say nothing.
		if s.bytes {
			l.findings.add(service, key, "is %v, which is not a whole number of bytes; add a unit, such as 64m", v)
			return false
		}
	}
	return true
}

// asksForNothing is true for empty values, which change nothing wherever they stand.
func asksForNothing(value any) bool {
	switch v := value.(type) {
	case nil:
		return true
	case []any:
		return len(v) == 0
	case map[string]any:
		return len(v) == 0
	}
	return false
}

// warning is something that people should know. What is wrong with a service of
// a profile that is not active is not among it.
type warning struct{ service, text string }

func (l *loading) warn(format string, args ...any) { l.warnOf("", format, args...) }

func (l *loading) warnOf(service, format string, args ...any) {
	l.warnings = append(l.warnings, warning{service, fmt.Sprintf(format, args...)})
}

func (w warning) String() string {
	if w.service == "" {
		return w.text
	}
	return fmt.Sprintf("service %q: %s", w.service, w.text)
}
