package image

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/margolite/margolite/runtime/fault"
	"github.com/margolite/margolite/runtime/pgp"
	"github.com/margolite/margolite/runtime/registry"
	"github.com/margolite/margolite/runtime/tree"
)

// Source is the location of a package outside of a registry (PKG-15).
type Source struct {
	Package string // http or https URL
	// Keys is the URL of OpenPGP keys, one of which must sign; "": none. Options.Keys replace it.
	Keys string
}

// Location downloads a package, and verifies its signature if one is required. The standard does not
// say where that is: here beside the package, with .asc or else .sig after its name.
//
// Without a signature, integrity rests on TLS: plain HTTP needs a host configured for it. Authorities
// and credentials come from the registry configuration of each host.
func (i *Images) Location(ctx context.Context, from Source, l ArtifactLimits, progress func(Progress)) (data []byte, err error) {
	object := withoutQuery(from.Package)
	defer func() { err = fail(object, err) }()
	m := newMeter(object, progress, new(sync.Mutex))
	if from.Keys == "" && len(i.o.Keys) == 0 {
		return i.download(ctx, from.Package, l.Size, m)
	}
	// Small files first: without them, a big download would be in vain.
	if err := pgp.Find(); err != nil {
		return nil, err
	}
	keys, err := i.keysOf(ctx, from)
	if err != nil {
		return nil, err
	}
	signature, err := i.signatureOf(ctx, from.Package)
	if err != nil {
		return nil, err
	}
	if data, err = i.download(ctx, from.Package, l.Size, m); err != nil {
		return nil, err
	}
	signer, err := keys.Verify(ctx, signature, data)
	if err != nil {
		return nil, err
	}
	i.o.Logger.Info("signature of package verified", "package", object, "key", signer)
	return data, nil
}

func (i *Images) keysOf(ctx context.Context, from Source) (pgp.Keys, error) {
	if len(i.o.Keys) > 0 {
		return ReadKeys(i.o.Keys...)
	}
	data, err := i.download(ctx, from.Keys, pgp.MaxKeys, silent())
	if err != nil {
		return pgp.Keys{}, partly(from.Keys, err)
	}
	keys, err := pgp.ParseKeys(data)
	return keys, partly(from.Keys, err)
}

// ReadKeys reads files of OpenPGP public keys.
func ReadKeys(files ...string) (pgp.Keys, error) {
	return readKeys(files, pgp.MaxKeys, pgp.ParseKeys)
}

func readKeys[K interface{ With(K) K }](files []string, most int64, parse func([]byte) (K, error)) (all K, err error) {
	for _, file := range files {
		data, err := tree.ReadFile(file, most)
		if err != nil {
			return *new(K), fmt.Errorf("cannot read keys: %w", err)
		}
		keys, err := parse(data)
		if err != nil {
			return *new(K), &fault.Error{Code: fault.Internal, Err: fmt.Errorf("cannot read keys: %s: %w", file, err)}
		}
		all = all.With(keys)
	}
	return all, nil
}

func (i *Images) signatureOf(ctx context.Context, location string) (pgp.Signature, error) {
	code := fault.NotFound
	path := withoutQuery(location)
	for _, suffix := range []string{".asc", ".sig"} {
		beside := path + suffix + location[len(path):]
		data, err := i.download(ctx, beside, pgp.MaxSignature, silent())
		switch got := codeOf(err); {
		case err == nil:
			signature, err := pgp.ParseSignature(data)
			return signature, partly(beside, err)
		case got == fault.Denied: // which is how some answer for what they do not have
			code = fault.Denied
		case got != fault.NotFound:
			return pgp.Signature{}, partly(beside, err)
		}
	}
	return pgp.Signature{}, &fault.Error{Code: code, Err: errors.New("it must be signed, but there is no signature beside it, with .asc or .sig after its name")}
}

// partly names the other file without which a package could not be fetched.
func partly(part string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", withoutQuery(part), err)
}

// withoutQuery is a URL without its query, which may hold a secret.
func withoutQuery(location string) string {
	shown, _, _ := strings.Cut(location, "?")
	return shown
}

// silent is a meter for files too small to report.
func silent() *meter { return newMeter("", nil, new(sync.Mutex)) }

func (i *Images) download(ctx context.Context, location string, most int64, m *meter) (data []byte, err error) {
	u, err := url.Parse(location)
	if err != nil || u.Host == "" || (u.Scheme != "https" && u.Scheme != "http") || u.User != nil {
		return nil, bad(errors.New("not an http or https URL without credentials"))
	}
	has := run{of: m}
	err = host{name: u.Host, network: true, images: i}.transfer(ctx, "", &has, func(_ context.Context, receive receiver) error {
		return receive(func(ctx context.Context, came *atomic.Int64) (err error) {
			data, err = i.downloadOnce(ctx, u, most, &has, came)
			return err
		})
	})
	if err != nil {
		return nil, err
	}
	return data, nil
}

func (i *Images) downloadOnce(ctx context.Context, u *url.URL, most int64, has *run, came *atomic.Int64) ([]byte, error) {
	client, err := i.httpClient(u.Host)
	if err != nil {
		return nil, err
	}
	client.CheckRedirect = registry.Redirect
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, bad(err)
	}
	user, secret, err := i.o.Registries[u.Host].credentials(u.Host, strings.Trim(u.Path, "/"))
	if err != nil {
		return nil, err
	}
	if user != "" {
		request.SetBasicAuth(user, secret)
	}
	answer, err := client.Do(request)
	if err != nil {
		return nil, remote{err}
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return nil, &fault.Error{Code: codeOfStatus(answer.StatusCode), Err: fmt.Errorf("server answered %s", answer.Status)}
	}
	if strings.HasPrefix(strings.ToLower(answer.Header.Get("Content-Type")), "text/html") { // of a captive portal, or a proxy
		return nil, remote{registry.ErrPage}
	}
	tooBig := bad(fmt.Errorf("it has more than %d bytes", most))
	if answer.ContentLength > most {
		return nil, tooBig
	}
	has.set(0, max(answer.ContentLength, 0))
	var data bytes.Buffer
	_, err = io.Copy(io.MultiWriter(&data, has), io.LimitReader(counted{answer.Body, came}, most+1))
	if err == nil && int64(data.Len()) > most {
		err = tooBig
	}
	return data.Bytes(), err
}
