package compose

import (
	"context"
	"fmt"
)

// ReadEnv reads a file of variables as .env beside a Compose file is read. Values
// may refer to what is in environment, which goes before what the file says.
func ReadEnv(ctx context.Context, path string, environment map[string]string) (map[string]string, error) {
	vars, err := (&files{}).readEnv(path, newInterpolator(ctx), func(name string) (string, bool) {
		value, ok := environment[name]
		return value, ok
	})
	if err != nil {
		return nil, fmt.Errorf("cannot read variables: %w", err)
	}
	return vars, nil
}
