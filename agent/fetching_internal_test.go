package agent

import (
	"testing"

	"github.com/margolite/margolite/store"
)

func TestDownloadsAreKeptForWhatIsStillToBeStaged(t *testing.T) {
	for name, test := range map[string]struct {
		d    store.Deployment
		want bool
	}{
		"it waits for its registry":     {store.Deployment{Phase: string(Fetched)}, true},
		"it does not fit for now":       {store.Deployment{Phase: string(Failed), Fault: &store.Fault{Code: codeStorageFull}}, true},
		"it can never be staged":        {store.Deployment{Phase: string(Failed), Fault: &store.Fault{Code: codeInvalidPackage}}, false},
		"it is staged, and cannot work": {store.Deployment{Phase: string(Failed), Fault: &store.Fault{Code: codeExited}, Desired: store.Revision{Staged: []store.Staged{{}}}}, false},
		"it runs":                       {store.Deployment{Phase: string(Active)}, false},
		"it goes":                       {store.Deployment{Phase: string(Removing)}, false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := isFetching(&test.d); got != test.want {
				t.Errorf("is %v", got)
			}
		})
	}
}
