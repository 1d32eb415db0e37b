package compose

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/compose-spec/compose-go/v2/interpolation"
	"github.com/compose-spec/compose-go/v2/loader"
	"github.com/compose-spec/compose-go/v2/template"
	"github.com/compose-spec/compose-go/v2/tree"
	"github.com/compose-spec/compose-go/v2/types"
)

const (
	maxIncludes = 8       // levels of files that include files
	maxExtended = 1 << 20 // bytes of text that extends may repeat
)

// Options are the options of Load.
type Options struct {
	ProjectName string   // lower case letters, digits, - and _
	Files       []string // at least one; each is merged over those before it
	WorkingDir  string   // where relative paths start; default: the directory of the first file
	// Contents replace Files on the device, by absolute path.
	Contents map[string][]byte
	// Environment is for interpolation and for `environment`; it overrides .env. This process's is not used.
	Environment map[string]string
	// Ports replace the host ports of container ports, as 80/tcp, that the files publish once.
	Ports map[string]string
	// Profiles are active, as are those in COMPOSE_PROFILES; "*" is all.
	Profiles []string
	// Scale is the number of replicas by service; it overrides the files.
	Scale map[string]int
	// Strict keeps every file, except absolute sources of bind mounts, inside WorkingDir (PKG-07).
	Strict bool
	// Package is what Files[0] was extracted from, if any, and read instead of its directory,
	// which workloads may have changed.
	Package *Package
	// Logs is the device's maximum, above which a service is warned. Zero values: unknown.
	Logs Logging
}

// Load reads Compose files with everything they refer to, and refuses all unsupported keys
// at once.
//
// Variables come from the Environment, then from .env in the working directory. One that is
// not set and has no default is empty and gives a warning. The project has the given name;
// `name` and `version` of the file are ignored.
func Load(ctx context.Context, o Options) (*Project, error) {
	p, err := load(ctx, o)
	if err != nil {
		return nil, fmt.Errorf("cannot load Compose file %s: %w", o.named(), err)
	}
	return p, nil
}

// named lists the files for an error, relative to the working directory.
func (o Options) named() string {
	var names []string
	for _, file := range o.Files {
		if name, err := filepath.Rel(cmp.Or(o.WorkingDir, filepath.Dir(o.Files[0])), file); err == nil && filepath.IsLocal(name) {
			file = name
		}
		names = append(names, file)
	}
	return strings.Join(names, ", ")
}

func load(ctx context.Context, o Options) (*Project, error) {
	if !isProjectName(o.ProjectName) {
		return nil, invalid("invalid project name %q: use lower-case letters, digits, - and _", o.ProjectName)
	}
	if len(o.Files) == 0 || len(o.Files) > maxFiles {
		return nil, invalid("%d Compose files are given; 1 to %d can be merged", len(o.Files), maxFiles)
	}
	var paths []string
	for _, file := range o.Files {
		path, err := filepath.Abs(file)
		if err != nil {
			return nil, err
		}
		paths = append(paths, path)
	}
	dir, err := filepath.Abs(cmp.Or(o.WorkingDir, filepath.Dir(paths[0])))
	if err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	l := &loading{
		ctx:     ctx,
		project: o.ProjectName,
		files:   &files{dir: dir, root: root, strict: o.Strict, pkg: o.Package, given: o.Contents},
		in:      newInterpolator(ctx),
		logs:    o.Logs,
	}
	env, err := l.environment(dir, nil, o.Environment)
	if err != nil {
		return nil, err
	}
	model, err := l.model(paths, dir, env, nil)
	if err != nil {
		return nil, l.verdict(err)
	}
	l.checkKeys(model)
	l.in.read["COMPOSE_PROFILES"] = true
	profiles := strings.FieldsFunc(env["COMPOSE_PROFILES"], func(r rune) bool { return r == ',' || r == ' ' })
	p, err := l.bind(model, dir, env, slices.Concat(o.Profiles, profiles))
	if err != nil {
		return nil, l.verdict(err)
	}
	l.passOver(p.Compose.DisabledServices)
	l.resolve(p, model, env, o)
	if err := l.verdict(errors.Join(l.failures...)); err != nil {
		return nil, err
	}
	warnings := l.in.warnings()
	for _, w := range l.warnings {
		warnings = append(warnings, w.Error())
	}
	slices.Sort(warnings)
	p.Warnings = slices.Compact(warnings)
	p.Unused = l.unused(o)
	slices.Sort(l.files.outside)
	p.Outside = slices.Compact(l.files.outside)
	return p, nil
}

// unused are the given variables and ports that had no effect.
func (l *loading) unused(o Options) map[string]bool {
	unused := map[string]bool{}
	for _, given := range []map[string]string{o.Environment, o.Ports} {
		for name := range given {
			if !l.in.read[name] {
				unused[name] = true
			}
		}
	}
	return unused
}

// passOver drops findings about services that are not run.
func (l *loading) passOver(disabled types.Services) {
	for _, said := range []*findings{&l.findings, &l.warnings} {
		*said = slices.DeleteFunc(*said, func(e *Error) bool {
			_, is := disabled[e.Service]
			return is
		})
	}
}

type loading struct {
	ctx      context.Context
	project  string
	files    *files
	in       *interpolator
	read     size     // of all files, aliases resolved
	extends  int      // services that extend another
	ports    int      // of the file being read
	extended []string // files that services of it extend
	findings findings
	failures []error         // other than findings
	warnings findings        // what people should know
	rules    map[string]rule // by attribute
	logs     Logging         // what the device keeps at most
}

// verdict is the error of Load: unsupported keys, which may cause compose-go's errors, come first.
func (l *loading) verdict(err error) error {
	if ctxErr := l.ctx.Err(); ctxErr != nil {
		return ctxErr
	}
	if unsupported := l.findings.err(); unsupported != nil {
		err = unsupported
	}
	if err != nil {
		for _, unset := range l.in.warnings() { // it may be why
			err = errors.Join(err, errors.New(unset))
		}
	}
	return err
}

// environment is for interpolating files in dir: over, then the variables in files, else in .env.
func (l *loading) environment(dir string, files []string, over types.Mapping) (types.Mapping, error) {
	env := over.Clone()
	given := len(files) > 0
	if !given {
		files = []string{filepath.Join(dir, ".env")}
	}
	for _, file := range files {
		vars, err := l.files.readEnv(file, l.in.parseEnvFile, env.Resolve)
		if err != nil && (given || !isMissing(err)) {
			return nil, err
		}
		env.Merge(vars)
	}
	return env, nil
}

// model is the merged long form of files and their includes, before anything is filled in.
func (l *loading) model(paths []string, dir string, env types.Mapping, including []string) (map[string]any, error) {
	if err := l.ctx.Err(); err != nil {
		return nil, err
	}
	details := types.ConfigDetails{WorkingDir: dir, Environment: env}
	guard := vetted{}
	defer guard.close()
	var includes []include
	for _, path := range paths {
		if slices.Contains(including, path) || len(including) > maxIncludes {
			return nil, invalid("%s includes itself, or files are included more than %d levels deep", path, maxIncludes)
		}
		documents, text, err := l.file(path, dir, env)
		if err != nil {
			return nil, err
		}
		if err := l.readExtended(env, guard); err != nil {
			return nil, err
		}
		for _, d := range documents {
			if d.Version != nil {
				l.warnings.add("", filepath.Base(path)+": version", "is obsolete and ignored")
			}
			more, err := includesOf(d)
			if err != nil {
				return nil, err
			}
			includes = append(includes, more...)
		}
		if text != nil {
			details.ConfigFiles = append(details.ConfigFiles, types.ConfigFile{Filename: path, Content: text})
		}
	}
	if l.extends*l.read.text > maxExtended {
		return nil, invalid("extended services expand to more than %d bytes", maxExtended)
	}

	model := map[string]any{}
	if len(details.ConfigFiles) > 0 {
		var err error
		if model, err = l.composeGo(details, guard); err != nil {
			return nil, err
		}
	}
	delete(model, "include") // compose-go has looked at its form
	for _, i := range includes {
		childEnv, err := l.environment(i.dir, i.envFiles, env)
		if err != nil {
			return nil, err
		}
		child, err := l.model(i.paths, i.dir, childEnv, append(including, paths...))
		if err != nil {
			return nil, err
		}
		if err := mergeIncluded(model, child, i.paths[0]); err != nil {
			return nil, err
		}
	}
	return model, nil
}

// file reads a Compose file as parse does, with variables replaced and file names made
// absolute; relative ones start at dir. Each document counts against the bound of files.
func (l *loading) file(path, dir string, env types.Mapping) (documents []document, text []byte, err error) {
	content, err := l.files.read(path, MaxFile)
	if err != nil {
		return nil, nil, err
	}
	lookup := l.withProjectName(env).Resolve
	l.ports, l.extended = 0, nil
	value := func(at []string, written string) (string, error) {
		text, err := l.in.substitute(written, lookup)
		if err != nil {
			return "", fmt.Errorf("%s: %w", strings.Join(at, "."), err)
		}
		return l.checkText(at, dir, text)
	}
	documents, text, err = (&reading{size: &l.read, value: value}).parse(content)
	if err != nil {
		return nil, nil, invalid("%s: %w", path, err)
	}
	if l.files.count += len(documents) - 1; l.files.count > maxFiles {
		return nil, nil, invalid("%s: project has more than %d files and YAML documents", path, maxFiles)
	}
	return documents, text, nil
}

func (l *loading) withProjectName(env types.Mapping) types.Mapping {
	env = env.Clone()
	env["COMPOSE_PROJECT_NAME"] = l.project
	return env
}

// composeGo merges files and normalises them to the long form.
func (l *loading) composeGo(details types.ConfigDetails, guard vetted) (model map[string]any, err error) {
	defer recovered(&err)
	details.Environment = details.Environment.Clone() // it adds the project name
	model, err = loader.LoadModelWithContext(l.ctx, details, l.loaderOptions, func(o *loader.Options) {
		o.ResourceLoaders = []loader.ResourceLoader{guard}
	})
	if err != nil {
		l.findUnknown(err.Error())
		return nil, blame(err)
	}
	return model, nil
}

// findUnknown finds in an error of compose-go the key that is not in its Compose specification.
func (l *loading) findUnknown(said string) {
	said = said[strings.LastIndex(said, ": ")+1:]
	if key, is := strings.CutSuffix(said, " false schema"); is {
		l.findings.add("", strings.TrimSpace(key), "is not supported")
	} else if key, names, is := strings.Cut(said, " additional properties "); is {
		l.findings.add("", cmp.Or(strings.TrimSpace(key), "the file"), "cannot have %s", strings.TrimSuffix(names, " not allowed"))
	}
}

func (l *loading) bind(model map[string]any, dir string, env types.Mapping, profiles []string) (p *Project, err error) {
	defer recovered(&err)
	details := types.ConfigDetails{WorkingDir: dir, Environment: l.withProjectName(env)}
	options := loader.ToOptions(&details, []func(*loader.Options){l.loaderOptions})
	options.Profiles = profiles
	project, err := loader.ModelToProject(model, options, details)
	if err != nil {
		return nil, invalid("%w", err)
	}
	return &Project{
		Name:       l.project,
		WorkingDir: dir,
		Services:   map[string]*Service{},
		Networks:   map[string]*Network{},
		Volumes:    map[string]*Volume{},
		Compose:    project,
	}, nil
}

// loaderOptions makes compose-go parse and merge only. The rest is unsupported or done by resolve,
// which reads neither the file system nor the environment of this process.
func (l *loading) loaderOptions(o *loader.Options) {
	o.SetProjectName(l.project, true)
	o.Interpolate.Substitute = func(s string, _ template.Mapping) (string, error) { return s, nil } // file did that
	o.Interpolate.TypeCastMapping = l.booleans(o.Interpolate.TypeCastMapping)
	o.SkipInclude = true
	o.SkipNormalization = true
	o.SkipConsistencyCheck = true
	o.SkipResolveEnvironment = true
	o.SkipResolveLabels = true
	o.MaxNodeVisits = maxNodes
}

// booleans accepts those of YAML 1.1 with our warning; compose-go would log one globally.
func (l *loading) booleans(casts map[tree.Path]interpolation.Cast) map[tree.Path]interpolation.Cast {
	ours := maps.Clone(casts)
	for path, cast := range casts {
		if value, _ := cast("true"); value != true {
			continue
		}
		ours[path] = func(value string) (any, error) {
			switch strings.ToLower(value) {
			case "y", "yes", "on", "n", "no", "off":
				l.warnings.add("", strconv.Quote(value), "is an obsolete spelling of a boolean; write true or false")
				return strings.ContainsAny(value[:1], "yY") || strings.EqualFold(value, "on"), nil
			}
			return cast(value)
		}
	}
	return ours
}

// recovered turns a panic of compose-go into an error: it asserts types before it validates.
func recovered(err *error) {
	if r := recover(); r != nil {
		*err = invalid("file is malformed: %v", r)
	}
}

var resources = []string{"services", "volumes", "networks", "configs", "secrets", "models", "jobs"}

// mergeIncluded adds an include, which by the specification cannot redefine a name.
func mergeIncluded(model, included map[string]any, path string) error {
	for _, resource := range resources {
		from, _ := included[resource].(map[string]any)
		if len(from) == 0 {
			continue
		}
		to, _ := model[resource].(map[string]any)
		if to == nil {
			to = map[string]any{}
			model[resource] = to
		}
		for name, definition := range from {
			if former, conflict := to[name]; conflict && !reflect.DeepEqual(former, definition) {
				return invalid("%s.%s is defined twice, once in the included %s", resource, name, path)
			}
			to[name] = definition
		}
	}
	return nil
}
