package compose

import "sort"

// sortBy sorts the short lists of this package. It is not slices.SortFunc, which
// the compiler would write out anew for every type: 10 KB each.
func sortBy[T any](list []T, compare func(a, b T) int) {
	sort.SliceStable(list, func(i, j int) bool { return compare(list[i], list[j]) < 0 })
}
