package store_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/margolite/margolite/store"
	"github.com/margolite/margolite/test/expect"
)

// report is a report whose body says its own name.
func report(deployment, name string, version uint64, w store.Weight) store.Report {
	return store.Report{Deployment: deployment, Version: version, Weight: w, Body: []byte(name)}
}

// waiting are the bodies of all reports that wait, in order.
func (f *fixture) waiting() string {
	f.t.Helper()
	var names []string
	for _, r := range f.reports(10_000) {
		names = append(names, string(r.Body))
	}
	return strings.Join(names, " ")
}

func TestOneDeploymentsReportsAreBounded(t *testing.T) {
	numbered := func(from, to int, w store.Weight) (reports []store.Report) {
		for i := from; i <= to; i++ {
			reports = append(reports, report("a", fmt.Sprint(i), uint64(i), w))
		}
		return reports
	}
	names := func(ranges ...int) string {
		var s []string
		for i := 0; i < len(ranges); i += 2 {
			for n := ranges[i]; n <= ranges[i+1]; n++ {
				s = append(s, fmt.Sprint(n))
			}
		}
		return strings.Join(s, " ")
	}
	join := func(parts ...[]store.Report) (all []store.Report) {
		for _, p := range parts {
			all = append(all, p...)
		}
		return all
	}
	for name, test := range map[string]struct {
		reports []store.Report
		want    string
	}{
		"as many as there may be":   {numbered(1, 16, store.Step), names(1, 16)},
		"the oldest steps go":       {numbered(1, 40, store.Step), names(25, 40)},
		"steps go before failures":  {join(numbered(1, 10, store.Failure), numbered(11, 30, store.Step)), names(1, 10, 25, 30)},
		"then the oldest failures":  {join(numbered(1, 20, store.Failure), numbered(21, 30, store.Step)), names(6, 20, 30, 30)},
		"failures go before ends":   {join(numbered(1, 10, store.End), numbered(11, 30, store.Failure)), names(1, 10, 25, 30)},
		"then the oldest ends":      {numbered(1, 40, store.End), names(25, 40)},
		"the newest end is kept":    {join(numbered(1, 1, store.End), numbered(2, 40, store.Step)), names(1, 1, 26, 40)},
		"the newest end of several": {join(numbered(1, 30, store.End), numbered(31, 31, store.Step)), names(16, 31)},
	} {
		t.Run(name, func(t *testing.T) {
			for _, atOnce := range []bool{true, false} {
				f := newFixture(t)
				f.commit(store.Change{Reports: []store.Report{report("other", "other", 1, store.Step)}})
				if atOnce {
					f.commit(store.Change{Reports: test.reports})
				} else {
					for _, r := range test.reports {
						f.commit(store.Change{Reports: []store.Report{r}})
					}
				}
				same(t, "waiting", f.waiting(), "other "+test.want)
				same(t, "dropped", f.DroppedReports(), int64(max(0, len(test.reports)-16)))
			}
		})
	}
}

func TestTheOutboxIsBounded(t *testing.T) {
	for name, body := range map[string]int{"in number": 1, "in bytes": 64 << 10} {
		t.Run(name, func(t *testing.T) {
			most := min(4096, 4<<20/body)
			f := newFixture(t)
			payload := make([]byte, body)
			var reports []store.Report
			add := func(n int, id string, w store.Weight) { // with a star each is about another deployment
				for i := range n {
					id := strings.Replace(id, "*", fmt.Sprint(i), 1)
					reports = append(reports, store.Report{Deployment: id, Weight: w, Body: payload})
				}
			}
			count := func(id string) (n int) {
				for _, r := range expect.Value(f.Reports(0, 10_000))(t) {
					if strings.HasPrefix(r.Deployment, id) {
						n++
					}
				}
				return n
			}
			commit := func() {
				f.commit(store.Change{Reports: reports})
				reports = nil
			}
			half := most / 2
			add(half, "removed-*", store.End)
			add(20, "failing", store.Failure) // 15 of them remain
			add(1, "failing", store.Step)
			commit()
			before := f.DroppedReports()
			same(t, "dropped of the failing", before, int64(5))
			add(most/4, "early-*", store.Step)
			add(most-half-most/4-16, "late-*", store.Step)
			commit()
			same(t, "waiting", expect.Value(f.CountReports())(t), most)
			same(t, "dropped", f.DroppedReports(), before)

			add(15, "new-*", store.Step) // the failures of the one deployment go
			commit()
			same(t, "left of the failing", count("failing"), 1)
			add(half, "newer-*", store.Step)
			commit()
			same(t, "waiting", expect.Value(f.CountReports())(t), most)
			same(t, "dropped", f.DroppedReports(), before+int64(15+half))
			same(t, "the newest", count("newer"), half) // what is left are the newest of each: the oldest went
			same(t, "the oldest", count("removed"), 0)
			f.reopen()
			same(t, "waiting after reopening", expect.Value(f.CountReports())(t), most)
		})
	}
}

func TestWhatNobodyHearsIsCoalesced(t *testing.T) {
	type r = store.Report
	a := func(name string, version uint64, w store.Weight) r { return report("a", name, version, w) }
	for name, test := range map[string]struct {
		reports []r
		want    string
	}{
		"the newest stays":            {[]r{a("1", 1, 0), a("2", 1, 0), a("3", 1, 0)}, "3"},
		"ends stay, in order":         {[]r{a("1", 1, 0), a("gone", 2, store.End), a("2", 3, 0), a("gone again", 4, store.End), a("3", 5, 0)}, "gone gone again 3"},
		"the last failures stay":      {[]r{a("f1", 1, store.Failure), a("f2", 1, store.Failure), a("f3", 1, store.Failure), a("works", 1, 0)}, "f2 f3 works"},
		"those of each version stay":  {[]r{a("f1", 1, store.Failure), a("1", 2, 0), a("f2", 2, store.Failure), a("2", 3, 0)}, "f1 f2 2"},
		"a failure that is the last":  {[]r{a("1", 1, 0), a("f1", 1, store.Failure)}, "f1"},
		"each deployment for its own": {[]r{a("1", 1, 0), report("b", "b1", 1, 0), a("2", 1, 0), report("b", "b2", 1, 0)}, "2 b2"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			for _, r := range test.reports {
				f.commit(store.Change{Reports: []store.Report{r}, Unheard: true})
			}
			same(t, "waiting", f.waiting(), test.want)
			same(t, "transactions", f.Writes(), int64(len(test.reports)))
			same(t, "dropped for want of room", f.DroppedReports(), int64(0))
		})
	}
	t.Run("others are left alone", func(t *testing.T) {
		f := newFixture(t)
		f.commit(store.Change{Reports: []r{report("b", "b1", 1, 0), report("b", "b2", 1, 0), a("1", 1, 0)}})
		f.commit(store.Change{Reports: []r{a("2", 1, 0)}, Unheard: true})
		same(t, "waiting", f.waiting(), "b1 b2 2")
	})
}
