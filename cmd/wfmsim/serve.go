package main

import (
	"context"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/margolite/margolite/agent/identity"
	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/cmd/command"
	"github.com/margolite/margolite/runtime/pemfile"
	"github.com/margolite/margolite/test/pki"
	"github.com/margolite/margolite/test/wfmsim"
	"github.com/margolite/margolite/test/wfmsim/admin"
	"github.com/margolite/margolite/test/wfmsim/mis"
	"github.com/margolite/margolite/test/wfmsim/registry"
)

// renewBefore is how long a device's certificate must still be valid at start.
const renewBefore = 30 * 24 * time.Hour

type settings struct {
	dir, listen, admin, registry, host, prefix, device, trustDomain, wfm string

	revision margo.Revision

	mis, basic, bearer, like string
	approval                 bool
}

func serveCommand(out io.Writer) command.Command {
	return command.Command{
		Name: "serve", Text: "run the WFM and its registry",
		Prepare: func(flags *command.Flags) command.Action {
			flags.More = `
The directory holds everything: the certificates of the trust domain, the
identity of one device (device.pem, device.key, trust-bundle.json), a
configuration for margolite that uses them (margolite.yaml), what was published
and reported (state.json), and the registry's content. The first start fills it;
a later start continues where the last one ended.

Devices on other machines: --listen 0.0.0.0:8443 --registry 0.0.0.0:5000
--host ADDRESS, the address by which they reach this machine; then copy the
four files to the device.

Before 1.0.0-rc.3 the server shows an ordinary certificate of an authority of its
own (ca.pem), and the device signs its requests. The server already knows it by
the id of --device; with --approval it must onboard and be approved first.

--like behaves like a WFM in the field, with all its deviations from the
standard; test/wfmsim/like.go has the table. It determines the revision.

--basic or --bearer put a gateway in front of the WFM: it shows an ordinary
certificate as well and requires these credentials on every request. --mis runs a
Margo Identity Service, with an ordinary certificate too.
`
			var s settings
			flags.StringVar(&s.dir, "dir", "", "`DIR` for all files (required)")
			flags.StringVar(&s.listen, "listen", "127.0.0.1:8443", "`ADDRESS` of the WFM")
			flags.StringVar(&s.admin, "admin", "127.0.0.1:8480", "`ADDRESS` for the other commands, on loopback")
			flags.StringVar(&s.registry, "registry", "127.0.0.1:5000", "`ADDRESS` of the registry")
			flags.StringVar(&s.host, "host", "", "`NAME` or address by which devices reach this machine")
			flags.StringVar(&s.prefix, "prefix", "", "`PATH` under which the interface is mounted, such as /a/b")
			flags.StringVar(&s.device, "device", "device-01", "`ID` of the device, and of its client")
			flags.StringVar(&s.trustDomain, "trust-domain", "wfmsim.example", "`NAME` of the trust domain")
			flags.StringVar(&s.wfm, "wfm", "wfmsim", "`ID` of the WFM")
			flags.Func("revision", "`REVISION` of the standard: 1.0.0-rc.3, which is the default, 1.0.0-rc.2 or 1.0.0-rc.1", func(text string) error {
				return s.revision.UnmarshalText([]byte(text))
			})
			flags.StringVar(&s.mis, "mis", "", "`ADDRESS` of a Margo Identity Service (default: none)")
			flags.StringVar(&s.like, "like", "",
				"`NAME` of a WFM in the field to imitate: "+strings.Join(wfmsim.LikeNames(), ", ")+"; it determines revision, prefix and URLs")
			flags.StringVar(&s.basic, "basic", "", "`USER:PASSWORD` that a gateway in front of the WFM requires")
			flags.StringVar(&s.bearer, "bearer", "", "`TOKEN` that a gateway in front of the WFM requires")
			flags.BoolVar(&s.approval, "approval", false, "onboard clients only after approval")
			return func(ctx context.Context, _ []string) error {
				if s.dir == "" {
					return command.Usagef("give --dir")
				}
				return s.serve(ctx, out)
			}
		},
	}
}

func (s settings) serve(ctx context.Context, out io.Writer) (err error) {
	if s.dir, err = filepath.Abs(s.dir); err != nil {
		return err
	}
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return fmt.Errorf("cannot create directory: %w", err)
	}
	var like wfmsim.Like
	if s.like != "" {
		if like, err = wfmsim.FindLike(s.like); err != nil {
			return command.Usagef("%v", err)
		}
		s.revision, s.prefix = like.Revision, like.Prefix
	}
	authority, files, err := s.identities()
	if err != nil {
		return err
	}
	ordinary, err := s.ordinary()
	if err != nil {
		return err
	}
	options, err := s.options(authority, ordinary)
	if err != nil {
		return err
	}
	if s.like != "" {
		like.Apply(&options)
	}
	wfm, err := wfmsim.New(options)
	if err != nil {
		return err
	}
	client := ""
	if !like.Quirks.NumberedClients {
		if client, err = s.client(wfm, files); err != nil {
			return err
		}
	}
	images, err := registry.New(registry.Options{Dir: filepath.Join(s.dir, "registry")})
	if err != nil {
		return err
	}
	listener, err := admin.Listen(s.admin)
	if err != nil {
		return err
	}
	defer listener.Close()
	if err := wfm.Start(s.listen); err != nil {
		return err
	}
	defer wfm.Close()
	if err := images.Start(s.registry); err != nil {
		return err
	}
	defer images.Close()

	service, err := s.identityService(authority, ordinary)
	if err != nil {
		return err
	}
	info := admin.Info{
		Revision:      wfm.Revision().String(),
		WFM:           "https://" + s.reachable(wfm.Address()) + s.prefix,
		Registry:      "http://" + loopback(images.Address()),
		RegistryHost:  s.reachable(images.Address()),
		DefaultClient: client,
	}
	if service != nil {
		defer service.Close()
		info.MIS = "https://" + s.reachable(service.Address()) + mis.DiscoveryPath
	}
	config := filepath.Join(s.dir, "margolite.yaml")
	configuration, err := s.configuration(info, files)
	if err != nil {
		return err
	}
	if err := os.WriteFile(config, configuration, 0o600); err != nil {
		return fmt.Errorf("cannot write configuration: %w", err)
	}
	fmt.Fprintf(out, "WFM       %s\nrevision  %s\nregistry  %s\nadmin     http://%s\n",
		info.WFM, info.Revision, info.RegistryHost, listener.Addr())
	if info.MIS != "" {
		fmt.Fprintf(out, "MIS       %s\n", info.MIS)
	}
	fmt.Fprintf(out, "config    %s\n", config)

	server := &http.Server{
		Handler: admin.Handler(admin.Servers{WFM: wfm, Registry: images, MIS: service}, func() admin.Info {
			now := info
			if devices := wfm.Devices(""); now.DefaultClient == "" && len(devices) > 0 {
				now.DefaultClient = devices[0].Client
			}
			return now
		}),
		ReadHeaderTimeout: 10 * time.Second,
		BaseContext:       func(net.Listener) context.Context { return ctx },
	}
	// Cutting off requests of the command line loses nothing.
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("cannot serve administration: %w", err)
	}
	return nil
}

func (s settings) gateway() string {
	switch {
	case s.basic != "":
		return "Basic " + base64.StdEncoding.EncodeToString([]byte(s.basic))
	case s.bearer != "":
		return "Bearer " + s.bearer
	}
	return ""
}

func (s settings) hosts() []string {
	hosts := []string{"localhost", "127.0.0.1", "::1"}
	if s.host != "" {
		hosts = append(hosts, s.host)
	}
	return hosts
}

func (s settings) options(authority *pki.Authority, ordinary *pki.ServerAuthority) (wfmsim.Options, error) {
	o := wfmsim.Options{
		Revision: s.revision,
		ID:       identity.ID{TrustDomain: s.trustDomain, WFM: s.wfm},
		Bundle:   authority.Bundle(),
		Root:     ordinary.RootPEM(),
		Approval: s.approval,
		Prefix:   s.prefix,
		File:     filepath.Join(s.dir, "state.json"),
		Logger:   slog.New(slog.NewTextHandler(os.Stderr, nil)),
	}
	if header := s.gateway(); header != "" {
		o.Authorization = map[string]string{header: s.device}
	}
	certificate, err := ordinary.IssueServer(s.hosts())
	if err != nil {
		return o, err
	}
	if o.Revision != margo.RC3 || o.Authorization != nil {
		o.SVID = certificate.TLS()
		return o, nil
	}
	svid, err := authority.IssueWFM(s.wfm)
	if err != nil {
		return o, err
	}
	o.SVID = svid.TLS()
	return o, nil
}

// client onboards the device unless that needs approval, and returns its client id.
func (s settings) client(wfm *wfmsim.Server, files pki.Files) (string, error) {
	if wfm.Revision() == margo.RC3 {
		return s.device, nil
	}
	chain, err := readChain(files.Certificate)
	if err != nil || len(chain) == 0 {
		return "", fmt.Errorf("cannot read the device's certificate: %w", err)
	}
	if s.approval {
		return wfmsim.ClientID(chain[0]), nil
	}
	return s.device, wfm.Enroll(s.device, chain[0])
}

func (s settings) identityService(authority *pki.Authority, ordinary *pki.ServerAuthority) (*mis.Server, error) {
	if s.mis == "" {
		return nil, nil
	}
	certificate, err := ordinary.IssueServer(s.hosts())
	if err != nil {
		return nil, err
	}
	service, err := mis.New(mis.Options{TrustDomain: s.trustDomain, Bundle: authority.Bundle(), Certificate: certificate.TLS()})
	if err != nil {
		return nil, err
	}
	return service, service.Start(s.mis)
}

// ordinary loads or creates the authority of ordinary certificates, and writes its root.
func (s settings) ordinary() (*pki.ServerAuthority, error) {
	authority, err := kept(filepath.Join(s.dir, "server-authority.pem"),
		func(text []byte) (*pki.ServerAuthority, error) { return pki.ParseServerAuthority(text, time.Now()) },
		func() (*pki.ServerAuthority, error) { return pki.NewServerAuthority("wfmsim", time.Now()) })
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(s.ca(), authority.RootPEM(), 0o644); err != nil {
		return nil, fmt.Errorf("cannot write root: %w", err)
	}
	return authority, nil
}

// kept loads the authority in a file, or creates and saves one.
func kept[A interface{ PEM() ([]byte, error) }](file string, parse func([]byte) (A, error), create func() (A, error)) (authority A, err error) {
	text, err := os.ReadFile(file)
	if err == nil {
		authority, err = parse(text)
	} else if errors.Is(err, fs.ErrNotExist) {
		if authority, err = create(); err == nil {
			text, err = authority.PEM()
		}
		if err == nil {
			err = os.WriteFile(file, text, 0o600)
		}
	}
	if err != nil {
		return authority, fmt.Errorf("cannot keep authority: %w", err)
	}
	return authority, nil
}

// ca is the file with the root of ordinary certificates.
func (s settings) ca() string { return filepath.Join(s.dir, "ca.pem") }

// identities loads or creates the trust domain and the device's files.
func (s settings) identities() (*pki.Authority, pki.Files, error) {
	authority, err := kept(filepath.Join(s.dir, "authority.pem"),
		func(text []byte) (*pki.Authority, error) { return pki.ParseAuthority(s.trustDomain, text, time.Now()) },
		func() (*pki.Authority, error) { return pki.NewAuthority(s.trustDomain, time.Now()) })
	if err != nil {
		return nil, pki.Files{}, err
	}
	files := pki.Files{
		Certificate: filepath.Join(s.dir, "device.pem"),
		Key:         filepath.Join(s.dir, "device.key"),
		TrustBundle: filepath.Join(s.dir, "trust-bundle.json"),
	}
	if s.stillGood(files.Certificate, authority) {
		return authority, files, nil
	}
	svid, err := authority.IssueClient(s.wfm, s.device)
	if err != nil {
		return nil, files, err
	}
	files, err = pki.WriteFiles(s.dir, svid, authority.Bundle())
	return authority, files, err
}

// stillGood reports whether the device's certificate is its own and valid for long enough.
func (s settings) stillGood(file string, authority *pki.Authority) bool {
	chain, err := readChain(file)
	if err != nil {
		return false
	}
	id, err := pki.VerifyClient(chain, authority.Bundle(), s.trustDomain, time.Now().Add(renewBefore))
	return err == nil && id == identity.ID{TrustDomain: s.trustDomain, WFM: s.wfm, Client: s.device}
}

func readChain(file string) ([]*x509.Certificate, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	return pemfile.Certificates(text, 10)
}

func (s settings) configuration(info admin.Info, files pki.Files) ([]byte, error) {
	type section map[string]any
	wfm := section{"url": info.WFM}
	older, gateway := s.revision != margo.RC3, s.gateway() != ""
	if older {
		wfm["revision"] = info.Revision
	}
	if older || !gateway {
		wfm["certificate"], wfm["key"] = files.Certificate, files.Key
	}
	if !older && !gateway && info.MIS == "" {
		wfm["trustBundle"] = files.TrustBundle
	}
	if older || gateway {
		wfm["ca"] = s.ca()
	}
	if gateway {
		kind, value := "basic", s.basic
		if s.basic == "" {
			kind, value = "bearer", s.bearer
		}
		file := filepath.Join(s.dir, "credentials")
		if err := os.WriteFile(file, []byte(value+"\n"), 0o600); err != nil {
			return nil, fmt.Errorf("cannot write credentials: %w", err)
		}
		wfm["authorization"] = section{kind: file}
	}
	if info.MIS != "" {
		wfm["identityService"] = section{"discovery": info.MIS, "ca": s.ca()}
	}
	text, err := yaml.Marshal(section{
		"device":     section{"id": s.device},
		"wfm":        wfm,
		"poll":       section{"interval": "5s"},
		"registries": section{info.RegistryHost: section{"plainHTTP": true}},
	})
	return append(fmt.Appendf(nil, "# Written by wfmsim at every start. Use it with\n#   margolite run --config %s\n", filepath.Join(s.dir, "margolite.yaml")), text...), err
}

// reachable returns an address of ours as devices use it.
func (s settings) reachable(address string) string {
	_, port, err := net.SplitHostPort(address)
	if err != nil || s.host == "" {
		return loopback(address)
	}
	return net.JoinHostPort(s.host, port)
}

// loopback is an address of ours on this machine: 127.0.0.1 if it listens on all.
func loopback(address string) string {
	host, port, err := net.SplitHostPort(address)
	if ip := net.ParseIP(host); err != nil || ip == nil || !ip.IsUnspecified() {
		return address
	}
	return net.JoinHostPort("127.0.0.1", port)
}
