package agent_test

import (
	"errors"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	bolt "go.etcd.io/bbolt"

	"github.com/margolite/margolite/agent"
	"github.com/margolite/margolite/store"
	"github.com/margolite/margolite/test/expect"
)

// many makes documents for n deployments.
func many(n int, revision string) map[string]string {
	documents := make(map[string]string, n)
	for i := range n {
		documents[numbered(i)] = document(numbered(i), revision)
	}
	return documents
}

// took returns the documents that were fetched since the last call.
func (f *fakeWFM) took() []digest.Digest {
	f.mu.Lock()
	defer f.mu.Unlock()
	fetched := f.fetched
	f.fetched = nil
	return fetched
}

func (s *site) deployment(id string) store.Deployment {
	s.t.Helper()
	return expect.Value(s.store.Deployment(id))(s.t)
}

// DS-19 to DS-21: of many deployments the one that changed is fetched and
// written, the others are left as they are.
func TestDS21OneOfManyChanges(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.gate.close(true)
	documents := many(40, "1.0.0")
	s.publish(1, documents)
	s.eventually("all are staged", func() bool {
		deployments, err := s.store.Deployments()
		return err == nil && !slices.ContainsFunc(deployments, func(d store.Deployment) bool { return d.Phase != string(agent.Staged) })
	})
	s.quiet()
	expect.Equal(t, len(s.wfm.took()), len(documents), "documents fetched for the first manifest")

	var changed string
	for changed = range documents {
		break
	}
	before := expect.Value(s.store.Deployments())(t)
	blocked := s.runtime.block("fetch 2.0.0") // nothing but the poll writes
	documents[changed] = document(changed, "2.0.0")
	s.publish(2, documents)
	<-blocked
	expect.Equal(t, s.wfm.took(), []digest.Digest{digest.FromString(documents[changed])}, "fetched")
	for _, was := range before {
		now := s.deployment(was.ID)
		if was.ID == changed {
			expect.Equal(t, now.Desired.Version, 2, "version of the changed one")
			expect.Equal(t, now.Phase, string(agent.Fetched), "phase of the changed one")
		} else if now.Desired.Version != 1 || now.Phase != was.Phase || !now.Since.Equal(was.Since) {
			t.Errorf("an unchanged one was written: %+v", now)
		}
	}
	writes := s.store.Writes()
	s.publish(3, documents) // another version of the same
	expect.Equal(t, s.store.Writes()-writes, 1, "transactions for another version alone")
	expect.Equal(t, len(s.wfm.took()), 0, "documents fetched for another version alone")
}

// What is reported as adopted is what the device holds, though no record is
// written for a version alone.
func TestST13TheVersionAdoptedIsThatOfTheRevisionHeld(t *testing.T) {
	s := newSite(t)
	version := func() uint64 { return s.fullStatus().Deployments[0].Adopted }
	one, two, three := document(first, "1.0.0"), document(first, "2.0.0"), document(first, "3.0.0")
	t.Run("ST-12 the first one", func(t *testing.T) {
		s.publish(1, map[string]string{first: one})
		s.heard(first, installed...)
	})
	t.Run("ST-13 a newer manifest with the same revision", func(t *testing.T) {
		s.quiet()
		s.publish(4, map[string]string{first: one})
		expect.Equal(t, version(), 4, "version in the status")
		s.restart()
		expect.Equal(t, version(), 4, "version in the status after a restart")
		s.hears(first) // not worth a report
	})
	t.Run("ST-14 fetching does not advance it", func(t *testing.T) {
		s.gate.close(true)
		s.publish(5, map[string]string{first: two})
		s.hears(first, "pending@4")
		s.publish(6, map[string]string{first: two})
		s.publish(7, map[string]string{first: three})
		s.eventually("it is staged", func() bool { return s.deployment(first).Phase == string(agent.Staged) })
		expect.Equal(t, version(), 4, "version in the status")
	})
	t.Run("ST-14 applying does", func(t *testing.T) {
		s.publish(8, map[string]string{first: three})
		begun, release := s.runtime.hold("apply 3.0.0")
		s.gate.close(false)
		s.runtime.poke()
		<-begun
		s.hears(first, "installing@8")
		s.publish(9, map[string]string{first: three})
		release()
		s.hears(first, "installed@9")
	})
	t.Run("ST-14 a failure does", func(t *testing.T) {
		s.runtime.fail("stage 4.0.0", "NotFound")
		s.publish(10, map[string]string{first: document(first, "4.0.0")})
		s.hears(first, "pending@9", "failed@10")
		s.publish(11, map[string]string{first: document(first, "4.0.0")})
		s.runtime.fail("", "")
		s.publish(12, map[string]string{first: document(first, "5.0.0")})
		s.hears(first, "pending@11", "installing@12", "installed@12")
	})
	t.Run("ST-13 a removal", func(t *testing.T) {
		s.publish(13, map[string]string{first: document(first, "5.0.0")})
		s.publish(15, nil)
		s.hears(first, "removing@15", "removed@15")
	})
}

// The WFM is told the version that a lost database was filled from again.
func TestST15AfterALossTheVersionIsThatOfTheManifestRead(t *testing.T) {
	s := newSite(t)
	s.updates(3, "1.0.0", "pending@3", "installing@3", "installed@3")
	s.publish(5, map[string]string{first: document(first, "1.0.0")})
	s.change(func(records *store.Store) {
		check(t, records.Commit("lose", store.Change{Forget: []string{first}}))
	})
	s.wfm.set(func() { s.wfm.full = true })
	s.sync()
	s.heard(first, "pending@3", "installing@3", "installed@3", "pending@5", "installed@5")
}

// large makes documents that do not fit into memory together.
func large(n int) map[string]string {
	documents := many(n, "1.0.0")
	for id, d := range documents {
		documents[id] = d + "\n#" + strings.Repeat("x", 200<<10)
	}
	return documents
}

// AD-01: documents that are in the store ahead of their manifest stay there
// while it is being taken, whatever is pruned meanwhile; a restart, too, finds
// a store that can go on.
func TestAD01DocumentsAheadOfTheirManifestStay(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.tidied()
	release := s.publishUntil("apply 9.0.0", 1, map[string]string{first: document(first, "9.0.0")})
	documents := large(4)
	s.wfm.fail("after documents", errors.New("the line is cut"))
	s.wfm.publish(2, documents)
	s.refuses()
	ahead := func() (n int) {
		for _, d := range documents {
			if s.store.HasArtifact(digest.FromString(d)) {
				n++
			}
		}
		return n
	}
	came := ahead()
	expect.Require(t, came > 0 && came < len(documents), "%d of %d documents are in the store, want some", came, len(documents))
	s.wfm.took()

	pruned := s.runtime.count("prune")
	release() // what was applied works now, and what nothing needs is pruned
	s.eventually("something was pruned", func() bool { return s.runtime.count("prune") > pruned })
	s.quiet()
	expect.Equal(t, ahead(), came, "documents left")
	s.wfm.fail("", nil)
	s.sync()
	expect.Equal(t, len(s.wfm.took()), len(documents)-came, "documents fetched")
	for id := range documents {
		s.heard(id, "pending@2", "installing@2", "installed@2")
	}
}

// What came of a manifest that is given up for another one is dropped.
func TestDocumentsOfAManifestThatIsGivenUpAreDropped(t *testing.T) {
	t.Parallel()
	for name, next := range map[string]func(s *site){
		"for another one":    func(s *site) { s.publish(3, map[string]string{first: document(first, "2.0.0")}) },
		"for the former one": func(s *site) { s.publish(1, map[string]string{first: document(first, "1.0.0")}) },
	} {
		t.Run(name, func(t *testing.T) {
			s := installedSite(t)
			documents := large(4)
			s.wfm.publish(2, documents)
			s.wfm.fail("after documents", errors.New("the line is cut"))
			s.refuses()
			bundle := receive(t, s.store, "bundle")
			s.wfm.fail("", nil)
			next(s)
			for id, d := range documents {
				expect.Equal(t, s.store.HasArtifact(digest.FromString(d)), false, "the document of %s is stored", id)
			}
			s.noBundle(bundle)
		})
	}
}

// noBundle expects that nothing is left of something incoming.
func (s *site) noBundle(bundle digest.Digest) {
	s.t.Helper()
	n := expect.Value(s.store.Incoming().Size(bundle))(s.t)
	expect.Equal(s.t, n, 0, "bytes of the bundle")
}

// receive leaves something incoming.
func receive(t *testing.T, records *store.Store, content string) digest.Digest {
	t.Helper()
	d := digest.FromString(content)
	w, err := records.Incoming().Append(d)
	if err == nil {
		_, err = io.WriteString(w, content)
		err = errors.Join(err, w.Close())
	}
	check(t, err)
	return d
}

// What an agent that was killed had no time to drop is dropped with the next
// answer that nothing changed.
func TestABundleOfAnAcceptedManifestIsDroppedAfterARestart(t *testing.T) {
	s := installedSite(t)
	var bundle digest.Digest
	s.change(func(records *store.Store) { bundle = receive(t, records, "bundle") })
	s.sync()
	s.noBundle(bundle)
}

// A stored document that rotted while nothing needed it is fetched again when
// the WFM goes back to it.
func TestDS09ARottenDocumentIsFetchedAgain(t *testing.T) {
	s := installedSite(t)
	s.publish(2, map[string]string{first: document(first, "2.0.0")})
	s.runtime.await(t, first+"-main 2.0.0")
	s.quiet()
	s.wfm.took()
	gone := digest.FromString(document(first, "1.0.0"))
	s.stop()
	db := expect.Value(bolt.Open(s.database(), 0o600, &bolt.Options{NoFreelistSync: true}))(t)
	err := db.Update(func(tx *bolt.Tx) error {
		b, err := tx.Bucket([]byte("artifacts")).CreateBucketIfNotExists([]byte(gone))
		if err != nil {
			return err
		}
		return b.Put([]byte{0, 0, 0, 0}, []byte("rot"))
	})
	check(t, errors.Join(err, db.Close()))
	s.start()
	s.publish(3, map[string]string{first: document(first, "1.0.0")})
	s.runtime.await(t, first+"-main 1.0.0")
	expect.Equal(t, s.wfm.took(), []digest.Digest{gone}, "fetched")
}

// What a manifest says of deployments, what of that the device does, and what it tells
// of it.
func TestDS17ST01ADeploymentIsKnownByItsID(t *testing.T) {
	s := newSite(t)
	both := func(version uint64, a, b string) {
		t.Helper()
		s.publish(version, map[string]string{first: document(first, a), second: document(second, b)})
	}
	t.Run("DS-19 new ones are installed", func(t *testing.T) {
		s.publish(1, map[string]string{first: document(first, "1.0.0")})
		s.runtime.await(t, first+"-main 1.0.0")
		s.heard(first, installed...)
		both(2, "1.0.0", "1.0.0")
		s.runtime.await(t, first+"-main 1.0.0", second+"-main 1.0.0")
	})
	t.Run("DS-20 changed ones are applied", func(t *testing.T) {
		both(3, "2.0.0", "1.0.0")
		s.runtime.await(t, first+"-main 2.0.0", second+"-main 1.0.0")
		s.heard(first, append(installed, "pending@2", "installing@3", "installed@3")...)
	})
	t.Run("DS-21 unchanged ones are kept", func(t *testing.T) { s.made("apply 1.0.0", 2) })
	t.Run("DS-22 absent ones are removed", func(t *testing.T) {
		s.publish(4, map[string]string{first: document(first, "2.0.0")})
		s.runtime.await(t, first+"-main 2.0.0")
	})
	t.Run("DS-15 none are an answer, too", func(t *testing.T) {
		s.publish(5, nil)
		s.runtime.await(t)
	})
	t.Run("ST-01 each change is told in order", func(t *testing.T) {
		s.heard(first, append(installed, "pending@2", "installing@3", "installed@3", "removing@5", "removed@5")...)
	})
}

// What a deployment was refused by may change: it is judged again, and not at any other
// time.
func TestAFinalVerdictIsJudgedAgain(t *testing.T) {
	elsewhere := strings.Replace(document(first, "1.0.0"), deviceID, "edge-02", 1)
	for name, change := range map[string]func(s *site){
		"with another device id": func(s *site) {
			s.set.Device.ID = "edge-02"
			s.configure()
		},
		"at a start, by the id that the WFM gave": func(s *site) {
			s.restart(func() { s.wfm.set(func() { s.wfm.clientID = "edge-02" }) })
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			s.publish(1, map[string]string{first: elsewhere})
			s.heard(first, "pending@1", "failed@1")
			s.restart()
			s.configure()
			s.publish(2, map[string]string{first: elsewhere, second: document(second, "1.0.0")})
			s.heard(second, "pending@2", "installing@2", "installed@2")
			s.heard(first, "pending@1", "failed@1")
			change(s)
			s.heard(first, "pending@1", "failed@1", "pending@1", "installing@2", "installed@2")
		})
	}
}

// An id that is no UUID but safe is run, with a project of its own; one that is not
// safe fails alone.
func TestDeploymentIDsThatAreNoUUIDs(t *testing.T) {
	s := newSite(t)
	const odd, unsafe = "Self.Test~App", "../../app"
	s.publish(1, map[string]string{first: document(first, "1.0.0"), odd: document(odd, "1.0.0"), unsafe: document(unsafe, "1.0.0")})
	s.heard(first, "pending@1", "installing@1", "installed@1")
	s.heard(odd, "pending@1", "installing@1", "installed@1")
	s.heard(unsafe, "failed@1")
	s.heardError(unsafe, "INVALID_ID")
	for _, project := range s.runtime.running() {
		name, _, _ := strings.Cut(project, " ")
		expect.Equal(t, strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789_-"), "", "odd characters of project %q", name)
	}
	s.restart()
	s.publish(2, map[string]string{first: document(first, "1.0.0")})
	s.heard(odd, "pending@1", "installing@1", "installed@1", "removing@2", "removed@2")
	s.heard(unsafe, "failed@1")
}
