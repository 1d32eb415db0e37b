package image

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
)

// maxPackageRedirects bounds the way to a package.
const maxPackageRedirects = 5

// Location downloads a package that is named by a URL alone (PKG-15). Its integrity rests on TLS: plain HTTP only works
// with hosts that are configured for it. The authorities and credentials of the host's registry configuration are used.
func (i *Images) Location(ctx context.Context, location string, l ArtifactLimits, progress func(Progress)) ([]byte, error) {
	object, _, _ := strings.Cut(location, "?") // the query may hold a secret
	data, err := i.download(ctx, location, l, newMeter(object, progress, new(sync.Mutex)))
	return data, fail(object, err)
}

func (i *Images) download(ctx context.Context, location string, l ArtifactLimits, m *meter) ([]byte, error) {
	u, err := url.Parse(location)
	if err != nil || u.Host == "" || (u.Scheme != "https" && u.Scheme != "http") || u.User != nil {
		return nil, bad(errors.New("not an http or https URL without credentials"))
	}
	client, err := i.httpClient(u.Host)
	if err != nil {
		return nil, err
	}
	defer client.CloseIdleConnections()
	client.CheckRedirect = func(_ *http.Request, via []*http.Request) error {
		if len(via) > maxPackageRedirects {
			return errors.New("too many redirects")
		}
		return nil
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, location, nil)
	if err != nil {
		return nil, bad(err)
	}
	if file := i.registries[u.Host].Credentials; file != "" {
		user, secret, err := readCredentials(file, u.Host)
		if err != nil {
			return nil, err
		}
		if user != "" {
			request.SetBasicAuth(user, secret)
		}
	}
	answer, err := client.Do(request)
	if err != nil {
		return nil, remote{err}
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return nil, &Error{Kind: kindOfStatus(answer.StatusCode), Err: fmt.Errorf("server answered %s", answer.Status)}
	}
	tooBig := bad(fmt.Errorf("package is bigger than %d bytes", l.Size))
	if answer.ContentLength > l.Size {
		return nil, tooBig
	}
	m.expect(max(answer.ContentLength, 0))
	data, err := readCounted(answer.Body, l.Size, m)
	if err != nil {
		return nil, err
	}
	if int64(len(data)) > l.Size {
		return nil, tooBig
	}
	return data, nil
}
