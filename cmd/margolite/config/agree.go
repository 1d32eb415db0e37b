package config

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/agent/uplink"
)

// said returns the keys of groups in which the file differs from the default. A field names
// its group by the tag "with". A group's keys apply only if the device ...
//
//	files    shows a certificate, or signs with its key
//	svid     shows an SVID, and expects one
//	service  gets its trust bundle from an identity service
//	signed   signs its requests
//	gateway  speaks to an API
//	git      reads a repository
func (w *WFM) said(groups ...string) []string {
	d := Default().WFM
	if w.TrustBundle == "" {
		d.TrustBundle = ""
	}
	return differing(reflect.ValueOf(*w), reflect.ValueOf(d), "wfm", func(tag reflect.StructTag) bool {
		return slices.Contains(groups, tag.Get("with"))
	})
}

func (w *WFM) speaks() bool { return !w.FromGit() || w.Reports != "" }

func (w *WFM) svid() bool {
	return w.speaks() && w.Revision == margo.RC3 && w.Authorization == uplink.Authorization{}
}

func (w *WFM) fetched() bool {
	return w.Service.Discovery != "" || strings.HasPrefix(w.TrustBundle, "https://")
}

func (c *Config) agree(r *reader) {
	w := &c.WFM
	refuse := func(why string, groups ...string) {
		for _, key := range w.said(groups...) {
			r.disagree(key, "%s", why)
		}
	}
	if !w.FromGit() {
		refuse("applies only if wfm.url begins with git+https://", "git")
	}
	if (w.Git.Certificate == "") != (w.Git.Key == "") {
		r.disagree("wfm.git", "set certificate and key together")
	}
	switch report := w.Git.Report; {
	case report.Branch == "" && report.Path != "":
		r.disagree("wfm.git.report.path", "needs wfm.git.report.branch")
	case report.Branch != "" && report.Branch == w.Git.Branch:
		r.disagree("wfm.git.report.branch", "use a branch other than wfm.git.branch: each report would become a new desired state")
	case report.Branch != "" && w.Reports != "":
		r.disagree("wfm.reports", "set wfm.reports or wfm.git.report, not both")
	}
	switch {
	case !w.speaks():
		refuse("does not apply to a Git repository; wfm.reports names an API for reports",
			"files", "svid", "service", "signed", "gateway")
	case w.Revision != margo.RC3:
		refuse(fmt.Sprintf("applies only to revision %s, not to %s", margo.RC3, w.Revision), "svid", "service")
		if w.TLS != "1.3" {
			r.disagree("wfm.tls", "must be 1.3 for revision %s", w.Revision)
		}
	default:
		refuse(fmt.Sprintf("applies only to revisions %s and %s, not to %s", margo.RC2, margo.RC1, w.Revision), "signed")
		switch {
		case !w.svid():
			refuse("conflicts with wfm.authorization: the gateway terminates TLS, so the WFM never sees a certificate of the device",
				"files", "svid", "service")
		case !w.fetched():
			refuse("applies only if the trust bundle is fetched: set wfm.identityService.discovery, or a URL in wfm.trustBundle", "service")
			if w.TrustBundle == "" {
				r.disagree("wfm.trustBundle", "required: a file, or the https URL where an identity service publishes it")
			}
		}
	}
	if w.Authorization.Basic != "" && w.Authorization.Bearer != "" {
		r.disagree("wfm.authorization", "expected basic or bearer, got both")
	}
	c.Policy.agree(r)
	slices.SortStableFunc(r.mistakes, func(a, b *Error) int { return a.Line - b.Line })
}

// agree checks the keys for signatures. Packages from URLs may name their own keys.
func (p *Policy) agree(r *reader) {
	if p.Notation != "" && p.Allow.Unsigned {
		r.disagree("policy.notation", "needs policy.allow.unsigned: false; otherwise no package has to be signed")
	}
	switch {
	case p.Allow.UnsignedImages && p.Allow.Unsigned && len(p.ImageKeys) > 0:
		r.disagree("policy.imageKeys", "needs policy.allow.unsignedImages: false or policy.allow.unsigned: false; otherwise neither images nor packages have to be signed")
	case !p.Allow.UnsignedImages && len(p.ImageKeys) == 0:
		r.disagree("policy.allow.unsignedImages", "needs policy.imageKeys: without a key no image would be allowed")
	}
}

// dropUnused clears unused file names. They are defaults: other values were already rejected.
func (w *WFM) dropUnused() {
	if !w.svid() || w.Service.Discovery != "" && w.TrustBundle == Default().WFM.TrustBundle {
		w.TrustBundle = ""
	}
	if !w.svid() && (!w.speaks() || w.Revision == margo.RC3) {
		w.Certificate, w.Key = "", ""
	}
}
