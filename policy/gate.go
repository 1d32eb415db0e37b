package policy

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"time"
	"unicode"
)

const (
	maxHolder = 64 // runes of a holder in a text
	maxWords  = 160
	maxLocks  = 8 // listed individually
)

// Options are the rules of a Gate, which keeps them: they must not be modified. The zero value lets
// every change pass, and admits no workload that asks for permissions.
type Options struct {
	Rules     Rules      `yaml:",inline"`
	Overrides []Override `yaml:"deployments" most:"64"`
	Order     Order      `yaml:"order" one:"none manifest"` // empty: OrderNone
	Allow     Allow      `yaml:"allow"`                     // see DefaultAllow
}

// Gate decides about changes. It is immutable and safe for concurrent use.
type Gate struct {
	o       Options
	closed  []string     // the restricted mounts of o.Allow, in order
	devices []deviceRule // those of o.Allow, in order
}

// New returns a gate. The options must have been validated: their tags give the bounds, and the
// Check functions validate entries.
func New(o Options) *Gate {
	g := &Gate{o: o}
	for _, at := range sorted(o.Allow.Mounts) {
		if o.Allow.Mounts[at] != MountAlways {
			g.closed = append(g.closed, at)
		}
	}
	for _, text := range sorted(o.Allow.Devices) {
		g.devices = append(g.devices, deviceRule{text, o.Allow.Devices[text], parseNumbers(text)})
	}
	return g
}

// settle fills in defaults.
func (r *Rules) settle() {
	r.Approval = cmp.Or(r.Approval, ApproveNone)
	r.Rollback = cmp.Or(r.Rollback, RollbackAuto)
	switch {
	case len(r.Hook.Command) == 0:
		r.Hook = Hook{}
	case r.Hook.Timeout == 0:
		r.Hook.Timeout = HookTimeout
	}
}

// CheckCommand returns what is wrong with the command of a hook.
func CheckCommand(command []string) error {
	if len(command) > 0 && !path.IsAbs(command[0]) {
		return fmt.Errorf("command %q is not the absolute path of a program", clip(command[0], maxHolder))
	}
	return nil
}

func (o *Override) fits(deployment string, labels map[string]string) bool {
	if len(o.Deployments) > 0 && !slices.ContainsFunc(o.Deployments, func(id string) bool { return strings.EqualFold(id, deployment) }) {
		return false
	}
	for name, value := range o.Labels {
		if has, ok := labels[name]; !ok || has != value {
			return false
		}
	}
	return true
}

// RulesFor returns the rules for the changes of a deployment.
func (g *Gate) RulesFor(deployment string, labels map[string]string) Rules {
	rules := g.o.Rules
	// In reverse order, so that the first override wins.
	for _, o := range slices.Backward(g.o.Overrides) {
		if !o.fits(deployment, labels) {
			continue
		}
		rules.Approval = cmp.Or(o.Approval, rules.Approval)
		rules.Rollback = cmp.Or(o.Rollback, rules.Rollback)
		if o.Windows != nil {
			rules.Windows = o.Windows
		}
		if o.Hook != nil {
			rules.Hook = *o.Hook
		}
	}
	rules.settle()
	return rules
}

// AsksForApproval reports whether any change needs approval.
func (o *Options) AsksForApproval() bool {
	asks := func(a Approval) bool { return a == ApproveUpdates || a == ApproveAll }
	return asks(o.Rules.Approval) || slices.ContainsFunc(o.Overrides, func(over Override) bool { return asks(over.Approval) })
}

func (a Approval) asks(kind ChangeKind) bool {
	return a == ApproveAll || a == ApproveUpdates && kind != Install
}

// Decide ignores earlier verdicts on c, since the clock may have been set.
func (g *Gate) Decide(c Change, s Situation) Verdict {
	if c.Answer == Rejected {
		return Verdict{Rejected: true}
	}
	if len(c.Labels) == 0 {
		c.Labels = []map[string]string{nil}
	}
	var v Verdict
	for _, labels := range c.Labels {
		rules := g.RulesFor(c.Deployment, labels)
		if c.Answer != Approved && rules.Approval.asks(c.Kind) {
			v.wait(WaitsForApproval, time.Time{}, "margolite approve "+c.Deployment)
		}
		if g.o.Order == OrderManifest && s.Before != "" && c.Kind != Remove {
			v.wait(WaitsForTurn, time.Time{}, "after deployment "+s.Before+", which the manifest lists before it")
		}
		v.locked(c, s)
		v.outside(rules.Windows, s)
	}
	v.Go = len(v.Reasons) == 0
	return v
}

// wait adds a reason, once, and when it ends by itself, if that is known.
func (v *Verdict) wait(code ReasonCode, ends time.Time, text string) {
	if r := (Reason{code, text}); !slices.Contains(v.Reasons, r) {
		v.Reasons = append(v.Reasons, r)
	}
	v.askAt(ends)
}

// askAt makes sure that the next question comes no later than t, unless t is zero.
func (v *Verdict) askAt(t time.Time) {
	if !t.IsZero() && (v.Until.IsZero() || t.Before(v.Until)) {
		v.Until = t
	}
}

// locked adds the locks that hold up a change.
func (v *Verdict) locked(c Change, s Situation) {
	held := 0
	for _, l := range s.Locks {
		ends := l.Until
		switch {
		case l.Deployment != "" && !strings.EqualFold(l.Deployment, c.Deployment):
			continue
		case s.ClockWrong:
			ends = time.Time{} // duration unknown
		case !l.Until.IsZero() && !l.Until.After(s.Now):
			continue
		}
		if held++; held <= maxLocks {
			v.wait(WaitsForLock, ends, l.text(s.Now))
		}
		v.askAt(ends)
	}
	if held > maxLocks {
		v.wait(WaitsForLock, time.Time{}, fmt.Sprintf("held by %d more locks", held-maxLocks))
	}
}

// text returns who holds the lock, until when and why.
func (l Lock) text(now time.Time) string {
	text := "held by " + clip(l.Holder, maxHolder)
	if !l.Until.IsZero() {
		until, form := l.Until.In(now.Location()), "15:04"
		if until.Format(time.DateOnly) != now.Format(time.DateOnly) {
			form = "Mon 2 Jan 15:04"
		}
		text += " until " + until.Format(form)
	}
	if reason := clip(l.Reason, maxWords); reason != "" {
		text += ": " + reason
	}
	return text
}

// outside adds that no window is open, or that this is unknown.
func (v *Verdict) outside(ws Windows, s Situation) {
	switch {
	case len(ws) == 0:
	case s.ClockWrong:
		v.wait(WaitsForClock, time.Time{}, "the clock may be wrong, so windows cannot be checked")
	case !ws.Contains(s.Now):
		next, ok := ws.Next(s.Now)
		if !ok {
			v.wait(WaitsForWindow, time.Time{}, "no window ever opens")
			return
		}
		v.wait(WaitsForWindow, next, "opens "+next.Format("Mon 15:04 MST"))
	}
}

// clip makes untrusted text fit for one line.
func clip(s string, most int) string {
	s = strings.Join(strings.FieldsFunc(strings.ToValidUTF8(s, "?"), func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }), " ")
	n := 0
	for i := range s {
		if n == most {
			return s[:i] + "..."
		}
		n++
	}
	return s
}

func sorted[T any](m map[string]T) []string { return slices.Sorted(maps.Keys(m)) }
