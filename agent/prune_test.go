package agent_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/runtime"
	"github.com/margolite/margolite/test/expect"
)

var unusedImage = runtime.UnusedImage{Name: "registry.example/old:1", Bytes: 4096}

// prunes has the unused image pruned, and tells how that ended.
func (s *site) prunes() <-chan error {
	ended := make(chan error, 1)
	go func() {
		ended <- expect.ErrorOf(s.agent.Prune(s.t.Context(), []control.Unneeded{{Kind: control.UnneededImage, Name: unusedImage.Name}}))
	}()
	return ended
}

// Of two operators who prune while deployments are staged neither finds the other
// one busy: one prunes after the other.
func TestTwoPrunesAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		s.tidied()
		begun, release := s.runtime.hold("fetch 1.0.0")
		begunToo, releaseToo := s.runtime.hold("fetch 2.0.0")
		s.publish(1, map[string]string{first: document(first, "1.0.0"), second: document(second, "2.0.0")})
		<-begun
		<-begunToo
		s.runtime.set(func() { s.runtime.images = append(s.runtime.images, unusedImage) })
		one := s.prunes()
		synctest.Wait()
		other := s.prunes()
		synctest.Wait()
		release()
		synctest.Wait()
		releaseToo()
		expect.OK(t, <-one)
		expect.OK(t, <-other)
		s.runtime.await(t, first+"-main 1.0.0", second+"-main 2.0.0")
	})
}

// Volumes are removed while a deployment or a project, whoever asked for it, downloads, but
// not those that it may need; a deployment may need its own at any time. Images are dropped
// when that is staged, and the answer says so.
func TestPruneBesideADownload(t *testing.T) {
	for project, c := range map[string]struct {
		step  string
		bring func(ctx context.Context, s *site)
	}{
		first + "-main": {"stage 1.0.0", func(_ context.Context, s *site) { s.publish(1, map[string]string{first: document(first, "1.0.0")}) }},
		"own": {"stage ", func(ctx context.Context, s *site) {
			go func() {
				_ = s.agent.ComposePull(ctx, control.ComposeRequest{Project: "own", File: "/compose.yaml"}, func(control.Event) {})
			}()
		}},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := newSite(t)
			s.tidied()
			s.sync()
			s.runtime.set(func() {
				s.runtime.images = append(s.runtime.images, unusedImage)
				s.runtime.volumes = []runtime.StoredVolume{{Project: "old", Name: "data", Bytes: 7}, {Project: project, Name: "data"}}
			})
			unneeded := func() []control.Unneeded { return expect.Value(s.agent.Unneeded(t.Context()))(t) }
			items := unneeded()
			expect.Equal(t, len(items), 3, "items before the download")
			begun, release := s.runtime.hold(c.step)
			ctx, leave := context.WithCancel(t.Context())
			c.bring(ctx, s)
			<-begun
			before := s.runtime.count("prune")
			removed := expect.Value(s.agent.Prune(t.Context(), items))(t)
			expect.Equal(t, removed, []control.Unneeded{
				{Kind: control.UnneededVolume, Project: "old", Name: "data", Bytes: 7},
				{Kind: control.UnneededImage, Name: unusedImage.Name, Bytes: unusedImage.Bytes, Later: true},
			}, "removed")
			s.made("prune", before) // some images are brought that no record names
			leave()
			release()
			s.eventually("the images are dropped", func() bool { return s.runtime.count("prune") > before })
			synctest.Wait()
			expect.Equal(t, len(unneeded()) == len(items), project == "own", "the volume of %s is unneeded after the download", project)
		})
	}
}

// A volume that cannot be measured is listed with the reason.
func TestAVolumeThatCannotBeMeasuredSaysSo(t *testing.T) {
	s := newSite(t)
	s.sync()
	s.runtime.volumes = []runtime.StoredVolume{{Project: "old", Name: "deep", Bytes: 7, Err: errors.New("cannot measure:\nit is too deep")}, {Project: "old", Name: "data"}}
	items := expect.Value(s.agent.Unneeded(t.Context()))(t)
	expect.Equal(t, items, []control.Unneeded{
		{Kind: control.UnneededVolume, Project: "old", Name: "deep", Bytes: 7, Error: "cannot measure: it is too deep"},
		{Kind: control.UnneededVolume, Project: "old", Name: "data"},
	}, "items")
}

// What a change leaves behind while an operator prunes is dropped when that is
// done, not after the next change.
func TestWhatAPruneFindsBusyIsNotLost(t *testing.T) {
	s := newSite(t)
	s.tidied()
	s.installed()
	s.eventually("what the installation left was looked for", func() bool { return s.runtime.count("prune") > 1 })
	s.runtime.set(func() { s.runtime.images = append(s.runtime.images, unusedImage) })
	before := s.runtime.count("prune")
	begun, release := s.runtime.hold("prune")
	pruned := s.prunes()
	<-begun
	s.publish(2, nil)
	s.heard(first, append(installed, "removing@2", "removed@2")...)
	s.quiet()
	release()
	check(t, <-pruned)
	s.eventually("what the removal left was looked for", func() bool { return s.runtime.count("prune") >= before+2 })
}

// While it is measured what volumes hold, which may take minutes, deployments are
// installed and the status is answered.
func TestNothingWaitsForMeasuring(t *testing.T) {
	s := newSite(t)
	s.sync()
	begun, release := s.runtime.hold("measure")
	pruned := s.prunes()
	<-begun
	expect.OK(t, expect.ErrorOf(s.agent.Status(t.Context())))
	s.installed()
	release()
	expect.OK(t, <-pruned)
}
