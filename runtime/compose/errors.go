package compose

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sort"

	"github.com/margolite/margolite/runtime/fault"
)

// Error is about an unsupported key of a Compose file.
type Error struct {
	Service string // empty for what is outside of services
	Key     string // as written, e.g. "deploy.replicas" or "volumes.data.driver"
	Reason  string // what is wrong, and what to do instead where there is something
}

func (e *Error) Error() string {
	if e.Service == "" {
		return fmt.Sprintf("%s %s", e.Key, e.Reason)
	}
	return fmt.Sprintf("service %q: %s %s", e.Service, e.Key, e.Reason)
}

// invalid is an error in the package, other than an unsupported key.
func invalid(format string, args ...any) error {
	return &fault.Error{Code: fault.InvalidPackage, Err: fmt.Errorf(format, args...)}
}

// findings collects every unsupported key of a project, to report all of them at once.
type findings []*Error

func (f *findings) add(service, key, format string, args ...any) {
	*f = append(*f, &Error{Service: service, Key: key, Reason: fmt.Sprintf(format, args...)})
}

// sortBy is one implementation for all types: package slices has one of 10 KB for each.
func sortBy[T any](list []T, compare func(a, b T) int) {
	sort.SliceStable(list, func(i, j int) bool { return compare(list[i], list[j]) < 0 })
}

// err joins the findings, deduplicated and in a stable order; nil if there are none.
func (f findings) err() error {
	sortBy(f, func(a, b *Error) int {
		return cmp.Or(cmp.Compare(a.Service, b.Service), cmp.Compare(a.Key, b.Key), cmp.Compare(a.Reason, b.Reason))
	})
	f = slices.CompactFunc(f, func(a, b *Error) bool { return *a == *b })
	if len(f) == 0 {
		return nil
	}
	errs := make([]error, len(f))
	for i, e := range f {
		errs[i] = e
	}
	return &fault.Error{Code: fault.Unsupported, Err: errors.Join(errs...)}
}
