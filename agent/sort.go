package agent

import "sort"

// sortBy sorts short lists. It is not slices.SortFunc, which the compiler would
// write out anew for every type: 15 KB each.
func sortBy[T any](list []T, compare func(a, b T) int) {
	sort.SliceStable(list, func(i, j int) bool { return compare(list[i], list[j]) < 0 })
}
