package config

import (
	"slices"
	"sort"
	"strings"
)

// A said is a key, and whether the file says something in it: the default is no
// more than what goes without saying.
type said struct {
	key string
	is  bool
}

// dependents are the keys of a WFM that mean something only where the device ...
type dependents struct {
	files   []said // shows a certificate, or signs with its key
	svid    []said // shows an SVID, and expects one
	service []said // gets its trust bundle from an identity service
	signed  []said // signs its requests
	gateway []said // speaks to an API
	git     []said // reads a repository
}

func (w *WFM) dependents() dependents {
	d := Default().WFM
	return dependents{
		files: []said{
			{"wfm.certificate", w.Certificate != d.Certificate},
			{"wfm.key", w.Key != d.Key},
		},
		svid: []said{
			{"wfm.trustBundle", w.TrustBundle != d.TrustBundle && w.TrustBundle != ""},
			{"wfm.ids", len(w.IDs) > 0},
			{"wfm.identityService.discovery", w.IdentityService.Discovery != ""},
		},
		service: []said{
			{"wfm.identityService.pins", len(w.IdentityService.Pins) > 0},
			{"wfm.identityService.ca", w.IdentityService.CA != ""},
			{"wfm.identityService.refresh", w.IdentityService.Refresh != d.IdentityService.Refresh},
		},
		signed: []said{
			{"wfm.clientId", w.ClientID != ""},
			{"wfm.signature.components", len(w.Signature.Components) > 0},
			{"wfm.signature.keyId", w.Signature.KeyID != ""},
			{"wfm.signature.certificateForm", w.Signature.CertificateForm != d.Signature.CertificateForm},
		},
		gateway: []said{
			{"wfm.authorization.basic", w.Authorization.Basic != ""},
			{"wfm.authorization.bearer", w.Authorization.Bearer != ""},
		},
		git: []said{
			{"wfm.git.branch", w.Git.Branch != d.Git.Branch},
			{"wfm.git.path", w.Git.Path != ""},
			{"wfm.git.token", w.Git.Token != ""},
			{"wfm.git.certificate", w.Git.Certificate != ""},
			{"wfm.git.key", w.Git.Key != ""},
			{"wfm.git.report.branch", w.Git.Report.Branch != ""},
			{"wfm.git.report.path", w.Git.Report.Path != ""},
			{"wfm.reports", w.Reports != ""},
		},
	}
}

// speaks says whether there is an API of a WFM to speak to.
func (w *WFM) speaks() bool { return !w.FromGit() || w.Reports != "" }

// svid says whether the device shows an SVID, and expects one.
func (w *WFM) svid() bool {
	return w.speaks() && w.Revision == RC3 && w.Authorization == Authorization{}
}

// fetched says whether the trust bundle comes from an identity service.
func (w *WFM) fetched() bool {
	return w.IdentityService.Discovery != "" || strings.HasPrefix(w.TrustBundle, "https://")
}

// agree looks whether the values that are sound each for itself go together.
func (c *Config) agree(r *reader) {
	w := &c.WFM
	keys := w.dependents()
	refuse := func(why string, groups ...[]said) {
		for _, k := range slices.Concat(groups...) {
			if k.is {
				r.disagree(k.key, "%s", why)
			}
		}
	}
	if !w.FromGit() {
		refuse("only where wfm.url begins with git+https://", keys.git)
	}
	if (w.Git.Certificate == "") != (w.Git.Key == "") {
		r.disagree("wfm.git", "certificate and key are needed together")
	}
	switch report := w.Git.Report; {
	case report.Branch == "" && report.Path != "":
		r.disagree("wfm.git.report.path", "only beside wfm.git.report.branch")
	case report.Branch != "" && report.Branch == w.Git.Branch:
		r.disagree("wfm.git.report.branch", "has to be another branch than wfm.git.branch: each report would be a new desired state")
	case report.Branch != "" && w.Reports != "":
		r.disagree("wfm.reports", "reports go there or to wfm.git.report, not to both")
	}
	switch {
	case !w.speaks():
		refuse("only the repository is spoken to; an API for reports is named by wfm.reports",
			keys.files, keys.svid, keys.service, keys.signed, keys.gateway)
	case w.Revision != RC3:
		refuse("only for revision "+RC3+", this is "+w.Revision, keys.svid, keys.service)
		if w.TLS != "1.3" {
			r.disagree("wfm.tls", "has to be 1.3 for revision %s", w.Revision)
		}
	case !w.svid():
		refuse("only for revisions "+RC2+" and "+RC1+", this is "+w.Revision, keys.signed)
		refuse("not beside wfm.authorization: the gateway ends TLS, so that no certificate of the device reaches the WFM",
			keys.files, keys.svid, keys.service)
	default:
		refuse("only for revisions "+RC2+" and "+RC1+", this is "+w.Revision, keys.signed)
		if !w.fetched() {
			refuse("only where the trust bundle is fetched: wfm.identityService.discovery, or a URL in wfm.trustBundle", keys.service)
			if w.TrustBundle == "" {
				r.disagree("wfm.trustBundle", "required: a file, or the https URL at which an identity service has it")
			}
		}
	}
	if w.Authorization.Basic != "" && w.Authorization.Bearer != "" {
		r.disagree("wfm.authorization", "expected basic or bearer, got both")
	}
	if s := w.Signature.Components; len(s) > 0 {
		for _, needed := range []string{"@method", "@target-uri", "content-digest"} {
			if !slices.Contains(s, needed) {
				r.disagree("wfm.signature.components", "%s is missing; the standard requires it", needed)
			}
		}
		if sorted := slices.Sorted(slices.Values(s)); len(slices.Compact(sorted)) < len(s) {
			r.disagree("wfm.signature.components", "a component is given twice")
		}
	}
	if w.Limits.Document > w.Limits.Expanded {
		key, problem := "wfm.limits.document", "more than wfm.limits.expanded: no bundle can hold such a document"
		if _, given := r.places[key]; !given {
			key, problem = "wfm.limits.expanded", "less than wfm.limits.document: no bundle can hold such a document"
		}
		r.disagree(key, "%s", problem)
	}
	c.Policy.agree(r)
	sort.SliceStable(r.mistakes, func(i, j int) bool { return lineOf(r.mistakes[i]) < lineOf(r.mistakes[j]) })
}

// agree looks whether images that have to be signed can be, and keys are of use.
func (p *Policy) agree(r *reader) {
	switch {
	case p.Allow.UnsignedImages && len(p.ImageKeys) > 0:
		r.disagree("policy.imageKeys", "only beside policy.allow.unsignedImages: false; without it no image has to be signed")
	case !p.Allow.UnsignedImages && len(p.ImageKeys) == 0:
		r.disagree("policy.allow.unsignedImages", "only beside policy.imageKeys: without a key no image would be allowed")
	}
}

// dropUnused empties the names of files that are not used with the other values,
// so that nobody reads them: defaults, as everything else was refused.
func (w *WFM) dropUnused() {
	if !w.svid() || w.IdentityService.Discovery != "" && w.TrustBundle == Default().WFM.TrustBundle {
		w.TrustBundle = ""
	}
	if !w.svid() && (!w.speaks() || w.Revision == RC3) {
		w.Certificate, w.Key = "", ""
	}
}
