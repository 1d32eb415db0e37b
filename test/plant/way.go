package plant

import (
	"encoding/base64"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"time"

	"github.com/margolite/margolite/agent/identity"
	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/test/gitserver"
	"github.com/margolite/margolite/test/pki"
	"github.com/margolite/margolite/test/wfmsim"
)

// Way is how the device and its WFM know each other.
type Way struct {
	// Revision of the standard that the WFM speaks; empty: rc.3. Before rc.3 the
	// device signs its requests and has to be onboarded.
	Revision margo.Revision
	// Gateway terminates TLS in front of a WFM of rc.3 and wants a password, "Basic",
	// or a token, "Bearer"; empty: there is none.
	Gateway string
	// Repository has the desired state in a Git repository, for which a token is
	// needed; the WFM hears the reports.
	Repository bool
	// Change has the last word about the WFM; nil: nothing to say.
	Change func(*wfmsim.Options)
}

// Secrets of the device, where its way has them.
const (
	GatewaySecret   = "gateway-7:open sesame"
	GatewayToken    = "the-token-of-gateway-7"
	RepositoryToken = "the-token-of-the-repository"
)

// host is where all servers are.
const host = "127.0.0.1"

// openWay starts the WFM, and writes what the device needs to reach it.
func (p *Plant) openWay() error {
	way := p.options.Way
	public, err := pki.NewServerAuthority("Plant", time.Now())
	if err != nil {
		return err
	}
	var o wfmsim.Options
	var own map[string]string // settings of the device's own identity
	switch {
	case way.Revision != margo.RC3:
		o, own, err = p.signed(public)
	case way.Gateway != "":
		o, own, err = p.gateway(public)
	default:
		o, own, err = p.mutual()
	}
	if err != nil {
		return err
	}
	if way.Change != nil {
		way.Change(&o)
	}
	if p.WFM, err = wfmsim.New(o); err != nil {
		return err
	}
	if err = p.WFM.Start(""); err != nil {
		return err
	}
	p.settings = own // the URL is found out when it is written
	if way.Repository {
		if err := p.openRepository(public); err != nil {
			return err
		}
		p.settings["url"] = "git+" + p.Repository.URL()
		p.settings["git"] = fmt.Sprintf("{branch: main, path: devices, token: %s}", p.secret("token"))
		p.settings["reports"] = p.WFM.URL()
	}
	if way.Gateway == "" && way.Revision == margo.RC3 && !way.Repository {
		return nil
	}
	ca := p.secret("ca.pem")
	p.settings["ca"] = ca
	return os.WriteFile(ca, public.RootPEM(), 0o644)
}

func (p *Plant) secret(name string) string { return filepath.Join(p.secrets(), name) }

// mutual is a WFM of rc.3.
func (p *Plant) mutual() (o wfmsim.Options, settings map[string]string, err error) {
	if p.Authority, err = pki.NewAuthority(TrustDomain, time.Now()); err != nil {
		return o, nil, err
	}
	server, err := p.Authority.IssueWFM(WFM)
	if err != nil {
		return o, nil, err
	}
	device, err := p.Authority.IssueClient(WFM, Client)
	if err != nil {
		return o, nil, err
	}
	if p.Identity, err = pki.WriteFiles(p.secrets(), device, p.Authority.Bundle()); err != nil {
		return o, nil, err
	}
	p.client = Client
	o = wfmsim.Options{
		ID:   identity.ID{TrustDomain: TrustDomain, WFM: WFM},
		SVID: server.TLS(), Bundle: p.Authority.Bundle(), Clients: []string{Client},
	}
	settings = map[string]string{
		"certificate": p.Identity.Certificate, "key": p.Identity.Key, "trustBundle": p.Identity.TrustBundle,
	}
	return o, settings, nil
}

// signed is a WFM before rc.3.
func (p *Plant) signed(public *pki.ServerAuthority) (o wfmsim.Options, settings map[string]string, err error) {
	server, err := public.IssueServer([]string{host})
	if err != nil {
		return o, nil, err
	}
	signer, err := public.IssueSigner(Device)
	if err != nil {
		return o, nil, err
	}
	files, err := pki.WriteFiles(p.secrets(), signer, &identity.TrustBundle{Anchors: signer.Chain})
	if err != nil {
		return o, nil, err
	}
	p.client = wfmsim.ClientID(signer.Chain[0])
	return wfmsim.Options{Revision: p.options.Way.Revision, SVID: server.TLS(), Root: public.RootPEM(), ClientCAs: public.Pool()},
		map[string]string{"revision": p.options.Way.Revision.String(), "certificate": files.Certificate, "key": files.Key},
		os.Remove(files.TrustBundle)
}

// gateway is a WFM of rc.3 behind one.
func (p *Plant) gateway(public *pki.ServerAuthority) (o wfmsim.Options, settings map[string]string, err error) {
	server, err := public.IssueServer([]string{host})
	if err != nil {
		return o, nil, err
	}
	key, content, value := "bearer", GatewayToken, "Bearer "+GatewayToken
	if p.options.Way.Gateway == "Basic" {
		key, content, value = "basic", GatewaySecret, "Basic "+base64.StdEncoding.EncodeToString([]byte(GatewaySecret))
	}
	file := p.secret("gateway")
	p.client = Client
	return wfmsim.Options{SVID: server.TLS(), Authorization: map[string]string{value: Client}, Clients: []string{Client}},
		map[string]string{"authorization": fmt.Sprintf("{%s: %s}", key, file)}, os.WriteFile(file, []byte(content+"\n"), 0o600)
}

// openRepository starts a repository without a commit.
func (p *Plant) openRepository(public *pki.ServerAuthority) error {
	certificate, err := public.IssueServer([]string{host})
	if err != nil {
		return err
	}
	if p.Repository, err = gitserver.New(filepath.Join(p.options.Dir, "git"), certificate.TLS()); err != nil {
		return err
	}
	p.documents = map[string]string{"README.md": "What the devices of this plant run.\n", "devices/.gitkeep": ""}
	p.Repository.SetToken("x-access-token:" + RepositoryToken)
	if err := p.Repository.Start(); err != nil {
		return err
	}
	return os.WriteFile(p.secret("token"), []byte(RepositoryToken+"\n"), 0o600)
}

// commit changes or, with no body, removes a document in the repository. Who
// hears the reports knows about it, so that it can tell whether they fit.
func (p *Plant) commit(id string, body []byte) (wfmsim.Published, error) {
	at := p.Repository.Repository.Next.Add(time.Minute)
	version := uint64(at.UnixMilli()) // as long as commits are minutes apart
	if err := p.WFM.SetVersion(p.client, version-1); err != nil {
		return wfmsim.Published{}, err
	}
	file := "devices/" + id + ".yaml"
	var done wfmsim.Published
	var err error
	if body == nil {
		delete(p.documents, file)
		done.Version, err = p.WFM.Remove(p.client, id)
	} else {
		p.documents[file] = string(body)
		done, err = p.WFM.Publish(p.client, body)
	}
	if err != nil {
		return done, err
	}
	_, err = p.Repository.Repository.Commit(gitserver.Change{Files: maps.Clone(p.documents)})
	return done, err
}
