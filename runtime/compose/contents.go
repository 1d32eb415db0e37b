package compose

import (
	"cmp"
	"fmt"
	"path"
	"strconv"

	"github.com/compose-spec/compose-go/v2/types"
)

const (
	maxContent  = 1 << 20  // bytes of one config or secret
	maxContents = 8 << 20  // bytes of all of one service
	maxHeld     = 32 << 20 // bytes of files that a project holds in memory
)

func (f File) section() string {
	if f.Secret {
		return "secrets"
	}
	return "configs"
}

func (r *resolver) fileObjects(s *Service, c types.ServiceConfig) {
	for _, w := range c.Configs {
		config, defined := r.project.Compose.Configs[w.Source]
		r.fileObject(s, File{Name: w.Source}, types.FileReferenceConfig(w), types.FileObjectConfig(config), defined)
	}
	for _, w := range c.Secrets {
		secret, defined := r.project.Compose.Secrets[w.Source]
		r.fileObject(s, File{Name: w.Source, Secret: true}, types.FileReferenceConfig(w), types.FileObjectConfig(secret), defined)
	}
	size := 0
	for _, f := range s.Files {
		size += len(f.Content)
	}
	if size > maxContents {
		r.refuse("configs", "and secrets have %d bytes; a container can have at most %d", size, maxContents)
	}
	sortBy(s.Files, func(a, b File) int { return cmp.Compare(a.Target, b.Target) })
}

func (r *resolver) fileObject(s *Service, f File, w types.FileReferenceConfig, object types.FileObjectConfig, defined bool) {
	section := f.section()
	if !defined {
		r.refuse(section, "names %q, which is not defined under the top-level %s", w.Source, section)
		return
	}
	content := r.content(section+"."+w.Source, object)
	if content == nil {
		return
	}
	target, dir := cmp.Or(w.Target, w.Source), "/"
	if f.Secret {
		dir = "/run/secrets"
	}
	if !path.IsAbs(target) {
		target = dir + "/" + target
	}
	f.Target = r.target(section, target)
	f.UID, f.GID = r.id(section+".uid", w.UID), r.id(section+".gid", w.GID)
	f.Mode = 0o444
	if w.Mode != nil {
		if *w.Mode < 0 || *w.Mode > 0o7777 {
			r.refuse(section+".mode", "is %s, which is not a file mode", w.Mode)
		} else {
			f.Mode = uint32(*w.Mode)
		}
	}
	f.Content = content
	s.Files = append(s.Files, f)
}

func (r *resolver) id(key, written string) uint32 {
	id, err := strconv.ParseUint(cmp.Or(written, "0"), 10, 31)
	if err != nil {
		r.refuse(key, "%.80q is not a number", written)
	}
	return uint32(id)
}

// content reads a config or secret, once; nil: it is refused.
func (r *resolver) content(key string, object types.FileObjectConfig) []byte {
	content, read := r.contents[key]
	if !read {
		content = r.readContent(key, object)
		r.contents[key] = content
	}
	return content
}

func (r *resolver) readContent(key string, object types.FileObjectConfig) []byte {
	if object.File != "" {
		content, err := r.hold(object.File, maxContent)
		if err != nil {
			r.failures = append(r.failures, fmt.Errorf("%s: %w", key, err))
			return nil
		}
		return content
	}
	// compose-go took the content from the variables of the file that defines it.
	if object.Environment != "" {
		if _, set := r.variable(object.Environment); !set && object.Content == "" {
			r.findings.add("", key+".environment", "names %q, which nothing sets", object.Environment)
			return nil
		}
	}
	if len(object.Content) > maxContent {
		r.findings.add("", key, "has %d bytes; the limit is %d", len(object.Content), maxContent)
		return nil
	}
	return []byte(object.Content)
}

func (r *resolver) hold(abs string, limit int64) ([]byte, error) {
	if r.held > maxHeld {
		return nil, invalid("the files of the project have more than %d bytes", maxHeld)
	}
	content, err := r.files.read(abs, limit)
	r.held += len(content)
	return content, err
}
