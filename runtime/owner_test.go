package runtime_test

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/margolite/margolite/runtime"
	"github.com/margolite/margolite/runtime/container"
	"github.com/margolite/margolite/test/expect"
)

// A second margolite comes, with directories of its own, while the first does not
// run, and has a project of the same name. What TestOwnersLiveSideBySide of
// runtime/network has of links and rules is not repeated here.
func TestASecondOwnerLeavesTheFirstAlone(t *testing.T) {
	r := newRig(t, embeddedBackend())
	e := r.engine()
	file := `services: {web: {image: BUSYBOX, command: ["sh", "-c", "echo ok > /tmp/x; httpd -f -p 80 -h /tmp"], ports: ["PORT:80"]}}`
	r.apply(e, r.load(e, "shop", strings.ReplaceAll(file, "PORT", "18130")))

	second := newRig(t, embeddedBackend())
	other := second.engine()
	r.refused(other, second.load(other, "shop", strings.ReplaceAll(file, "PORT", "18130")), runtime.Conflict, r.state)
	second.apply(other, second.load(other, "shop", strings.ReplaceAll(file, "PORT", "18131")))
	expect.Value(other.Clear(t.Context()))(t)
	expect.Equal(t, r.inside(r.containers(e, "shop")["web"], "wget -q -O - "+r.hostAddress()+":18130/x"), "ok", "answer of the first")
}

// Two that share a containerd and its namespace would undo each other's work.
func TestASharedNamespaceHasOneOwner(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		e := r.engine()
		r.apply(e, r.load(e, "shop", `services: {web: {image: BUSYBOX, restart: always, command: [sleep, '1000']}}`))
		before := r.containers(e, "shop")

		second := *r
		second.state, second.run = filepath.Join(t.TempDir(), "state"), filepath.Join(t.TempDir(), "run")
		other := second.engine()
		p := second.load(other, "other", `services: {web: {image: BUSYBOX}}`)
		for what, err := range map[string]error{
			"apply":  other.Apply(t.Context(), p, runtime.ApplyOptions{}),
			"remove": other.Remove(t.Context(), "shop"),
			"clear":  func() error { _, err := other.Clear(t.Context()); return err }(),
		} {
			expect.True(t, errors.Is(err, container.ErrOtherOwner) && strings.Contains(err.Error(), r.state), "%s: %v", what, err)
		}
		stop := second.supervise(other)
		stop()
		if after := r.containers(e, "shop"); after["web"].Pid != before["web"].Pid || after["web"].State != runtime.Running {
			t.Errorf("containers are %+v, were %+v", after, before)
		}
		expect.Check(t, e.Remove(t.Context(), "shop"))
		second.apply(other, p) // now that nobody else has anything
		expect.Check(t, other.Remove(t.Context(), "other"))
	})
}
