package config

import "reflect"

// A Change is the difference between two configurations. Both lists are in file order.
type Change struct {
	// Parts are the changed sections, such as "poll".
	Parts []string
	// Restart are the changed keys, such as "state.dir", that take effect only when the daemon is
	// restarted. All others can be applied while it runs.
	Restart []string
}

// Changed compares c with the previous configuration, but not the files that they name.
func (c *Config) Changed(old *Config) Change {
	now, then := reflect.ValueOf(*c), reflect.ValueOf(*old)
	return Change{
		Parts:   differing(now, then, "", func(reflect.StructTag) bool { return true }),
		Restart: differing(now, then, "", func(tag reflect.StructTag) bool { return tag.Get("restart") == "true" }),
	}
}

// differing returns the keys whose values differ: fields with such a tag, otherwise those below.
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
