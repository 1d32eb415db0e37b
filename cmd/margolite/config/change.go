package config

import "reflect"

// A Change is what differs between two configurations. Both lists are in the
// order of the file.
type Change struct {
	// Parts are the sections that differ, such as "poll".
	Parts []string
	// Restart are the keys among what differs that a running daemon cannot take
	// over, such as "state.dir": what rests on them was opened when it started.
	// What differs otherwise can be taken over as it runs.
	Restart []string
}

// Changed compares c with the configuration that was in force before it. The
// content of the files that they name is not looked at.
func (c *Config) Changed(old *Config) Change {
	now, then := reflect.ValueOf(*c), reflect.ValueOf(*old)
	return Change{
		Parts:   differing(now, then, "", func(reflect.StructTag) bool { return true }),
		Restart: differing(now, then, "", func(tag reflect.StructTag) bool { return tag.Get("restart") == "true" }),
	}
}

// differing are the keys whose values differ, of the fields with such a tag, and
// else of those below.
func differing(now, then reflect.Value, section string, such func(reflect.StructTag) bool) (keys []string) {
	for i := range now.NumField() {
		tag := now.Type().Field(i).Tag
		key := join(section, tag.Get("yaml"))
		switch {
		case tag.Get("yaml") == "" || reflect.DeepEqual(now.Field(i).Interface(), then.Field(i).Interface()):
		case tag.Get("yaml") == ",inline":
			keys = append(keys, differing(now.Field(i), then.Field(i), section, such)...)
		case such(tag):
			keys = append(keys, key)
		case now.Field(i).Kind() == reflect.Struct:
			keys = append(keys, differing(now.Field(i), then.Field(i), key, such)...)
		}
	}
	return keys
}
