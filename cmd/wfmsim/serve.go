package main

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/margolite/margolite/agent/identity"
	"github.com/margolite/margolite/test/pki"
	"github.com/margolite/margolite/test/wfmsim"
	"github.com/margolite/margolite/test/wfmsim/admin"
	"github.com/margolite/margolite/test/wfmsim/registry"
)

// renewBefore is how long a device's certificate has to be good for at start.
const renewBefore = 30 * 24 * time.Hour

// settings of a wfmsim.
type settings struct {
	dir, listen, admin, registry, host, prefix, device, trustDomain, wfm string
}

func serveCommand() command {
	return command{
		name: "serve", summary: "run the WFM and its registry",
		help: `
The directory holds everything: the certificates of the trust domain, the
identity of one device (device.pem, device.key, trust-bundle.json), a
configuration for margolite that uses them (margolite.yaml), what was published
and reported (state.json), and the registry's content. It is filled at the first
start; a later start goes on where the last one ended.

Devices on other machines: --listen 0.0.0.0:8443 --registry 0.0.0.0:5000
--host ADDRESS, the address by which they reach this machine; then copy the
four files to the device.
`,
		prepare: func(flags *flag.FlagSet) action {
			var s settings
			flags.StringVar(&s.dir, "dir", "", "`DIR` for everything that is kept (needed)")
			flags.StringVar(&s.listen, "listen", "127.0.0.1:8443", "`ADDRESS` of the WFM")
			flags.StringVar(&s.admin, "admin", "127.0.0.1:8480", "`ADDRESS` for the other commands, on loopback")
			flags.StringVar(&s.registry, "registry", "127.0.0.1:5000", "`ADDRESS` of the registry")
			flags.StringVar(&s.host, "host", "", "`NAME` or address by which devices reach this machine")
			flags.StringVar(&s.prefix, "prefix", "", "`PATH` under which the interface is mounted, as /a/b")
			flags.StringVar(&s.device, "device", "device-01", "`ID` of the device, and of its client")
			flags.StringVar(&s.trustDomain, "trust-domain", "wfmsim.example", "`NAME` of the trust domain")
			flags.StringVar(&s.wfm, "wfm", "wfmsim", "`ID` of the WFM")
			return func(ctx context.Context, args []string, out io.Writer) error {
				if err := noArguments(args); err != nil {
					return err
				}
				if s.dir == "" {
					return usageError{"--dir is needed"}
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
	authority, files, err := s.identities()
	if err != nil {
		return err
	}
	svid, err := authority.IssueWFM(s.wfm)
	if err != nil {
		return err
	}
	wfm, err := wfmsim.New(wfmsim.Options{
		ID:     identity.ID{TrustDomain: s.trustDomain, WFM: s.wfm},
		SVID:   svid.TLS(),
		Bundle: authority.Bundle(),
		Prefix: s.prefix,
		File:   filepath.Join(s.dir, "state.json"),
		Logger: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	})
	if err != nil {
		return err
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

	info := admin.Info{
		WFM:           "https://" + s.reachable(wfm.Address()) + s.prefix,
		Registry:      "http://" + loopback(images.Address()),
		RegistryHost:  s.reachable(images.Address()),
		DefaultClient: s.device,
		Clients:       []string{s.device},
	}
	config := filepath.Join(s.dir, "margolite.yaml")
	if err := os.WriteFile(config, s.configuration(info, files), 0o600); err != nil {
		return fmt.Errorf("cannot write configuration: %w", err)
	}
	fmt.Fprintf(out, "WFM       %s\nregistry  %s\nadmin     http://%s\nconfig    %s\n", info.WFM, info.RegistryHost, listener.Addr(), config)

	server := &http.Server{
		Handler:           admin.Handler(wfm, images, func() admin.Info { return info }),
		ReadHeaderTimeout: 10 * time.Second,
		BaseContext:       func(net.Listener) context.Context { return ctx },
	}
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		<-ctx.Done()
		_ = server.Close() // nothing is lost with a request of the command line
	}()
	err = server.Serve(listener)
	if !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("cannot serve administration: %w", err)
	}
	<-stopped
	return nil
}

// identities brings back the trust domain and the device's files, or makes them.
func (s settings) identities() (*pki.Authority, pki.Files, error) {
	name := filepath.Join(s.dir, "authority.pem")
	authority, err := s.authority(name)
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

func (s settings) authority(name string) (*pki.Authority, error) {
	text, err := os.ReadFile(name)
	if err == nil {
		return pki.ParseAuthority(s.trustDomain, text, time.Now())
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("cannot read authority: %w", err)
	}
	authority, err := pki.NewAuthority(s.trustDomain, time.Now())
	if err != nil {
		return nil, err
	}
	text, err = authority.PEM()
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(name, text, 0o600); err != nil {
		return nil, fmt.Errorf("cannot keep authority: %w", err)
	}
	return authority, nil
}

// stillGood says whether the device's certificate is this device's and will be
// good for a while. Everything else is a reason to issue a new one.
func (s settings) stillGood(file string, authority *pki.Authority) bool {
	text, err := os.ReadFile(file)
	if err != nil {
		return false
	}
	var chain []*x509.Certificate
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		certificate, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return false
		}
		chain = append(chain, certificate)
	}
	_, err = identity.Verify(chain, identity.Policy{
		Bundle:      authority.Bundle(),
		TrustDomain: s.trustDomain,
		Role:        identity.RoleClient,
		ID:          identity.ID{TrustDomain: s.trustDomain, WFM: s.wfm, Client: s.device}.String(),
		At:          time.Now().Add(renewBefore),
	})
	return err == nil
}

// configuration is what margolite needs to work with this WFM.
func (s settings) configuration(info admin.Info, files pki.Files) []byte {
	text := &strings.Builder{}
	fmt.Fprintf(text, `# Written by wfmsim at every start. Use it with
#   margolite run --config %s
device:
  id: %s
wfm:
  url: %s
  certificate: %s
  key: %s
  trustBundle: %s
poll:
  interval: 5s
registries:
  %s:
    plainHTTP: true
`, filepath.Join(s.dir, "margolite.yaml"), strconv.Quote(s.device), strconv.Quote(info.WFM),
		strconv.Quote(files.Certificate), strconv.Quote(files.Key), strconv.Quote(files.TrustBundle),
		strconv.Quote(info.RegistryHost))
	return []byte(text.String())
}

// reachable is an address of ours as devices name it.
func (s settings) reachable(address string) string {
	_, port, err := net.SplitHostPort(address)
	if err != nil || s.host == "" {
		return loopback(address)
	}
	return net.JoinHostPort(s.host, port)
}

// loopback is an address of ours as this machine names it: who listens on all
// addresses is reached at 127.0.0.1.
func loopback(address string) string {
	host, port, err := net.SplitHostPort(address)
	if ip := net.ParseIP(host); err != nil || ip == nil || !ip.IsUnspecified() {
		return address
	}
	return net.JoinHostPort("127.0.0.1", port)
}
