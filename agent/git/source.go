package git

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/agent/wfm"
)

// Options configure a Source.
type Options struct {
	// URL of the repository: https, or git+https for the same.
	URL    string
	Branch string // empty: main
	// Path is the folder of the documents in the repository, with slashes; empty: the whole tree.
	Path string
	// Groups are more such folders, one per group that the device is a member of.
	Groups []string
	// Token returns the access token; it is called each time, since tokens are rotated (AUTH-12);
	// nil: none is needed. It is the token alone, "user:password" if the server requires a name, or
	// a whole Authorization value, "Bearer ..." or "Basic ...".
	Token func() (string, error)
	// CA is a file of PEM anchors for the server's certificate; empty: those of git.
	CA string
	// Certificate and Key are PEM files that authenticate the device to the server; empty: none.
	Certificate, Key string
	// Dir is the work folder, a cache of this Source only. It is created with mode 0700.
	Dir string
	// Limits bound the device's work. Bundle bounds the packed last commits of the branch: the work
	// folder may briefly hold three times that. Expanded bounds all YAML files below the folders,
	// Entries the files of every kind below one folder.
	Limits wfm.Limits
	// Timeout bounds the look-up of the branch, and a transfer's slow phases; 0: 30 s.
	Timeout time.Duration
	Logger  *slog.Logger     // receives warnings about tolerated problems
	Now     func() time.Time // the present, to warn about commits from the future
}

// commitTime bounds the whole work on a new commit.
const commitTime = 10 * time.Minute

// lowSpeed is the slowest acceptable transfer in bytes per second.
const lowSpeed = "1000"

// errSlow: the server or git did not finish in time.
var errSlow = errors.New("took too long")

// Source is the desired state in the folders of one branch. It is safe for concurrent use, and must
// be the only user of its work folder.
type Source struct {
	options     Options // with the defaults filled in
	url, origin string
	folder      string
	folders     []string // Path and Groups

	mu  sync.Mutex
	git program // path is empty until it was found

	// refused is the last commit with unacceptable content, which polls do not fetch again.
	refused struct {
		commit string
		err    error
	}
}

// New makes no request and writes nothing. A missing git shows on first use, and with Check.
func New(o Options) (*Source, error) {
	u, err := margo.HTTPS(strings.TrimPrefix(o.URL, "git+"))
	switch {
	case err != nil:
		return nil, fmt.Errorf("cannot use the repository's URL: %w", err)
	case u.RawQuery != "":
		return nil, fmt.Errorf("cannot use repository URL %q: want no query", u.Redacted())
	case o.Dir == "":
		return nil, errors.New("cannot use a repository without a work folder")
	}
	o.Branch = cmp.Or(o.Branch, "main")
	if !isBranch(o.Branch) {
		return nil, fmt.Errorf("cannot use branch %q: not the name of a branch", o.Branch)
	}
	folder := strings.Trim(o.Path, "/")
	if folder != "" && !isFolder(folder) {
		return nil, fmt.Errorf("cannot use path %q: want a folder of the repository such as devices/gw-07", o.Path)
	}
	folders := []string{folder}
	for _, group := range o.Groups {
		group = strings.Trim(group, "/")
		for _, other := range folders {
			if !isFolder(group) || other == "" || strings.HasPrefix(group+"/", other+"/") || strings.HasPrefix(other+"/", group+"/") {
				return nil, fmt.Errorf("cannot use group %q: want a folder such as groups/line-2 beside the path, which is %q, and those of other groups", group, folder)
			}
		}
		folders = append(folders, group)
	}
	dir, err := filepath.Abs(o.Dir)
	if err != nil {
		return nil, fmt.Errorf("cannot use work folder %s: %w", o.Dir, err)
	}
	o.Dir, o.Limits, o.Timeout = dir, o.Limits.WithDefaults(), cmp.Or(o.Timeout, 30*time.Second)
	return &Source{
		options: o, url: u.String(), origin: "https://" + u.Host + "/", folder: folder, folders: folders,
		git: program{home: filepath.Join(dir, homeName)},
	}, nil
}

// isBranch accepts a stricter form of branch names than git.
func isBranch(name string) bool {
	if len(name) > 200 || !isPlain(name) || strings.ContainsAny(name, " ~^:?*[\\") ||
		strings.Contains(name, "..") || strings.Contains(name, "@{") {
		return false
	}
	for part := range strings.SplitSeq(name, "/") {
		if part == "" || part[0] == '.' || part[0] == '-' ||
			strings.HasSuffix(part, ".lock") || strings.HasSuffix(part, ".") {
			return false
		}
	}
	return true
}

func isFolder(s string) bool { return s != "." && fs.ValidPath(s) && isPlain(s) }

func isPlain(s string) bool {
	return strings.IndexFunc(s, func(c rune) bool { return c < ' ' || c == 0x7F || c == '\uFFFD' }) < 0
}

// Scope names what the manifests of this source belong to: those of other repositories, branches or
// folders do not compare with them.
func (s *Source) Scope() string {
	scope := "git+" + s.url + "#" + s.options.Branch
	if s.folder != "" {
		scope += ":" + strings.Join(s.folders, ",")
	}
	return scope
}

// Manifest polls the desired state. If the branch is still at the commit of the caller's etag, the
// error is wfm.ErrNotModified. The caller decides whether to accept the version.
func (s *Source) Manifest(ctx context.Context, etag string) (*wfm.Manifest, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ctx, cancel := context.WithTimeoutCause(ctx, commitTime, errSlow)
	defer cancel()

	a, err := s.begin(ctx)
	if err != nil {
		return nil, err
	}
	commit, err := s.tip(ctx, a)
	switch {
	case err != nil:
		return nil, err
	case etag == quote(commit):
		return nil, wfm.ErrNotModified
	case s.refused.commit == commit:
		return nil, s.refused.err
	}

	var m *wfm.Manifest
	commit, err = s.using(ctx, commit, s.held(ctx) == commit, a, func(commit string) (err error) {
		m, err = s.read(ctx, commit)
		return err
	})
	if damaged(ctx, err) {
		err = refused("repository", "cannot be read even after fetching it again: %v", err)
		err = fmt.Errorf("cannot accept commit %s: %w", commit, err)
	}
	if err != nil && isRefusal(err) {
		s.refused.commit, s.refused.err = commit, err
	}
	return m, err
}

// Tip returns the branch's commit on the server, and fetches nothing.
func (s *Source) Tip(ctx context.Context) (commit string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a, err := s.begin(ctx)
	if err != nil {
		return "", err
	}
	return s.tip(ctx, a)
}

func (s *Source) begin(ctx context.Context) (access, error) {
	if err := s.prepare(); err != nil {
		return access{}, err
	}
	if s.git.path == "" {
		if err := s.git.find(ctx); err != nil {
			return access{}, err
		}
	}
	return s.access()
}

func (s *Source) access() (access, error) {
	a := access{settings: []setting{
		{"http.lowSpeedLimit", lowSpeed},
		{"http.lowSpeedTime", fmt.Sprint(max(1, int(s.options.Timeout/time.Second)))},
	}}
	if s.options.CA != "" {
		// Without the second one, some builds of libcurl also trust the system's anchors.
		a.settings = append(a.settings, setting{"http.sslCAInfo", s.options.CA}, setting{"http.sslCAPath", s.git.home})
	}
	if s.options.Certificate != "" {
		a.settings = append(a.settings, setting{"http.sslCert", s.options.Certificate}, setting{"http.sslKey", s.options.Key})
	}
	if s.options.Token == nil {
		return a, nil
	}
	token, err := s.options.Token()
	if err != nil {
		return access{}, &Error{NoToken, "read the access token", err}
	}
	authorization, secret, err := authorize(token)
	if err != nil {
		return access{}, &Error{NoToken, "use the access token", err}
	}
	header := setting{"http." + s.origin + ".extraHeader", "Authorization: " + authorization}
	return access{append(a.settings, header), secret}, nil
}

// maxToken bounds a token; JSON Web Tokens can be long.
const maxToken = 8 << 10

// anyUser is the user name sent with a token: one service requires it, the others accept any.
const anyUser = "x-access-token"

// authorize returns the Authorization header for a token, see Options.Token.
func authorize(token string) (header string, secret []string, err error) {
	token = strings.TrimSpace(token)
	for _, c := range []byte(token) {
		if c < ' ' || c > '~' {
			return "", nil, errors.New("it is not one line of printable characters")
		}
	}
	scheme, rest, explicit := strings.Cut(token, " ")
	switch {
	case token == "":
		return "", nil, errors.New("it is empty")
	case len(token) > maxToken:
		return "", nil, fmt.Errorf("it has more than %d bytes", maxToken)
	case explicit && (strings.EqualFold(scheme, "Bearer") || strings.EqualFold(scheme, "Basic")):
		return token, []string{token, strings.TrimSpace(rest)}, nil
	}
	user, password, ok := strings.Cut(token, ":")
	if !ok {
		user, password = anyUser, token
	}
	encoded := base64.StdEncoding.EncodeToString([]byte(user + ":" + password))
	return "Basic " + encoded, []string{token, password, encoded}, nil
}

func quote(commit string) string { return `"` + commit + `"` }

func (s *Source) read(ctx context.Context, commit string) (*wfm.Manifest, error) {
	version, made, err := s.version(ctx, commit)
	var files []entry
	if err == nil {
		files, err = s.files(ctx, commit)
	}
	var refs []margo.DeploymentRef
	if err == nil {
		refs, err = s.deployments(ctx, files)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot accept commit %s: %w", commit, err)
	}
	m := &margo.StateManifest{Version: version, Deployments: refs}
	raw, err := json.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("cannot create a manifest for commit %s: %w", commit, err)
	}
	if ahead := time.Unix(int64(made), 0).Sub(s.options.Now()); ahead > 24*time.Hour {
		s.options.Logger.Warn("a commit is dated in the future; older commits are refused until then", "commit", commit, "ahead", ahead)
	}
	return &wfm.Manifest{StateManifest: m, Raw: raw, ETag: quote(commit), Digest: digest.FromBytes(raw)}, nil
}

// blob and the object's id form a document's URL in a manifest, which no later commit can change.
const blob = "blob/"

// deployments reads the files and returns references to the deployments among them, ordered by id.
func (s *Source) deployments(ctx context.Context, files []entry) ([]margo.DeploymentRef, error) {
	objects := make([]string, len(files))
	for i, e := range files {
		objects[i] = e.id
	}
	refs := []margo.DeploymentRef{}
	paths := make(map[string]string)
	err := s.objects(ctx, objects, func(i int, body []byte) error {
		e := files[i]
		id, err := margo.FindDeployment(body)
		if err != nil {
			return fmt.Errorf("%s: %w", margo.Shown(e.path, 200), err)
		}
		if id == "" {
			s.options.Logger.Debug("a file is not an application deployment", "path", e.path)
			return nil
		}
		key := strings.ToLower(id)
		if before, twice := paths[key]; twice {
			return refused(e.path, "has the deployment id %s, like %s [DS-17]", id, margo.Shown(before, 200))
		}
		paths[key] = e.path
		if len(refs) == margo.MaxDeployments {
			return fmt.Errorf("%w: more than %d deployments", wfm.ErrTooLarge, margo.MaxDeployments)
		}
		refs = append(refs, margo.DeploymentRef{ID: id, Digest: digest.FromBytes(body), SizeBytes: uint64(e.size), URL: blob + e.id})
		return nil
	})
	sort.SliceStable(refs, func(i, j int) bool { return strings.ToLower(refs[i].ID) < strings.ToLower(refs[j].ID) })
	return refs, err
}

// Documents calls keep for each needed document of a manifest that Manifest returned: once per
// digest, verified, one at a time. It stops at an error of keep. wfm.ErrSuperseded: the local copy
// is lost and the branch has moved on.
func (s *Source) Documents(
	ctx context.Context, m *wfm.Manifest, need []margo.DeploymentRef, keep func(digest.Digest, []byte) error,
) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	ctx, cancel := context.WithTimeoutCause(ctx, commitTime, errSlow)
	defer cancel()

	var ids []string
	var digests []digest.Digest
	seen := make(map[digest.Digest]bool, len(need))
	for _, ref := range need {
		id := strings.TrimPrefix(ref.URL, blob)
		if !isObjectID(id) {
			return fmt.Errorf("cannot get document %s of deployment %s: it is not from a repository", ref.Digest, ref.ID)
		}
		if !seen[ref.Digest] {
			seen[ref.Digest] = true
			ids, digests = append(ids, id), append(digests, ref.Digest)
		}
	}
	a, err := s.begin(ctx)
	if err != nil {
		return err
	}
	commit := strings.Trim(m.ETag, `"`)
	done := 0
	_, err = s.using(ctx, commit, true, a, func(now string) error {
		if now != commit {
			return wfm.ErrSuperseded
		}
		return s.objects(ctx, ids[done:], func(_ int, body []byte) error {
			d := digests[done]
			if digest.FromBytes(body) != d {
				return fmt.Errorf("cannot use document %s: %w", d, wfm.ErrDigestMismatch)
			}
			done++
			return keep(d, body)
		})
	})
	if damaged(ctx, err) {
		return fmt.Errorf("cannot get the documents of commit %s: %w", commit, wfm.ErrSuperseded)
	}
	return err
}
